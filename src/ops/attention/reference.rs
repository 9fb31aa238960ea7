//! Attention by tensor operations, in f32 whatever the dtype of `qkv`.

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Slice, TensorData};

use super::AttentionShape;
use crate::ops::dropout::reference::mask;
use crate::ops::shared;

/// Queries per block: of the `time x time` matrix, only the scores of one block exist at a time.
const QUERY_BLOCK: usize = 128;

/// The parts of a packed `qkv` as `[batch, heads, time, size]`.
struct Heads<B: Backend> {
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    scale: f32,
}

impl<B: Backend> Heads<B> {
    fn split(qkv: FloatTensor<B>, shape: &AttentionShape) -> Self {
        let [_, three_c] = shared::shape::<B>(&qkv).dims();
        let c = three_c / 3;
        let part = |index: usize| {
            let columns = [Slice::full(), Slice::from(index * c..(index + 1) * c)];
            to_heads::<B>(B::float_slice(qkv.clone(), &columns), shape)
        };
        Self { q: part(0), k: part(1), v: part(2), scale: shape.scale(c) }
    }

    /// The scores of queries `from..to` against keys `0..to`, `[batch, heads, to - from, to]`. Keys
    /// after the query score far below all others.
    fn scores(&self, from: usize, to: usize) -> FloatTensor<B> {
        let q = rows::<B>(&self.q, from, to);
        let k = rows::<B>(&self.k, 0, to);
        // Scaled before the product: the large scores of a long row stay in range in f16 too.
        let q = B::float_mul_scalar(q, self.scale.into());
        let scores = B::float_matmul(q, B::float_swap_dims(k, 2, 3));
        B::float_add(scores, causal_bias::<B>(from, to, &shared::device::<B>(&self.q)))
    }
}

pub(super) fn forward<B: Backend>(
    qkv: FloatTensor<B>,
    shape: AttentionShape,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let shape = &shape;
    let dtype = qkv.dtype().into();
    let qkv = B::float_cast(qkv, FloatDType::F32);
    let device = shared::device::<B>(&qkv);
    let heads = Heads::<B>::split(qkv, shape);
    let mut outs = Vec::new();
    let mut sums = Vec::new();
    for (from, to) in blocks(shape.time) {
        let scores = heads.scores(from, to);
        let max = B::float_max_dim(scores.clone(), 3);
        let exp = B::float_exp(B::float_sub(scores, max.clone()));
        let sum = B::float_sum_dim(exp.clone(), 3);
        let mut p = B::float_div(exp, sum.clone());
        if let Some(mask) = dropout_mask::<B>(shape, from, to, &device) {
            p = B::float_mul(p, mask);
        }
        outs.push(B::float_matmul(p, rows::<B>(&heads.v, 0, to)));
        sums.push(B::float_add(B::float_log(sum), max));
    }
    let out = from_heads::<B>(B::float_cat(outs, 2));
    let log_sum_exp =
        B::float_reshape(B::float_cat(sums, 2), [shape.batch, shape.heads, shape.time].into());
    (B::float_cast(out, dtype), log_sum_exp)
}

/// With `p` the probabilities and `delta = rowsum(dout * out)`: `dv = p^T dout`,
/// `ds = p * (dout v^T - delta)`, `dq = ds k * scale`, `dk = ds^T q * scale`.
pub(super) fn backward<B: Backend>(
    dout: FloatTensor<B>,
    qkv: FloatTensor<B>,
    out: FloatTensor<B>,
    log_sum_exp: FloatTensor<B>,
    shape: AttentionShape,
) -> FloatTensor<B> {
    let shape = &shape;
    let dtype = qkv.dtype().into();
    let [dout, qkv, out] = [dout, qkv, out].map(|x| B::float_cast(x, FloatDType::F32));
    let device = shared::device::<B>(&qkv);
    let heads = Heads::<B>::split(qkv, shape);
    let dout = to_heads::<B>(dout, shape);
    let delta = B::float_sum_dim(B::float_mul(dout.clone(), to_heads::<B>(out, shape)), 3);
    let log_sum_exp =
        B::float_reshape(log_sum_exp, [shape.batch, shape.heads, shape.time, 1].into());
    let dims = shared::shape::<B>(&heads.q);
    let mut dk = B::float_zeros(dims.clone(), &device, FloatDType::F32);
    let mut dv = B::float_zeros(dims, &device, FloatDType::F32);
    let mut dqs = Vec::new();
    for (from, to) in blocks(shape.time) {
        let d = rows::<B>(&dout, from, to);
        let p =
            B::float_exp(B::float_sub(heads.scores(from, to), rows::<B>(&log_sum_exp, from, to)));
        let v = rows::<B>(&heads.v, 0, to);
        let mut dp = B::float_matmul(d.clone(), B::float_swap_dims(v, 2, 3));
        let mut dropped = p.clone();
        if let Some(mask) = dropout_mask::<B>(shape, from, to, &device) {
            dp = B::float_mul(dp, mask.clone());
            dropped = B::float_mul(dropped, mask);
        }
        let ds = B::float_mul(p, B::float_sub(dp, rows::<B>(&delta, from, to)));
        let ds = B::float_mul_scalar(ds, heads.scale.into());
        dqs.push(B::float_matmul(ds.clone(), rows::<B>(&heads.k, 0, to)));
        let q = rows::<B>(&heads.q, from, to);
        dk = add_rows::<B>(dk, B::float_matmul(B::float_swap_dims(ds, 2, 3), q), to);
        dv = add_rows::<B>(dv, B::float_matmul(B::float_swap_dims(dropped, 2, 3), d), to);
    }
    let dq = B::float_cat(dqs, 2);
    let parts = [dq, dk, dv].map(from_heads::<B>);
    B::float_cast(B::float_cat(parts.to_vec(), 1), dtype)
}

fn blocks(time: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..time).step_by(QUERY_BLOCK).map(move |from| (from, (from + QUERY_BLOCK).min(time)))
}

/// `[n, c]` as `[batch, heads, time, size]`.
fn to_heads<B: Backend>(x: FloatTensor<B>, shape: &AttentionShape) -> FloatTensor<B> {
    let [_, c] = shared::shape::<B>(&x).dims();
    let split = [shape.batch, shape.time, shape.heads, c / shape.heads];
    B::float_swap_dims(B::float_reshape(x, split.into()), 1, 2)
}

/// `[batch, heads, time, size]` as `[n, c]`.
fn from_heads<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let [batch, heads, time, size] = shared::shape::<B>(&x).dims();
    B::float_reshape(B::float_swap_dims(x, 1, 2), [batch * time, heads * size].into())
}

/// Positions `from..to` of `[batch, heads, time, _]`.
fn rows<B: Backend>(x: &FloatTensor<B>, from: usize, to: usize) -> FloatTensor<B> {
    let range = [Slice::full(), Slice::full(), Slice::from(from..to)];
    B::float_slice(x.clone(), &range)
}

/// Adds `part` to positions `0..to` of `sum`.
fn add_rows<B: Backend>(sum: FloatTensor<B>, part: FloatTensor<B>, to: usize) -> FloatTensor<B> {
    let range = [Slice::full(), Slice::full(), Slice::from(0..to)];
    let head = B::float_slice(sum.clone(), &range);
    B::float_slice_assign(sum, &range, B::float_add(head, part))
}

/// 0 where key <= query, else far below any score: `[1, 1, to - from, to]`.
fn causal_bias<B: Backend>(from: usize, to: usize, device: &Device<B>) -> FloatTensor<B> {
    // Finite, because infinity minus infinity is NaN. Its exp is exactly zero.
    const NEVER: f32 = -1e30;
    let mut bias = vec![0.0f32; (to - from) * to];
    for (query, row) in bias.chunks_mut(to).enumerate() {
        row[from + query + 1..].fill(NEVER);
    }
    B::float_from_data(TensorData::new(bias, [1, 1, to - from, to]), device)
}

/// The dropout factors of queries `from..to` and keys `0..to`: `[batch, heads, to - from, to]`.
fn dropout_mask<B: Backend>(
    shape: &AttentionShape,
    from: usize,
    to: usize,
    device: &Device<B>,
) -> Option<FloatTensor<B>> {
    let dropout = shape.dropout?;
    let AttentionShape { batch, time, heads, .. } = *shape;
    let index: Vec<i32> = (0..heads)
        .flat_map(|head| (from..to).map(move |query| (head * time + query) * time))
        .flat_map(|first| (0..to).map(move |key| (first + key) as i32))
        .collect();
    let len = index.len();
    let index = B::int_from_data(TensorData::new(index, [1, len]), device);
    let mask = mask::<B>(&dropout, batch, index, device);
    Some(B::float_reshape(mask, [batch, heads, to - from, to].into()))
}
