//! The output head and its loss by tensor operations.

use std::sync::Arc;

use burn::backend::Backend;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{FloatDType, IndexingUpdateOp, Slice, TensorData};

use super::{CrossEntropy, IGNORED};
use crate::ops::shared::{Tensors, device, shape, split};

pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    wte: Tensors<B>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> FloatTensor<B> {
    chunked::<B>(x, wte.join().0, &targets, &loss, None)
}

/// The gradients so far: `dx` chunk by chunk, and the sum of `dw` `[vocab, c]`.
struct Grads<B: Backend> {
    dx: Vec<FloatTensor<B>>,
    dw: FloatTensor<B>,
    /// The factor of the gradients, `[1, 1]`.
    scale: FloatTensor<B>,
}

/// The loss of all rows, a chunk at a time; with `grads`, also the gradients.
fn chunked<B: Backend>(
    x: FloatTensor<B>,
    wte: FloatTensor<B>,
    targets: &[u32],
    loss: &CrossEntropy,
    mut grads: Option<&mut Grads<B>>,
) -> FloatTensor<B> {
    let device = device::<B>(&x);
    let w = B::float_slice(wte, &[Slice::from(0..loss.vocab)]);
    let mut total: Option<FloatTensor<B>> = None;
    for (index, targets) in targets.chunks(loss.chunk).enumerate() {
        let from = index * loss.chunk;
        let rows = [Slice::from(from..from + targets.len())];
        let x = B::float_slice(x.clone(), &rows);
        let counted = counted::<B>(targets, &device);
        // Any token will do for a row that does not count.
        let id = |&id: &u32| if id == IGNORED { 0 } else { id as i32 };
        let ids: Vec<i32> = targets.iter().map(id).collect();
        let ids = B::int_from_data(TensorData::new(ids, [targets.len(), 1]), &device);

        let logits = B::float_matmul(x.clone(), B::float_transpose(w.clone()));
        let max = B::float_max_dim(logits.clone(), 1);
        let shifted = B::float_sub(logits, max);
        let at_target = B::float_gather(1, shifted.clone(), ids.clone());
        let exp = B::float_exp(shifted);
        let sum = B::float_sum_dim(exp.clone(), 1);
        let row_losses = B::float_sub(B::float_log(sum.clone()), at_target);
        let part = B::float_sum(masked::<B>(row_losses, counted.as_ref()));
        total = Some(match total {
            Some(total) => B::float_add(total, part),
            None => part,
        });
        if let Some(grads) = &mut grads {
            let d = logits_gradient::<B>(B::float_div(exp, sum), ids, grads.scale.clone());
            let d = masked::<B>(d, counted.as_ref());
            let dw = B::float_matmul(B::float_transpose(d.clone()), x);
            grads.dw = B::float_add(grads.dw.clone(), dw);
            grads.dx.push(B::float_matmul(d, w.clone()));
        }
    }
    let total = total.unwrap_or_else(|| B::float_zeros([1].into(), &device, FloatDType::F32));
    B::float_mul_scalar(total, loss.scale.into())
}

/// Returns one for each target that counts and zero for the others, `[n, 1]`; `None` if all count.
fn counted<B: Backend>(targets: &[u32], device: &B::Device) -> Option<FloatTensor<B>> {
    if !targets.contains(&IGNORED) {
        return None;
    }
    let ones = targets.iter().map(|&id| if id == IGNORED { 0.0_f32 } else { 1.0 });
    let ones: Vec<f32> = ones.collect();
    Some(B::float_from_data(TensorData::new(ones, [targets.len(), 1]), device))
}

/// Returns `x` `[n, _]` with zeros in the rows that do not count.
fn masked<B: Backend>(x: FloatTensor<B>, counted: Option<&FloatTensor<B>>) -> FloatTensor<B> {
    match counted {
        Some(counted) => B::float_mul(x, counted.clone()),
        None => x,
    }
}

/// `(p - onehot) * scale`.
fn logits_gradient<B: Backend>(
    p: FloatTensor<B>,
    ids: IntTensor<B>,
    scale: FloatTensor<B>,
) -> FloatTensor<B> {
    let [n, _] = shape::<B>(&p).dims();
    let device = device::<B>(&p);
    let minus_one = B::float_full([n, 1].into(), (-1f32).into(), &device, FloatDType::F32);
    B::float_mul(B::float_scatter(1, p, ids, minus_one, IndexingUpdateOp::Add), scale)
}

pub(super) fn gradients<B: Backend>(
    x: FloatTensor<B>,
    wte: Tensors<B>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
    loss_scale: Option<FloatTensor<B>>,
) -> (FloatTensor<B>, FloatTensor<B>, Vec<FloatTensor<B>>) {
    let device = device::<B>(&x);
    let (wte, rows) = wte.join();
    let [padded, c] = shape::<B>(&wte).dims();
    let dw = B::float_zeros([loss.vocab, c].into(), &device, FloatDType::F32);
    let scale = match loss_scale {
        Some(state) => B::float_slice(state, &[Slice::from(0..1)]),
        None => B::float_full([1].into(), loss.scale.into(), &device, FloatDType::F32),
    };
    let scale = B::float_reshape(scale, [1, 1].into());
    let mut grads = Grads { dx: Vec::new(), dw, scale };
    let value = chunked::<B>(x, wte, &targets, &loss, Some(&mut grads));
    let Grads { dx, dw, .. } = grads;
    let dw = if padded == loss.vocab {
        dw
    } else {
        let pad = B::float_zeros([padded - loss.vocab, c].into(), &device, FloatDType::F32);
        B::float_cat(vec![dw, pad], 0)
    };
    (value, B::float_cat(dx, 0), split::<B>(dw, &rows))
}
