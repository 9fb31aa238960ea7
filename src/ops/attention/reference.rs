//! Attention by tensor operations, in f32 whatever the dtype of `qkv`.

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData, s};

use super::{AttentionBackwardInputs, AttentionInputs, AttentionShape, scale};
use crate::ops::dropout::reference::mask;
use crate::ops::shared::dispatch::Reference;

/// Queries per block: of the `time x time` matrix, only the scores of one block exist at a time.
const QUERY_BLOCK: usize = 128;

/// The parts of a packed `qkv` as `[batch, heads, time, size]`. Keys and values are repeated for the
/// heads of queries that share them.
struct SplitHeads {
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f32,
}

impl SplitHeads {
    fn split(qkv: Tensor<2>, shape: &AttentionShape) -> Self {
        let size = shape.size(qkv.dims()[1]);
        let heads = shape.heads;
        let kv_heads = shape.kv_heads;
        let group = shape.group();
        let part = |first: usize, count: usize| {
            to_heads(qkv.clone().narrow(1, first * size, count * size), shape, count)
        };
        let shared = |first| {
            let part = part(first, kv_heads).unsqueeze_dim::<5>(2).repeat_dim(2, group);
            part.reshape([shape.batch, heads, shape.time, size])
        };
        let k = shared(heads);
        let v = shared(heads + kv_heads);
        Self { q: part(0, heads), k, v, scale: scale(size) }
    }

    /// Returns the scores of queries `from..to` against keys `0..to`, `[batch, heads, to - from, to]`.
    /// Keys after the query score far below all others.
    fn scores(&self, from: usize, to: usize) -> Tensor<4> {
        // Scaled before the product: the large scores of a long row stay in range in f16 too.
        let q = rows(&self.q, from, to) * self.scale;
        q.matmul(rows(&self.k, 0, to).transpose()) + causal_bias(from, to, &self.q.device())
    }
}

pub(super) fn forward(inputs: AttentionInputs<Reference>) -> (Tensor<2>, Tensor<3>) {
    let AttentionInputs { qkv, shape } = inputs;
    let dtype = FloatDType::from(qkv.dtype());
    let heads = SplitHeads::split(qkv.cast(FloatDType::F32), &shape);
    let mut outs = Vec::new();
    let mut sums = Vec::new();
    for (from, to) in blocks(shape.time) {
        let scores = heads.scores(from, to);
        let max = scores.clone().max_dim(3);
        let exp = (scores - max.clone()).exp();
        let sum = exp.clone().sum_dim(3);
        let mut p = exp / sum.clone();
        if let Some(mask) = dropout_mask(&shape, from, to, &p.device()) {
            p = p * mask;
        }
        outs.push(p.matmul(rows(&heads.v, 0, to)));
        sums.push(sum.log() + max);
    }
    let out = from_heads(Tensor::cat(outs, 2));
    let log_sum_exp = Tensor::cat(sums, 2).reshape([shape.batch, shape.heads, shape.time]);
    (out.cast(dtype), log_sum_exp)
}

/// With `p` the probabilities and `delta = rowsum(dout * out)`: `dv = p^T dout`,
/// `ds = p * (dout v^T - delta)`, `dq = ds k * scale`, `dk = ds^T q * scale`.
pub(super) fn backward(inputs: AttentionBackwardInputs<Reference>) -> Tensor<2> {
    let AttentionBackwardInputs { dout, qkv, out, log_sum_exp, shape } = inputs;
    let dtype = FloatDType::from(qkv.dtype());
    let [dout, qkv, out] = [dout, qkv, out].map(|x| x.cast(FloatDType::F32));
    let heads = SplitHeads::split(qkv, &shape);
    let [dout, out] = [dout, out].map(|x| to_heads(x, &shape, shape.heads));
    let delta = (dout.clone() * out).sum_dim(3);
    let log_sum_exp = log_sum_exp.reshape([shape.batch, shape.heads, shape.time, 1]);
    let mut dk = heads.q.zeros_like();
    let mut dv = heads.q.zeros_like();
    let mut dqs = Vec::new();
    for (from, to) in blocks(shape.time) {
        let d = rows(&dout, from, to);
        let p = (heads.scores(from, to) - rows(&log_sum_exp, from, to)).exp();
        let mut dp = d.clone().matmul(rows(&heads.v, 0, to).transpose());
        let mut dropped = p.clone();
        if let Some(mask) = dropout_mask(&shape, from, to, &p.device()) {
            dp = dp * mask.clone();
            dropped = dropped * mask;
        }
        let ds = p * (dp - rows(&delta, from, to)) * heads.scale;
        dqs.push(ds.clone().matmul(rows(&heads.k, 0, to)));
        dk = add_rows(dk, ds.transpose().matmul(rows(&heads.q, from, to)), to);
        dv = add_rows(dv, dropped.transpose().matmul(d), to);
    }
    let [dk, dv] = [dk, dv].map(|sums| {
        let [batch, _, time, size] = sums.dims();
        let sums = sums.reshape([batch, shape.kv_heads, shape.group(), time, size]);
        sums.sum_dim(2).squeeze_dim(2)
    });
    let parts = [Tensor::cat(dqs, 2), dk, dv].map(from_heads);
    Tensor::cat(parts.to_vec(), 1).cast(dtype)
}

fn blocks(time: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..time).step_by(QUERY_BLOCK).map(move |from| (from, (from + QUERY_BLOCK).min(time)))
}

/// `[n, heads * size]` as `[batch, heads, time, size]`.
fn to_heads(x: Tensor<2>, shape: &AttentionShape, heads: usize) -> Tensor<4> {
    let size = x.dims()[1] / heads;
    x.reshape([shape.batch, shape.time, heads, size]).swap_dims(1, 2)
}

/// `[batch, heads, time, size]` as `[n, heads * size]`.
fn from_heads(x: Tensor<4>) -> Tensor<2> {
    let [batch, heads, time, size] = x.dims();
    x.swap_dims(1, 2).reshape([batch * time, heads * size])
}

/// Returns positions `from..to` of `[batch, heads, time, _]`.
fn rows(x: &Tensor<4>, from: usize, to: usize) -> Tensor<4> {
    x.clone().narrow(2, from, to - from)
}

/// Adds `part` to positions `0..to` of `sum`.
fn add_rows(sum: Tensor<4>, part: Tensor<4>, to: usize) -> Tensor<4> {
    let head = rows(&sum, 0, to);
    sum.slice_assign(s![.., .., 0..to], head + part)
}

/// 0 where key <= query, else far below any score: `[1, 1, to - from, to]`.
fn causal_bias(from: usize, to: usize, device: &Device) -> Tensor<4> {
    // Finite, because infinity minus infinity is NaN. Its exp is exactly zero.
    const NEVER: f32 = -1e30;
    let mut bias = vec![0.0f32; (to - from) * to];
    for (query, row) in bias.chunks_mut(to).enumerate() {
        row[from + query + 1..].fill(NEVER);
    }
    Tensor::from_data(TensorData::new(bias, [1, 1, to - from, to]), (device, DType::F32))
}

/// Returns the dropout factors of queries `from..to` and keys `0..to`: `[batch, heads, to - from, to]`.
fn dropout_mask(
    shape: &AttentionShape,
    from: usize,
    to: usize,
    device: &Device,
) -> Option<Tensor<4>> {
    let dropout = shape.dropout?;
    let AttentionShape { batch, time, heads, .. } = *shape;
    let index: Vec<i32> = (0..heads)
        .flat_map(|head| (from..to).map(move |query| (head * time + query) * time))
        .flat_map(|first| (0..to).map(move |key| (first + key) as i32))
        .collect();
    let len = index.len();
    let index = TensorData::new(index, [len]);
    let index = Tensor::<1, Int>::from_data(index, (device, DType::I32));
    Some(mask(&dropout, batch, index).reshape([batch, heads, to - from, to]))
}
