//! The backward pass of one head of keys and values, and of the heads of queries that share it.

use pulp::Simd;

use super::super::scale;
use super::head::{AttentionHead, parts};
use super::panels::{Panels, Strided};
use super::tile::{STRIP, Target, multiply};
use crate::ops::shared::cpu::vector::{self, exp, vectors};
use crate::ops::shared::cpu::{memory, vectorised};

/// Queries per block. A block's probabilities and their gradients, for all keys, stay in the second
/// cache until the gradients of keys and values are summed from their columns.
const BLOCK: usize = 64;

/// The inputs, `log_sum_exp` of the heads of queries from `head` on, the others of all heads.
#[derive(Clone, Copy)]
pub(super) struct HeadInputs<'a> {
    /// The first of the heads of queries.
    pub head: AttentionHead<'a>,
    pub qkv: &'a [f32],
    pub out: &'a [f32],
    pub dout: &'a [f32],
    pub log_sum_exp: &'a [f32],
}

impl HeadInputs<'_> {
    /// Returns the inputs of the `nth` head of queries.
    fn of_head(self, nth: usize) -> Self {
        let head = self.head.next(nth);
        Self { head, log_sum_exp: &self.log_sum_exp[nth * head.shape.time..], ..self }
    }
}

struct ScoreBlock<'a> {
    first: usize,
    rows: usize,
    /// True if no sum of keys or values has begun before the first block.
    is_first_head: bool,
    /// Elements of a row of `p` and `ds`.
    stride: usize,
    /// The probabilities after dropout, `[rows, keys]`.
    p: &'a mut [f32],
    ds: &'a mut [f32],
}

vectorised! {
    /// With `p` the probabilities and `delta = rowsum(dout * out)`: `dv = p^T dout`,
    /// `ds = p * (dout v^T - delta) * scale`, `dq = ds k`, `dk = ds^T q`, where `dk` and `dv` are sums over
    /// the heads of queries. For each position, `dqkv` has the rows of the gradients of these heads, of k
    /// and of v.
    pub(super) fn backward<S>(simd; inputs: HeadInputs<'_>, dqkv: Vec<&mut [f32]>) {
        let mut dqkv = dqkv;
        let HeadInputs { head, qkv, dout: d_out, .. } = inputs;
        let time = head.shape.time;
        let size = head.size;
        let group = head.shape.group();
        let packed_row = head.packed();
        let merged_row = head.merged();
        let across = Panels::new::<S>(size, time);
        let down = Panels::new::<S>(time, size);
        let block = Panels::new::<S>(BLOCK, size);
        let stride = across.width().next_multiple_of(STRIP);
        let sums = time.next_multiple_of(STRIP) * down.width();
        let lens = [
            across.len(),
            across.len(),
            down.len(),
            block.len(),
            block.len(),
            BLOCK * stride,
            BLOCK * stride,
            STRIP * down.width(),
            sums,
            sums,
        ];
        let mut memory = memory::take(lens.iter().sum());
        let [k_transposed, v_transposed, k, q, dout, p, ds, dq, dk, dv] = parts(&mut memory, lens);
        across.pack(Strided::Columns(head.k(qkv, 0), packed_row), k_transposed);
        across.pack(Strided::Columns(head.v(qkv, 0), packed_row), v_transposed);
        down.pack(Strided::Rows(head.k(qkv, 0), packed_row), k);
        let packed = [&*k_transposed, &*v_transposed];
        let width = down.width();
        let blocks = (0..time).step_by(BLOCK);
        for (nth, first) in (0..group).flat_map(|nth| blocks.clone().map(move |first| (nth, first))) {
            let inputs = inputs.of_head(nth);
            let head = inputs.head;
            let rows = BLOCK.min(time - first);
            let mut block = ScoreBlock { first, rows, is_first_head: nth == 0, stride, p, ds };
            for query in (first..first + rows).step_by(STRIP) {
                gradients_of_scores(simd, &inputs, across, packed, &mut block, query);
                let rows = STRIP.min(first + rows - query);
                let left = Strided::Rows(&block.ds[(query - first) * stride..], stride);
                let to = Target { values: &mut *dq, stride: width, rows, add: false };
                multiply(simd, left, down.of(k, 0..query + rows, size), to);
                for (r, dq) in dq.chunks(width).enumerate().take(rows) {
                    dqkv[(group + 2) * (query + r) + nth].copy_from_slice(&dq[..size]);
                }
            }
            let panels = Panels::new::<S>(rows, size);
            let q = &mut q[..panels.len()];
            let dout = &mut dout[..panels.len()];
            panels.pack(Strided::Rows(head.q(qkv, first), packed_row), q);
            panels.pack(Strided::Rows(head.out(d_out, first), merged_row), dout);
            add_columns(simd, &block, block.ds, panels, q, dk);
            add_columns(simd, &block, block.p, panels, dout, dv);
        }
        for (t, rows) in dqkv.chunks_mut(group + 2).enumerate() {
            rows[group].copy_from_slice(&dk[t * width..][..size]);
            rows[group + 1].copy_from_slice(&dv[t * width..][..size]);
        }
        memory::give(memory);
    }
}

/// The probabilities of a strip of queries from `query` on, and the gradients of its scores. `packed` has
/// the right factors of their products, `k^T` and `v^T` `[size, time]`.
#[inline(always)]
fn gradients_of_scores<S: Simd>(
    simd: S,
    inputs: &HeadInputs,
    panels: Panels,
    packed: [&[f32]; 2],
    block: &mut ScoreBlock,
    query: usize,
) {
    let HeadInputs { head, qkv, out, dout, .. } = *inputs;
    let stride = block.stride;
    let end = block.first + block.rows;
    let rows = STRIP.min(end - query);
    let at = (query - block.first) * stride;
    let products = [
        (head.q(qkv, query), head.packed(), packed[0], &mut *block.p),
        (head.out(dout, query), head.merged(), packed[1], &mut *block.ds),
    ];
    for (left, width, right, scores) in products {
        let seen = panels.of(right, 0..head.size, query + rows);
        let to = Target { values: &mut scores[at..], stride, rows, add: false };
        multiply(simd, Strided::Rows(left, width), seen, to);
    }
    let scale = scale(head.size);
    for query in query..query + rows {
        let at = (query - block.first) * stride;
        let [out, dout] = [out, dout].map(|x| &head.out(x, query)[..head.size]);
        let delta = vector::sum(simd, [dout, out], |[dout, out]| simd.mul_f32s(dout, out));
        let p = &mut block.p[at..at + stride];
        let ds = &mut block.ds[at..at + stride];
        let len = query + 1;
        head.drop_out(&mut ds[..len], query);
        let [factor, shift, minus_delta] =
            [scale, -inputs.log_sum_exp[query], -delta].map(|value| simd.splat_f32s(value));
        for (p, ds) in vectors::<S>(p, len).iter_mut().zip(vectors::<S>(ds, len)) {
            *p = exp(simd, simd.mul_add_e_f32s(*p, factor, shift));
            *ds = simd.mul_f32s(simd.mul_f32s(*p, simd.add_f32s(*ds, minus_delta)), factor);
        }
        head.drop_out(&mut p[..len], query);
        // The last strip of keys that a query of this block sees is read whole.
        let seen = end.next_multiple_of(STRIP);
        p[len..seen].fill(0.0);
        ds[len..seen].fill(0.0);
    }
}

/// Adds the product of the transposed `left` `[queries, keys]` and `right` `[queries, size]` to `sums`
/// `[keys, width]`. Of each strip of keys, the queries before it are skipped.
#[inline(always)]
fn add_columns<S: Simd>(
    simd: S,
    block: &ScoreBlock,
    left: &[f32],
    panels: Panels,
    right: &[f32],
    sums: &mut [f32],
) {
    let stride = panels.width();
    for key in (0..block.first + block.rows).step_by(STRIP) {
        let from = key.saturating_sub(block.first);
        let left = Strided::Columns(&left[from * block.stride + key..], block.stride);
        // The block that holds a key is the first one of a head that sees it.
        let (values, add) = (&mut sums[key * stride..], key < block.first || !block.is_first_head);
        let to = Target { values, stride, rows: STRIP, add };
        multiply(simd, left, panels.of(right, from..block.rows, stride), to);
    }
}
