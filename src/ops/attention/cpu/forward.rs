//! The forward pass of one head.

use pulp::Simd;

use super::super::scale;
use super::head::{AttentionHead, parts};
use super::panels::{Panels, Strided};
use super::tile::{STRIP, Target, multiply};
use crate::ops::shared::cpu::vector::{self, WIDEST, exp, vectors};
use crate::ops::shared::cpu::{memory, vectorised};

vectorised! {
    /// `qkv` is of all heads, `out` has the head's row of each position.
    pub(super) fn forward<S>(simd;
        head: AttentionHead<'_>,
        qkv: &[f32],
        out: Vec<&mut [f32]>,
        log_sum_exp: &mut [f32],
    ) {
        let mut out = out;
        let time = head.shape.time;
        let width = head.packed();
        // The right factors of q k^T and p v.
        let keys = Panels::new::<S>(head.size, time);
        let vs = Panels::new::<S>(time, head.size);
        let stride = keys.width();
        let out_stride = vs.width();
        let lens = [keys.len(), vs.len(), STRIP * stride, STRIP * out_stride];
        let mut memory = memory::take(lens.iter().sum());
        let [packed_k, packed_v, scores, sums] = parts(&mut memory, lens);
        keys.pack(Strided::Columns(head.k(qkv, 0), width), packed_k);
        vs.pack(Strided::Rows(head.v(qkv, 0), width), packed_v);
        for query in (0..time).step_by(STRIP) {
            let rows = STRIP.min(time - query);
            let visible = query + rows;
            let q = Strided::Rows(head.q(qkv, query), width);
            let seen = keys.of(packed_k, 0..head.size, visible);
            multiply(simd, q, seen, Target { values: &mut *scores, stride, rows, add: false });
            let mut factors = [0.0; STRIP];
            for (r, factor) in factors.iter_mut().enumerate().take(rows) {
                let row = &mut scores[r * stride..][..stride];
                (*factor, log_sum_exp[query + r]) = softmax(simd, &head, row, query + r);
            }
            let p = Strided::Rows(scores, stride);
            let to = Target { values: &mut *sums, stride: out_stride, rows, add: false };
            multiply(simd, p, vs.of(packed_v, 0..visible, head.size), to);
            for (r, sums) in sums.chunks(out_stride).enumerate().take(rows) {
                for (out, sum) in out[query + r].iter_mut().zip(sums) {
                    *out = sum * factors[r];
                }
            }
        }
        memory::give(memory);
    }
}

/// Turns the scores of one query into probabilities, but for a factor that is returned first, and
/// returns their log-sum-exp. Keys of its strip after the query get zero.
#[inline(always)]
fn softmax<S: Simd>(simd: S, head: &AttentionHead, row: &mut [f32], query: usize) -> (f32, f32) {
    let scale = scale(head.size);
    let len = query + 1;
    let end = row.len();
    // Whole vectors: what lies beyond the query is no larger than any score, and zero in the end.
    row[len..end.min(len + WIDEST)].fill(f32::NEG_INFINITY);
    let max = vector::max(simd, &row[..len.next_multiple_of(S::F32_LANES)]) * scale;
    let factor = simd.splat_f32s(scale);
    let shift = simd.splat_f32s(-max);
    for score in vectors::<S>(row, len) {
        *score = exp(simd, simd.mul_add_e_f32s(*score, factor, shift));
    }
    row[len..end.min(len + WIDEST)].fill(0.0);
    let mut sum = simd.splat_f32s(0.0);
    for p in vectors::<S>(row, len) {
        sum = simd.add_f32s(sum, *p);
    }
    let sum = simd.reduce_sum_f32s(sum);
    head.drop_out(&mut row[..len], query);
    (1.0 / sum, max + libm::logf(sum))
}
