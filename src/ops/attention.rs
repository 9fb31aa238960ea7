//! Causal multi-head self-attention without a `time x time` matrix.
//!
//! The forward pass keeps its output and the log-sum-exp of each score row, and the backward pass
//! recomputes the probabilities from them (Dao et al. 2022, arXiv:2205.14135): 4 bytes a row and
//! head instead of three matrices a layer.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{FloatDType, Slice, Tensor, TensorData};

use super::{Dropout, OpsMode};

/// How the rows of `qkv` `[batch * time, 3 * heads * size]` are to be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Positions of each sequence.
    pub time: usize,
    /// Heads; the model's width is a multiple of it.
    pub heads: usize,
    /// Drops out probabilities, if set: element `(head, query, key)` of each sequence.
    pub dropout: Option<Dropout>,
}

impl AttentionShape {
    /// `1 / sqrt(size)`, which the scores are multiplied with.
    pub(super) fn scale(&self, width: usize) -> f32 {
        1.0 / ((width / self.heads) as f32).sqrt()
    }
}

/// `softmax(q k^T / sqrt(size)) v`, each position seeing itself and what came before.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
    Autodiff
)]
pub trait Attention: Backend {
    /// The differentiable op: `qkv` `[n, 3c]` holds query, key and value side by side; gives
    /// `[n, c]`.
    fn attention(
        qkv: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        Self::attention_forward(qkv, shape, mode).0
    }

    /// Gives the output `[n, c]` and the log-sum-exp of the scores `[batch, heads, time]`.
    fn attention_forward(
        qkv: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let _ = mode;
        reference_forward::<Self>(qkv, &shape)
    }

    /// From `dout` `[n, c]` gives `dqkv` `[n, 3c]`.
    fn attention_backward(
        dout: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let _ = mode;
        reference_backward::<Self>(dout, qkv, out, log_sum_exp, &shape)
    }
}

/// Causal self-attention over packed `qkv` `[n, 3c]`; gives `[n, c]`.
pub fn attention(qkv: Tensor<2>, shape: AttentionShape, mode: OpsMode) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::attention(qkv.into_dispatch(), shape, mode))
}

#[derive(Debug)]
struct AttentionBackward;

#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    qkv: FloatTensor<B>,
    out: FloatTensor<B>,
    log_sum_exp: FloatTensor<B>,
    shape: AttentionShape,
    mode: OpsMode,
}

impl<B: Attention> Backward<B, 1> for AttentionBackward {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let dout = grads.consume::<B>(&ops.node);
        let [qkv] = ops.parents;
        if let Some(qkv) = qkv {
            let dqkv = B::attention_backward(
                dout,
                saved.qkv,
                saved.out,
                saved.log_sum_exp,
                saved.shape,
                saved.mode,
            );
            grads.register::<B>(qkv.id, dqkv);
        }
    }
}

impl<B: Attention, C: CheckpointStrategy> Attention for Autodiff<B, C> {
    fn attention(
        qkv: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (qkv, node) = qkv.into_parts();
        let (out, log_sum_exp) = B::attention_forward(qkv.clone(), shape, mode);
        match AttentionBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let saved = Saved { qkv, out: out.clone(), log_sum_exp, shape, mode };
                prep.finish(saved, out)
            }
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }
}

/// Queries that the reference handles at a time: the scores of one block are all that exists of
/// the `time x time` matrix.
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
        let [_, three_c] = super::shape::<B>(&qkv).dims();
        let c = three_c / 3;
        let part = |index: usize| {
            let columns = [Slice::full(), Slice::from(index * c..(index + 1) * c)];
            to_heads::<B>(B::float_slice(qkv.clone(), &columns), shape)
        };
        Self { q: part(0), k: part(1), v: part(2), scale: shape.scale(c) }
    }

    /// The scores of queries `from..to` against keys `0..to`, what lies after a query at minus
    /// infinity; `[batch, heads, to - from, to]`.
    fn scores(&self, from: usize, to: usize) -> FloatTensor<B> {
        let q = rows::<B>(&self.q, from, to);
        let k = rows::<B>(&self.k, 0, to);
        // Scaled before the product: the large scores of a long row stay in range in f16 too.
        let q = B::float_mul_scalar(q, self.scale.into());
        let scores = B::float_matmul(q, B::float_swap_dims(k, 2, 3));
        B::float_add(scores, causal_bias::<B>(from, to, &super::device::<B>(&self.q)))
    }
}

pub(super) fn reference_forward<B: Backend>(
    qkv: FloatTensor<B>,
    shape: &AttentionShape,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let device = super::device::<B>(&qkv);
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
    (out, log_sum_exp)
}

/// With `p` the probabilities and `delta = rowsum(dout * out)`: `dv = p^T dout`,
/// `ds = p * (dout v^T - delta)`, `dq = ds k * scale`, `dk = ds^T q * scale`.
pub(super) fn reference_backward<B: Backend>(
    dout: FloatTensor<B>,
    qkv: FloatTensor<B>,
    out: FloatTensor<B>,
    log_sum_exp: FloatTensor<B>,
    shape: &AttentionShape,
) -> FloatTensor<B> {
    let device = super::device::<B>(&qkv);
    let heads = Heads::<B>::split(qkv, shape);
    let dout = to_heads::<B>(dout, shape);
    let delta = B::float_sum_dim(B::float_mul(dout.clone(), to_heads::<B>(out, shape)), 3);
    let log_sum_exp =
        B::float_reshape(log_sum_exp, [shape.batch, shape.heads, shape.time, 1].into());
    let dims = super::shape::<B>(&heads.q);
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
    B::float_cat(parts.to_vec(), 1)
}

fn blocks(time: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..time).step_by(QUERY_BLOCK).map(move |from| (from, (from + QUERY_BLOCK).min(time)))
}

/// `[n, c]` as `[batch, heads, time, size]`.
fn to_heads<B: Backend>(x: FloatTensor<B>, shape: &AttentionShape) -> FloatTensor<B> {
    let [_, c] = super::shape::<B>(&x).dims();
    let split = [shape.batch, shape.time, shape.heads, c / shape.heads];
    B::float_swap_dims(B::float_reshape(x, split.into()), 1, 2)
}

/// `[batch, heads, time, size]` as `[n, c]`.
fn from_heads<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let [batch, heads, time, size] = super::shape::<B>(&x).dims();
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
    // Finite, because infinity minus infinity is not a number; exp of it is exactly zero.
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
    let mask = dropout.reference_mask::<B>(batch, index, device);
    Some(B::float_reshape(mask, [batch, heads, to - from, to].into()))
}

/// Larger heads than GPT-2's neither fit the registers nor, eight rows of two, the workgroup memory
/// that WebGPU promises: the reference takes them.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) const LARGEST_HEAD: usize = 128;

/// Positions in a tile of the kernels: rows of two matrices and two numbers for each, within
/// `memory` bytes.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) fn tile(memory: usize, size: usize) -> u32 {
    let mut tile = 32;
    while tile > 8 && tile * (2 * size + 2) * 4 > memory {
        tile /= 2;
    }
    tile as u32
}

/// Pairs of a sequence and a head that one dispatch of the kernels takes: a driver ends dispatches
/// that take seconds.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) fn pairs_at_a_time(time: usize, size: usize) -> usize {
    /// Multiplications and additions of one dispatch at most, as in gemm.
    const DISPATCH_OPERATIONS: u64 = 1 << 35;
    // At most four products of time * time / 2 * size in a pass. In browsers a usize has 32 bits.
    let operations = 4 * (time as u64).pow(2) * size as u64;
    (DISPATCH_OPERATIONS / operations.max(1)).clamp(1, 65_535) as usize
}
