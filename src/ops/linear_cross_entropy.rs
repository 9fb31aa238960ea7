//! The output head and its loss in one op, a chunk of rows at a time.
//!
//! Stock cross-entropy keeps about three `[n, vocab]` buffers: 9 GiB for 16 x 1024 tokens of
//! GPT-2. Here the logits of `chunk` rows exist at a time, and their gradient goes into `dx` and
//! `dw` at once, so that nothing of size `[n, vocab]` is kept for the backward pass.

use std::sync::Arc;

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, IndexingUpdateOp, Slice, Tensor, TensorData};

use super::{OpsMode, Tables, split};

/// What the loss is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Tokens that exist; rows of `wte` from here on are padding and are never predicted.
    pub vocab: usize,
    /// Rows of logits that exist at a time, at least 1.
    pub chunk: usize,
    /// What the sum of the rows' losses is multiplied with: one over the tokens of the global
    /// batch makes micro-batches add up to the mean.
    pub scale: f32,
}

/// `scale * sum_i(log_sum_exp(x_i wte^T) - x_i . wte[target_i])`.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
    Autodiff
)]
pub trait LinearCrossEntropy: Backend {
    /// The differentiable op: `x` `[n, c]`, `wte` `[padded vocab, c]` in tables, `n` targets; gives
    /// `[1]`. Targets are below `vocab`: whoever reads them has checked it.
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        #[extension_type] wte: Tables<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let _ = mode;
        reference::<Self>(x, joined::<Self>(wte).0, &targets, &loss, None)
    }

    /// The loss `[1]` with `dx` `[n, c]` and `dwte` as `wte` is, computed while the logits are
    /// there.
    fn linear_cross_entropy_gradients(
        x: FloatTensor<Self>,
        #[extension_type] wte: Tables<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Vec<FloatTensor<Self>>) {
        let _ = mode;
        reference_gradients::<Self>(x, wte, &targets, &loss)
    }
}

/// The scaled sum of the cross-entropies of `x wte^T` `[n, vocab]` against `n` targets, as `[1]`.
/// `wte` is the rows of the tokens in one to [`MOST_TABLES`](super::MOST_TABLES) tensors.
pub fn linear_cross_entropy(
    x: Tensor<2>,
    wte: Vec<Tensor<2>>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
    mode: OpsMode,
) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::linear_cross_entropy(
        x.into_dispatch(),
        Tables::new(wte.into_iter().map(Tensor::into_dispatch)),
        targets,
        loss,
        mode,
    ))
}

/// Tables as one tensor, and how many rows each has. A copy where there are several: only kernels
/// take them as they are.
pub(super) fn joined<B: Backend>(tables: Tables<B>) -> (FloatTensor<B>, Vec<usize>) {
    let mut tables = tables.into_vec();
    let rows = tables.iter().map(|table| super::shape::<B>(table).dims::<2>()[0]).collect();
    let whole = match tables.len() {
        1 => tables.remove(0),
        _ => B::float_cat(tables, 0),
    };
    (whole, rows)
}

pub(super) fn cut<B: Backend>(whole: FloatTensor<B>, rows: &[usize]) -> Vec<FloatTensor<B>> {
    if rows.len() == 1 {
        return vec![whole];
    }
    let mut first = 0;
    let table = |&rows: &usize| {
        let range = first..first + rows;
        first += rows;
        B::float_slice(whole.clone(), &[Slice::from(range)])
    };
    rows.iter().map(table).collect()
}

#[derive(Debug)]
struct CrossEntropyBackward;

/// `x` and the tables.
const PARENTS: usize = 1 + super::MOST_TABLES;

impl<B: LinearCrossEntropy> Backward<B, PARENTS> for CrossEntropyBackward {
    /// `dx` and `dwte` for a gradient of one.
    type State = (FloatTensor<B>, Vec<FloatTensor<B>>);

    fn backward(
        self,
        ops: Ops<Self::State, PARENTS>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dloss = B::float_reshape(grads.consume::<B>(&ops.node), [1, 1].into());
        let (dx, dwte) = ops.state;
        for (parent, grad) in ops.parents.into_iter().zip([dx].into_iter().chain(dwte)) {
            if let Some(parent) = parent {
                // Activations may be of other numbers than the loss.
                let dloss = B::float_cast(dloss.clone(), grad.dtype().into());
                grads.register::<B>(parent.id, B::float_mul(grad, dloss));
            }
        }
    }
}

impl<B: LinearCrossEntropy, C: CheckpointStrategy> LinearCrossEntropy for Autodiff<B, C> {
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        wte: Tables<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let Tables { first, second, third, fourth } = wte;
        let (second, second_node) = split::<B, C>(second, &x);
        let (third, third_node) = split::<B, C>(third, &x);
        let (fourth, fourth_node) = split::<B, C>(fourth, &x);
        let (first, first_node) = first.into_parts();
        let (x, x_node) = x.into_parts();
        let wte = Tables { first, second, third, fourth };
        let nodes = [x_node, first_node, second_node, third_node, fourth_node];
        match CrossEntropyBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let (value, dx, dwte) =
                    B::linear_cross_entropy_gradients(x, wte, targets, loss, mode);
                prep.finish((dx, dwte), value)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::linear_cross_entropy(x, wte, targets, loss, mode))
            }
        }
    }
}

/// Gradients under construction: `dx` chunk by chunk, and the sum of `dw` `[vocab, c]`.
pub(super) struct Grads<B: Backend> {
    dx: Vec<FloatTensor<B>>,
    dw: FloatTensor<B>,
}

pub(super) fn reference<B: Backend>(
    x: FloatTensor<B>,
    wte: FloatTensor<B>,
    targets: &[u32],
    loss: &CrossEntropy,
    mut grads: Option<&mut Grads<B>>,
) -> FloatTensor<B> {
    let device = super::device::<B>(&x);
    let w = B::float_slice(wte, &[Slice::from(0..loss.vocab)]);
    let mut total: Option<FloatTensor<B>> = None;
    for (index, targets) in targets.chunks(loss.chunk).enumerate() {
        let from = index * loss.chunk;
        let rows = [Slice::from(from..from + targets.len())];
        let x = B::float_slice(x.clone(), &rows);
        let ids: Vec<i32> = targets.iter().map(|&id| id as i32).collect();
        let ids = B::int_from_data(TensorData::new(ids, [targets.len(), 1]), &device);

        let logits = B::float_matmul(x.clone(), B::float_transpose(w.clone()));
        let max = B::float_max_dim(logits.clone(), 1);
        let shifted = B::float_sub(logits, max);
        let at_target = B::float_gather(1, shifted.clone(), ids.clone());
        let exp = B::float_exp(shifted);
        let sum = B::float_sum_dim(exp.clone(), 1);
        let row_losses = B::float_sub(B::float_log(sum.clone()), at_target);
        let part = B::float_sum(row_losses);
        total = Some(match total {
            Some(total) => B::float_add(total, part),
            None => part,
        });
        if let Some(grads) = &mut grads {
            let d = logits_gradient::<B>(B::float_div(exp, sum), ids, loss.scale);
            let dw = B::float_matmul(B::float_transpose(d.clone()), x);
            grads.dw = B::float_add(grads.dw.clone(), dw);
            grads.dx.push(B::float_matmul(d, w.clone()));
        }
    }
    let total = total.unwrap_or_else(|| B::float_zeros([1].into(), &device, FloatDType::F32));
    B::float_mul_scalar(total, loss.scale.into())
}

/// `(p - onehot) * scale`.
fn logits_gradient<B: Backend>(p: FloatTensor<B>, ids: IntTensor<B>, scale: f32) -> FloatTensor<B> {
    let [n, _] = super::shape::<B>(&p).dims();
    let device = super::device::<B>(&p);
    let minus_one = B::float_full([n, 1].into(), (-scale).into(), &device, FloatDType::F32);
    let scaled = B::float_mul_scalar(p, scale.into());
    B::float_scatter(1, scaled, ids, minus_one, IndexingUpdateOp::Add)
}

pub(super) fn reference_gradients<B: Backend>(
    x: FloatTensor<B>,
    wte: Tables<B>,
    targets: &[u32],
    loss: &CrossEntropy,
) -> (FloatTensor<B>, FloatTensor<B>, Vec<FloatTensor<B>>) {
    let device = super::device::<B>(&x);
    let (wte, rows) = joined::<B>(wte);
    let [padded, c] = super::shape::<B>(&wte).dims();
    let dw = B::float_zeros([loss.vocab, c].into(), &device, FloatDType::F32);
    let mut grads = Grads { dx: Vec::new(), dw };
    let value = reference::<B>(x, wte, targets, loss, Some(&mut grads));
    let Grads { dx, dw } = grads;
    let dw = if padded == loss.vocab {
        dw
    } else {
        let pad = B::float_zeros([padded - loss.vocab, c].into(), &device, FloatDType::F32);
        B::float_cat(vec![dw, pad], 0)
    };
    (value, B::float_cat(dx, 0), cut::<B>(dw, &rows))
}

/// The loss by tensor ops, for backends whose kernels do not take it.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) fn reference_loss<B: Backend>(
    x: FloatTensor<B>,
    wte: Tables<B>,
    targets: &[u32],
    loss: &CrossEntropy,
) -> FloatTensor<B> {
    reference::<B>(x, joined::<B>(wte).0, targets, loss, None)
}
