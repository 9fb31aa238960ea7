use burn::backend::TensorMetadata;
use pulp::Simd;
use rayon::prelude::*;

use super::{CrossEntropyInputs, IGNORED};
use crate::ops::shared::cpu::product::{Factor, multiply};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, memory, rows_per_task, values, vector, vectorised,
};
use crate::ops::shared::{join, split};

/// The rows of `wte` that are padding take no part in the softmax.
pub(super) fn compute(
    inputs: CrossEntropyInputs<Flex>,
) -> (CpuTensor, Option<(CpuTensor, Vec<CpuTensor>)>) {
    let CrossEntropyInputs { x, wte, loss_scale, targets, loss, with_gradients, trained } = inputs;
    let scale = loss_scale.map_or(loss.scale, |state| values(&contiguous(state))[0]);
    let (wte, shard_rows) = join::<Flex>(wte);
    let vocab = loss.vocab;
    let ([n, c], [padded, _]) = (x.shape().dims(), wte.shape().dims());
    let [x_tensor, wte] = [x, wte].map(contiguous);
    let x = values(&x_tensor);
    let w = Factor::new(values(&wte), [vocab, c]);
    let mut gradients = with_gradients.then(|| {
        let dx = memory::take(n * c);
        let dw = trained.then(|| {
            let mut dw = memory::take(padded * c);
            dw[vocab * c..].fill(0.0);
            dw
        });
        (dx, dw)
    });
    let mut sum = 0.0;
    for (index, targets) in targets.chunks(loss.chunk).enumerate() {
        let first = index * loss.chunk;
        let rows = targets.len();
        let x = Factor::new(&x[first * c..], [rows, c]);
        let mut logits = memory::take(rows * vocab);
        multiply(x, w.transpose(), &mut logits, false);
        sum += softmax_rows(&mut logits, targets, vocab, with_gradients.then_some(scale));
        if let Some((dx, dw)) = &mut gradients {
            let d = Factor::new(&logits, [rows, vocab]);
            if let Some(dw) = dw {
                multiply(d.transpose(), x, &mut dw[..vocab * c], first > 0);
            }
            multiply(d, w, &mut dx[first * c..(first + rows) * c], false);
        }
        memory::give(logits);
    }
    memory::recycle([x_tensor]);
    let gradients = gradients.map(|(dx, dw)| {
        let of_shards = |dw| split::<Flex>(from_values(dw, [padded, c].into()), &shard_rows);
        (from_values(dx, [n, c].into()), dw.map_or_else(Vec::new, of_shards))
    });
    (from_values(vec![(sum * f64::from(loss.scale)) as f32], [1].into()), gradients)
}

/// Returns the sum of the losses. With `scale`, logits become their gradient `(p - onehot) * scale`.
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
        let mut losses = Vec::with_capacity(targets.len());
        // A loop: the closure of an iterator would be compiled for the oldest instruction set.
        for (row, &target) in logits.chunks_mut(vocab).zip(targets) {
            if target == IGNORED {
                row.fill(0.0);
                losses.push(0.0);
            } else {
                losses.push(softmax_row(simd, row, target as usize, scale));
            }
        }
        losses
    }
}

#[inline(always)]
fn softmax_row<S: Simd>(simd: S, row: &mut [f32], target: usize, scale: Option<f32>) -> f64 {
    let max = vector::max(simd, row);
    let at_target = row[target] - max;
    let sum = vector::exponentials(simd, row, max);
    if let Some(scale) = scale {
        let factor = simd.splat_f32s(scale / sum);
        vector::map(simd, row, [], |p, []| simd.mul_f32s(p, factor));
        row[target] -= scale;
    }
    f64::from(libm::logf(sum) - at_target)
}
