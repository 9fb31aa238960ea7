//! The output head and its loss: flex's matrix products, with loops over the rows of logits.

use std::sync::Arc;

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Slice;
use rayon::prelude::*;

use super::CrossEntropy;
use crate::ops::shared::cpu::{
    CpuTensor, contiguous, from_values, math, rows_per_task, values, values_mut, vectorised,
};
use crate::ops::shared::{Shards, split};

pub(super) fn forward(
    x: CpuTensor,
    wte: Shards<Flex>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> CpuTensor {
    let w = real_rows(wte.join().0, &loss);
    let sum: f64 = chunks(&targets, &loss)
        .map(|(from, targets)| {
            let mut logits = logits(&x, &w, from, targets.len());
            softmax_rows(&mut logits, targets, None)
        })
        .sum();
    scaled(sum, &loss)
}

pub(super) fn gradients(
    x: CpuTensor,
    wte: Shards<Flex>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
    loss_scale: Option<CpuTensor>,
) -> (CpuTensor, CpuTensor, Vec<CpuTensor>) {
    let scale = loss_scale.map_or(loss.scale, |state| values(&contiguous(state))[0]);
    let (wte, shard_rows) = wte.join();
    let [padded, c] = wte.shape().dims();
    let w = real_rows(wte, &loss);
    let mut sum = 0.0;
    let mut dx = Vec::new();
    let mut dw: Option<CpuTensor> = None;
    for (from, targets) in chunks(&targets, &loss) {
        let mut d = logits(&x, &w, from, targets.len());
        sum += softmax_rows(&mut d, targets, Some(scale));
        let x = rows(&x, from, targets.len());
        let part = Flex::float_matmul(Flex::float_transpose(d.clone()), x);
        dw = Some(match dw {
            Some(dw) => Flex::float_add(dw, part),
            None => part,
        });
        dx.push(Flex::float_matmul(d, w.clone()));
    }
    let dx = match dx.len() {
        1 => dx.remove(0),
        _ => Flex::float_cat(dx, 0),
    };
    let mut padded_dw = vec![0.0f32; padded * c];
    if let Some(dw) = dw {
        let dw = contiguous(dw);
        padded_dw[..loss.vocab * c].copy_from_slice(values(&dw));
    }
    let dw = from_values(padded_dw, [padded, c].into());
    (scaled(sum, &loss), dx, split::<Flex>(dw, &shard_rows))
}

/// The rows of the vocabulary: padding takes no part in the softmax.
fn real_rows(wte: CpuTensor, loss: &CrossEntropy) -> CpuTensor {
    Flex::float_slice(wte, &[Slice::from(0..loss.vocab)])
}

fn chunks<'a>(targets: &'a [u32], loss: &CrossEntropy) -> impl Iterator<Item = (usize, &'a [u32])> {
    let chunk = loss.chunk;
    targets.chunks(chunk).enumerate().map(move |(i, targets)| (i * chunk, targets))
}

fn rows(x: &CpuTensor, from: usize, len: usize) -> CpuTensor {
    Flex::float_slice(x.clone(), &[Slice::from(from..from + len)])
}

fn logits(x: &CpuTensor, w: &CpuTensor, from: usize, len: usize) -> CpuTensor {
    Flex::float_matmul(rows(x, from, len), Flex::float_transpose(w.clone()))
}

fn scaled(sum: f64, loss: &CrossEntropy) -> CpuTensor {
    from_values(vec![(sum * f64::from(loss.scale)) as f32], [1].into())
}

/// The sum of the rows' losses. With `scale`, also overwrites the logits with their gradient
/// `(p - onehot) * scale`.
fn softmax_rows(logits: &mut CpuTensor, targets: &[u32], scale: Option<f32>) -> f64 {
    let [n, vocab] = logits.shape().dims();
    let rows = rows_per_task(n, vocab);
    let losses: Vec<f64> = values_mut(logits)
        .par_chunks_mut(rows * vocab)
        .zip(targets.par_chunks(rows))
        .flat_map_iter(|(logits, targets)| {
            vectorised(|| {
                let rows = logits.chunks_mut(vocab).zip(targets);
                rows.map(|(row, &target)| softmax_row(row, target as usize, scale))
                    .collect::<Vec<f64>>()
            })
        })
        .collect();
    losses.iter().sum()
}

#[inline(always)]
fn softmax_row(row: &mut [f32], target: usize, scale: Option<f32>) -> f64 {
    let max = math::max(row);
    let at_target = row[target] - max;
    for logit in row.iter_mut() {
        *logit = math::exp(*logit - max);
    }
    let sum = math::sum_by(row.len(), |i| row[i]);
    if let Some(scale) = scale {
        let factor = scale / sum;
        for p in row.iter_mut() {
            *p *= factor;
        }
        row[target] -= scale;
    }
    f64::from(sum.ln() - at_target)
}
