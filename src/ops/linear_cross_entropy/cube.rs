use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Slice;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{CrossEntropy, CrossEntropyInputs};
use crate::ops::shared::cube::math::{exp, ln};
use crate::ops::shared::cube::product::Epilogue;
use crate::ops::shared::cube::reduce::{group_sum, softmax_sum};
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, Gpu, each, elem, launch};
use crate::ops::shared::{join, split};

/// Invocations that share a row of logits.
const UNITS: u32 = 256;

/// The loss of each row of logits, `-log softmax(logits)[target]`, and in place of the logits its
/// gradient, `(p - onehot) * scale`. A workgroup for each row of `width` vectors: one pass for maximum and
/// sum, one to write. Columns from `vocab` on are padding: never predicted, gradient zero. `first` is the row
/// of targets and losses that row 0 of the logits is. If `scaled`, the scale is `loss_scale[0]`. A target
/// from `vocab` on is none: the loss of its row and the gradient are zero.
///
/// A row would fit into the registers of a workgroup, but then loads, exponentials and stores would follow one
/// another: there are so many exponentials that they take as long as the memory.
#[cube(launch_unchecked)]
fn softmax_loss<T: Float, N: Size>(
    logits: &mut [Vector<T, N>],
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
    let of_row = softmax_sum(&*logits, base, vocab, UNITS);
    let goal = targets[first + row] as usize;
    if UNIT_POS == 0 {
        let mut loss = 0.0f32;
        if goal < vocab {
            let values = Vector::<f32, N>::cast_from(logits[base + goal / N::value()]);
            let mut logit = values.extract(0usize);
            #[unroll]
            for j in 1..N::value() {
                logit = select(goal % N::value() == j, values.extract(j), logit);
            }
            loss = ln(of_row.sum) - (logit - of_row.largest);
        }
        losses[first + row] = loss;
    }
    if comptime!(gradient) {
        // The target's logit is read above before its place is written below.
        sync_cube();
        sync_storage();
        let scale = if comptime!(scaled) { loss_scale[0] } else { scale };
        let factor = scale / of_row.sum;
        let mut i = UNIT_POS as usize;
        while i < width {
            let values = Vector::<f32, N>::cast_from(logits[base + i]);
            let mut d = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for j in 0..N::value() {
                let column = i * N::value() + j;
                let share = exp(values.extract(j) - of_row.largest) * factor;
                let slope = share - select(column == goal, scale, 0.0f32);
                d.insert(j, select(column < vocab && goal < vocab, slope, 0.0f32));
            }
            logits[base + i] = Vector::cast_from(d);
            i += UNITS as usize;
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
    let CrossEntropyInputs { x, wte, loss_scale, targets, loss, with_gradients, trained } = inputs;
    let ([n, c], CrossEntropy { vocab, chunk, scale }) = (x.shape().dims(), loss);
    let (wte, shard_rows) = join::<Gpu>(wte);
    let wte = kernels.cast(wte, &x);
    let gradients = with_gradients.then(|| {
        let dx = kernels.queue.empty_of([n, c], x.dtype);
        (dx, trained.then(|| kernels.queue.empty(wte.shape())))
    });
    let wte_transposed = Gpu::float_transpose(wte.clone());
    let losses = kernels.queue.empty([n]);
    let targets = kernels.queue.upload(&targets);
    for first in (0..n).step_by(chunk) {
        let x = Gpu::float_slice(x.clone(), &[Slice::from(first..n.min(first + chunk))]);
        let whole = Epilogue::default();
        let logits = kernels.product(x.clone(), wte_transposed.clone(), x.dtype, whole);
        let [rows, width] = logits.shape().dims();
        let vector = kernels.vector(logits.dtype, width);
        launch!(
            kernels,
            each(rows, UNITS),
            softmax_loss(
                vector,
                &[&logits, &targets, &losses, loss_scale.as_ref()],
                rows,
                width / vector,
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
            if let Some(dwte) = dwte {
                kernels.product_into(Gpu::float_transpose(logits.clone()), x, dwte, of_chunk);
            }
            let of_chunk = Epilogue { first_row: first, ..Epilogue::default() };
            kernels.product_into(logits, wte.clone(), dx, of_chunk);
        }
    }
    let total = kernels.queue.empty([1]);
    launch!(kernels, each(1, ELEMENTWISE), scaled_sum(&[&losses, &total], n, scale));
    let of_shards = |dwte| split::<Gpu>(dwte, &shard_rows);
    (total, gradients.map(|(dx, dwte)| (dx, dwte.map_or_else(Vec::new, of_shards))))
}
