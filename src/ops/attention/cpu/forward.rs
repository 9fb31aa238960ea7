//! The forward pass of one head.

use pulp::{Simd, WithSimd};

use super::head::{Head, parts};
use crate::ops::shared::cpu::panels::{Panels, Right};
use crate::ops::shared::cpu::tile::{Left, STRIP, Strided, Target, multiply};
use crate::ops::shared::cpu::{math, memory};

pub(super) struct Forward<'a> {
    pub head: Head<'a>,
    /// Of all heads.
    pub qkv: &'a [f32],
    /// The head's row of each position.
    pub out: Vec<&'a mut [f32]>,
    pub log_sum_exp: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { head, qkv, mut out, log_sum_exp } = self;
        let (time, width) = (head.shape.time, 3 * head.c);
        // The right factors of q k^T and p v.
        let (keys, vs) = (Panels::new(head.size, time), Panels::new(time, head.size));
        let (stride, out_stride) = (keys.width(), vs.width());
        let lens = [keys.len(), vs.len(), STRIP * stride, STRIP * out_stride];
        let mut memory = memory::take(lens.iter().sum());
        let [packed_k, packed_v, scores, sums] = parts(&mut memory, lens);
        keys.pack(Right::Columns(head.row(qkv, 0, 1, 3), width), packed_k);
        vs.pack(Right::Rows(head.row(qkv, 0, 2, 3), width), packed_v);
        for query in (0..time).step_by(STRIP) {
            let rows = STRIP.min(time - query);
            let visible = query + rows;
            let q = Left::Rows(head.row(qkv, query, 0, 3), width);
            for index in 0..keys.count() {
                let panel = keys.panel(packed_k, index, 0, head.size);
                if panel.first < visible {
                    let to = Strided { values: &mut *scores, stride, rows };
                    multiply(simd, q, panel, Target { rows: to, column: panel.first, add: false });
                }
            }
            let mut factors = [0.0; STRIP];
            for (r, factor) in factors.iter_mut().enumerate().take(rows) {
                let row = &mut scores[r * stride..][..visible];
                (*factor, log_sum_exp[query + r]) = softmax(&head, row, query + r);
            }
            for index in 0..vs.count() {
                let panel = vs.panel(packed_v, index, 0, visible);
                let to = Strided { values: &mut *sums, stride: out_stride, rows };
                let target = Target { rows: to, column: panel.first, add: false };
                multiply(simd, Left::Rows(scores, stride), panel, target);
            }
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
/// returns their log-sum-exp. Keys after the query get zero.
#[inline(always)]
fn softmax(head: &Head, row: &mut [f32], query: usize) -> (f32, f32) {
    let scale = head.shape.scale(head.c);
    let (row, later) = row.split_at_mut(query + 1);
    later.fill(0.0);
    let max = math::max(row);
    for score in row.iter_mut() {
        *score = math::exp((*score - max) * scale);
    }
    let sum = math::sum_by(row.len(), |i| row[i]);
    head.drop_out(row, query);
    (1.0 / sum, max * scale + sum.ln())
}
