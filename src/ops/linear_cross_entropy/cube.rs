use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Slice;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{CrossEntropy, CrossEntropyInputs};
use crate::ops::shared::cube::math::{LEAST, exp, ln};
use crate::ops::shared::cube::product::Epilogue;
use crate::ops::shared::cube::reduce::{group_max, group_sum};
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, Gpu, each, elem, launch};
use crate::ops::shared::{join, split};

/// Invocations that share a row of logits.
const UNITS: u32 = 256;

/// The loss of each row of logits, `-log softmax(logits)[target]`, and in place of the logits its
/// gradient, `(p - onehot) * scale`. A workgroup for each row: one pass for maximum and sum, one to
/// write. Columns from `vocab` on are padding: never predicted, gradient zero. `first` is the row
/// of targets and losses that row 0 of the logits is. If `scaled`, the scale is `loss_scale[0]`. A target
/// from `vocab` on is none: the loss of its row and the gradient are zero.
#[cube(launch_unchecked)]
fn softmax_loss<T: Float>(
    logits: &mut [T],
    targets: &[u32],
    losses: &mut [f32],
    loss_scale: &[f32],
    rows: usize,
    width: usize,
    vocab: usize,
    first: usize,
    scale: f32,
    #[comptime] gradient: bool,
    #[comptime] scaled: bool,
    #[define(T)] _elem: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let base = row * width;
    // Each invocation's own maximum, and its sum relative to that.
    let mut largest = LEAST.runtime();
    let mut sum = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < vocab {
        let logit = f32::cast_from(logits[base + column]);
        if logit > largest {
            sum *= exp(largest - logit);
            largest = logit;
        }
        sum += exp(logit - largest);
        column += UNITS as usize;
    }
    let row_max = group_max(largest, UNITS);
    let row_sum = group_sum(sum * exp(largest - row_max), UNITS);
    let goal = targets[first + row] as usize;
    if UNIT_POS == 0 {
        let mut loss = 0.0f32;
        if goal < vocab {
            loss = ln(row_sum) - (f32::cast_from(logits[base + goal]) - row_max);
        }
        losses[first + row] = loss;
    }
    if comptime!(gradient) {
        // The target's logit is read above before its place is written below.
        sync_cube();
        sync_storage();
        let scale = if comptime!(scaled) { loss_scale[0] } else { scale };
        let factor = scale / row_sum;
        let mut column = UNIT_POS as usize;
        while column < width {
            let mut d = 0.0f32;
            if column < vocab && goal < vocab {
                d = exp(f32::cast_from(logits[base + column]) - row_max) * factor
                    - select(column == goal, scale, 0.0f32);
            }
            logits[base + column] = T::cast_from(d);
            column += UNITS as usize;
        }
    }
}

/// `scale` times the sum of all elements, in one workgroup.
#[cube(launch_unchecked)]
fn scaled_sum(x: &[f32], sum: &mut [f32], elements: usize, scale: f32) {
    let mut own = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < elements {
        own += x[i];
        i += ELEMENTWISE as usize;
    }
    let total = group_sum(own, ELEMENTWISE);
    if UNIT_POS == 0 {
        sum[0] = scale * total;
    }
}

/// The logits of each chunk become their gradient in place.
pub(super) fn compute(
    kernels: &CubeKernels,
    inputs: CrossEntropyInputs<Gpu>,
) -> (CubeTensor, Option<(CubeTensor, Vec<CubeTensor>)>) {
    let CrossEntropyInputs { x, wte, loss_scale, targets, loss, with_gradients } = inputs;
    let ([n, c], CrossEntropy { vocab, chunk, scale }) = (x.shape().dims(), loss);
    let (wte, shard_rows) = join::<Gpu>(wte);
    let wte = kernels.cast(wte, &x);
    let gradients = with_gradients.then(|| {
        let dx = kernels.queue.empty_of([n, c], x.dtype);
        (dx, kernels.queue.empty(wte.shape()))
    });
    let wte_transposed = Gpu::float_transpose(wte.clone());
    let losses = kernels.queue.empty([n]);
    let targets = kernels.queue.upload(&targets);
    for first in (0..n).step_by(chunk) {
        let x = Gpu::float_slice(x.clone(), &[Slice::from(first..n.min(first + chunk))]);
        let whole = Epilogue::default();
        let logits = kernels.product(x.clone(), wte_transposed.clone(), x.dtype, whole);
        let [rows, width] = logits.shape().dims();
        launch!(
            kernels,
            each(rows, UNITS),
            softmax_loss(
                &[&logits, &targets, &losses, loss_scale.as_ref()],
                rows,
                width,
                vocab,
                first,
                scale,
                with_gradients,
                loss_scale.is_some(),
                elem(&logits),
            )
        );
        if let Some((dx, dwte)) = &gradients {
            let of_chunk = Epilogue { accumulate: first > 0, ..Epilogue::default() };
            kernels.product_into(Gpu::float_transpose(logits.clone()), x, dwte, of_chunk);
            let of_chunk = Epilogue { first_row: first, ..Epilogue::default() };
            kernels.product_into(logits, wte.clone(), dx, of_chunk);
        }
    }
    let total = kernels.queue.empty([1]);
    launch!(kernels, each(1, ELEMENTWISE), scaled_sum(&[&losses, &total], n, scale));
    (total, gradients.map(|(dx, dwte)| (dx, split::<Gpu>(dwte, &shard_rows))))
}
