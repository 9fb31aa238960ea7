//! The rotation row by row: the sines of a position are computed once for all of its heads.

use burn::backend::TensorMetadata;
use pulp::Simd;
use rayon::prelude::*;

use super::{RotaryBackwardInputs, RotaryInputs, RotaryShape, cosine_and_sine};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, memory, rows_per_task, sum_rows, values, values_mut,
    vector, vectorised,
};

/// The heads of a row, and what happens to them.
#[derive(Clone, Copy)]
struct RowHeads<'a> {
    shape: RotaryShape,
    width: usize,
    size: usize,
    turns: &'a [u32],
    /// The weights of q and of k.
    norms: Option<[&'a [f32]; 2]>,
}

impl<'a> RowHeads<'a> {
    fn new(
        shape: RotaryShape,
        width: usize,
        turns: &'a [u32],
        norms: Option<&'a [CpuTensor; 2]>,
    ) -> Self {
        let norms = norms.map(|norms| norms.each_ref().map(values));
        Self { shape, width, size: 2 * turns.len(), turns, norms }
    }

    /// Returns true if a rotated head is one of keys.
    #[inline(always)]
    fn is_key(&self, head: usize) -> bool {
        head >= self.shape.heads
    }

    /// Runs `task` on parts of the rows, with the number of the first row.
    fn each(&self, rows: &mut [f32], task: impl Fn(&mut [f32], usize) + Sync) {
        let count = rows_per_task(rows.len() / self.width, self.width);
        let parts = rows.par_chunks_mut(count * self.width).enumerate();
        parts.for_each(|(index, rows)| task(rows, index * count));
    }
}

pub(super) fn forward(inputs: RotaryInputs<Flex>) -> CpuTensor {
    let RotaryInputs { qkv, norms, shape } = inputs;
    let mut qkv = contiguous(qkv);
    let norms = norms.map(|(q, k)| [q, k].map(contiguous));
    let width = qkv.shape()[1];
    let turns = shape.turns(shape.size(width));
    let heads = RowHeads::new(shape, width, &turns, norms.as_ref());
    heads.each(values_mut(&mut qkv), |rows, first| {
        normalise(rows, heads);
        rotate(rows, heads, first, false);
    });
    qkv
}

pub(super) fn backward(inputs: RotaryBackwardInputs<Flex>) -> (CpuTensor, Option<CpuTensor>) {
    let RotaryBackwardInputs { dqkv, qkv, norms, shape } = inputs;
    let mut dqkv = contiguous(dqkv);
    let norms = norms.map(|(q, k)| [q, k].map(contiguous));
    let [n, width] = dqkv.shape().dims();
    let turns = shape.turns(shape.size(width));
    let heads = RowHeads::new(shape, width, &turns, norms.as_ref());
    heads.each(values_mut(&mut dqkv), |rows, first| rotate(rows, heads, first, true));
    let Some(norms) = heads.norms else { return (dqkv, None) };
    let qkv = contiguous(qkv.expect("qkv as the op took it"));
    let d = values(&dqkv);
    let x = values(&qkv);
    let size = heads.size;
    let sums = sum_rows(n, 2 * size, |rows, sums| {
        let part = rows.start * width..rows.end * width;
        sum_weight_gradients(&d[part.clone()], &x[part], heads, sums);
    });
    heads.each(values_mut(&mut dqkv), |d, first| {
        input_gradients(d, &x[first * width..], heads, norms);
    });
    memory::recycle([qkv]);
    (dqkv, Some(from_values(sums, [1, 2, size].into())))
}

vectorised! {
    /// Rotates q and k by the angles of the rows from `first` on, or back.
    fn rotate<S>(_simd; rows: &mut [f32], heads: RowHeads<'_>, first: usize, back: bool) {
        let RowHeads { shape, width, size, turns, .. } = heads;
        let mut angles = vec![[0.0; 2]; turns.len()];
        for (row, values) in rows.chunks_mut(width).enumerate() {
            let position = ((first + row) % shape.time) as u32;
            for (angle, turns) in angles.iter_mut().zip(turns) {
                *angle = cosine_and_sine(position.wrapping_mul(*turns));
                angle[1] = if back { -angle[1] } else { angle[1] };
            }
            for head in values.chunks_mut(size).take(shape.rotated()) {
                let (low, high) = head.split_at_mut(turns.len());
                for ((low, high), [cosine, sine]) in low.iter_mut().zip(high).zip(&angles) {
                    (*low, *high) = (*low * cosine - *high * sine, *high * cosine + *low * sine);
                }
            }
        }
    }
}

#[inline(always)]
fn rstd<S: Simd>(simd: S, x: &[f32], eps: f32) -> f32 {
    let squares = vector::sum(simd, [x], |[x]| simd.mul_f32s(x, x));
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

vectorised! {
    fn normalise<S>(simd; rows: &mut [f32], heads: RowHeads<'_>) {
        let Some(norms) = heads.norms else { return };
        for row in rows.chunks_mut(heads.width) {
            let rotated = row.chunks_mut(heads.size).take(heads.shape.rotated());
            for (head, x) in rotated.enumerate() {
                let rstd = simd.splat_f32s(rstd(simd, x, heads.shape.eps));
                let weight = norms[usize::from(heads.is_key(head))];
                vector::map(simd, x, [weight], |x, [weight]| {
                    simd.mul_f32s(simd.mul_f32s(x, rstd), weight)
                });
            }
        }
    }
}

vectorised! {
    /// Adds to the sums for the weights of q, then to those of k. `d` are gradients of normalised heads.
    fn sum_weight_gradients<S>(simd; d: &[f32], x: &[f32], heads: RowHeads<'_>, sums: &mut [f32]) {
        let RowHeads { shape, width, size, .. } = heads;
        for (d, x) in d.chunks(width).zip(x.chunks(width)) {
            let rotated = d.chunks(size).zip(x.chunks(size)).take(shape.rotated());
            for (head, (d, x)) in rotated.enumerate() {
                let sums = &mut sums[size * usize::from(heads.is_key(head))..][..size];
                let rstd = simd.splat_f32s(rstd(simd, x, shape.eps));
                vector::map(simd, sums, [d, x], |sum, [d, x]| {
                    simd.mul_add_e_f32s(d, simd.mul_f32s(x, rstd), sum)
                });
            }
        }
    }
}

vectorised! {
    /// Turns gradients of normalised heads into those of `x`: `rstd * (g - x_hat * mean(g * x_hat))` with
    /// `g = d * weight`.
    fn input_gradients<S>(simd; d: &mut [f32], x: &[f32], heads: RowHeads<'_>, norms: [&[f32]; 2]) {
        let RowHeads { shape, width, size, .. } = heads;
        for (d, x) in d.chunks_mut(width).zip(x.chunks(width)) {
            let rotated = d.chunks_mut(size).zip(x.chunks(size)).take(shape.rotated());
            for (head, (d, x)) in rotated.enumerate() {
                let weight = norms[usize::from(heads.is_key(head))];
                let rstd = rstd(simd, x, shape.eps);
                let products = vector::sum(simd, [&*d, weight, x], |[d, weight, x]| {
                    simd.mul_f32s(simd.mul_f32s(d, weight), x)
                });
                let mean_gx = simd.splat_f32s(products * rstd / size as f32);
                let rstd = simd.splat_f32s(rstd);
                vector::map(simd, d, [weight, x], |d, [weight, x]| {
                    let inner = simd.mul_f32s(simd.mul_f32s(x, rstd), mean_gx);
                    simd.mul_f32s(simd.sub_f32s(simd.mul_f32s(d, weight), inner), rstd)
                });
            }
        }
    }
}
