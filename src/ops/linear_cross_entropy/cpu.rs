use std::ops::Range;
use std::sync::Arc;

use burn::backend::{Flex, TensorMetadata};
use pulp::Simd;
use rayon::prelude::*;

use super::{CrossEntropy, IGNORED};
use crate::ops::shared::cpu::product::{Factor, add_product, product};
use crate::ops::shared::cpu::{
    CpuTensor, contiguous, from_values, memory, rows_per_task, values, vector, vectorised,
};
use crate::ops::shared::{join, split};

pub(super) fn forward(
    x: CpuTensor,
    wte: Vec<CpuTensor>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> CpuTensor {
    let [_, c] = x.shape().dims();
    let (x, wte) = (contiguous(x), contiguous(join::<Flex>(wte).0));
    sum_losses(values(&x), Factor::new(values(&wte), [loss.vocab, c]), &targets, &loss, None)
}

pub(super) fn gradients(
    x: CpuTensor,
    wte: Vec<CpuTensor>,
    loss_scale: Option<CpuTensor>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> (CpuTensor, (CpuTensor, Vec<CpuTensor>)) {
    let scale = loss_scale.map_or(loss.scale, |state| values(&contiguous(state))[0]);
    let (wte, shard_rows) = join::<Flex>(wte);
    let ([n, c], [padded, _]) = (x.shape().dims(), wte.shape().dims());
    let (x_tensor, wte) = (contiguous(x), contiguous(wte));
    let (x, w) = (values(&x_tensor), Factor::new(values(&wte), [loss.vocab, c]));
    let mut dx = memory::take(n * c);
    let mut dw = memory::take(padded * c);
    let (dw_real, padding) = dw.split_at_mut(loss.vocab * c);
    padding.fill(0.0);
    let mut add = |rows: Range<usize>, x: Factor, d: Factor| {
        let multiply = if rows.start == 0 { product } else { add_product };
        multiply(d.transpose(), x, dw_real);
        product(d, w, &mut dx[rows.start * c..rows.end * c]);
    };
    let total = sum_losses(x, w, &targets, &loss, Some((scale, &mut add)));
    memory::recycle([x_tensor]);
    let dw = from_values(dw, [padded, c].into());
    let dx = from_values(dx, [n, c].into());
    (total, (dx, split::<Flex>(dw, &shard_rows)))
}

/// The scale of the gradients, and what takes the rows of a chunk and the gradient of its logits.
type UseGradient<'a> = (f32, &'a mut dyn FnMut(Range<usize>, Factor, Factor));

/// Returns the scaled sum of the losses of all rows of `x` `[n, c]`, chunk by chunk. `w` has no padding,
/// which takes no part in the softmax. With `gradient`, it passes on the rows of each chunk and the
/// gradient of its logits.
fn sum_losses(
    x: &[f32],
    w: Factor,
    targets: &[u32],
    loss: &CrossEntropy,
    mut gradient: Option<UseGradient>,
) -> CpuTensor {
    let (c, vocab) = (w.columns(), loss.vocab);
    let mut sum = 0.0;
    for (index, targets) in targets.chunks(loss.chunk).enumerate() {
        let (first, rows) = (index * loss.chunk, targets.len());
        let x = Factor::new(&x[first * c..], [rows, c]);
        let mut logits = memory::take(rows * vocab);
        product(x, w.transpose(), &mut logits);
        sum +=
            softmax_rows(&mut logits, targets, vocab, gradient.as_ref().map(|(scale, _)| *scale));
        if let Some((_, add)) = &mut gradient {
            add(first..first + rows, x, Factor::new(&logits, [rows, vocab]));
        }
        memory::give(logits);
    }
    from_values(vec![(sum * f64::from(loss.scale)) as f32], [1].into())
}

/// Returns the sum of the rows' losses. With `scale`, also overwrites the logits with their
/// gradient `(p - onehot) * scale`.
fn softmax_rows(logits: &mut [f32], targets: &[u32], vocab: usize, scale: Option<f32>) -> f64 {
    let rows = rows_per_task(targets.len(), vocab);
    let losses: Vec<f64> = logits
        .par_chunks_mut(rows * vocab)
        .zip(targets.par_chunks(rows))
        .flat_map_iter(|(logits, targets)| softmax_block(logits, targets, vocab, scale))
        .collect();
    losses.iter().sum()
}

vectorised! {
    fn softmax_block<S>(simd;
        logits: &mut [f32],
        targets: &[u32],
        vocab: usize,
        scale: Option<f32>,
    ) -> Vec<f64> {
        let rows = logits.chunks_mut(vocab).zip(targets);
        let loss = |(row, &target): (&mut [f32], &u32)| match target {
            IGNORED => {
                row.fill(0.0);
                0.0
            }
            target => softmax_row(simd, row, target as usize, scale),
        };
        rows.map(loss).collect()
    }
}

#[inline(always)]
fn softmax_row<S: Simd>(simd: S, row: &mut [f32], target: usize, scale: Option<f32>) -> f64 {
    let max = vector::max(simd, row);
    let at_target = row[target] - max;
    let shift = simd.splat_f32s(max);
    vector::map(simd, row, [], |logit, []| vector::exp(simd, simd.sub_f32s(logit, shift)));
    let sum = vector::sum(simd, [row], |[p]| p);
    if let Some(scale) = scale {
        let factor = simd.splat_f32s(scale / sum);
        vector::map(simd, row, [], |p, []| simd.mul_f32s(p, factor));
        row[target] -= scale;
    }
    f64::from(libm::logf(sum) - at_target)
}
