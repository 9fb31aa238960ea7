use std::ops::Range;

use burn::backend::TensorMetadata;
use pulp::Simd;
use rayon::prelude::*;

use super::EPS;
use crate::ops::shared::cpu::{
    CpuTensor, contiguous, from_values, memory, rows_per_task, sum_rows, values, vector, vectorised,
};

pub(super) fn forward(
    x: CpuTensor,
    gamma: CpuTensor,
    beta: Option<CpuTensor>,
) -> (CpuTensor, (CpuTensor, CpuTensor)) {
    let shape = x.shape();
    let [n, c] = shape.dims();
    let (x, gamma, beta) = (contiguous(x), contiguous(gamma), beta.map(contiguous));
    let (x, gamma, beta) = (values(&x), values(&gamma), beta.as_ref().map(values));
    let mut y = memory::take(n * c);
    let mut mean = vec![0.0f32; n];
    let mut rstd = vec![0.0f32; n];
    let rows = rows_per_task(n, c);
    y.par_chunks_mut(rows * c)
        .zip(x.par_chunks(rows * c))
        .zip(mean.par_chunks_mut(rows).zip(rstd.par_chunks_mut(rows)))
        .for_each(|((y, x), (mean, rstd))| normalise(y, x, (gamma, beta), mean, rstd));
    let statistics = [mean, rstd].map(|values| from_values(values, [n, 1].into()));
    (from_values(y, shape), statistics.into())
}

vectorised! {
    fn normalise<S>(simd;
        y: &mut [f32],
        x: &[f32],
        weights: (&[f32], Option<&[f32]>),
        mean: &mut [f32],
        rstd: &mut [f32],
    ) {
        let (gamma, beta) = weights;
        let c = gamma.len();
        let rows = y.chunks_mut(c).zip(x.chunks(c)).zip(mean.iter_mut().zip(rstd));
        for ((y, x), (mean, rstd)) in rows {
            (*mean, *rstd) = statistics(simd, x);
            let [mean, rstd] = [*mean, *rstd].map(|value| simd.splat_f32s(value));
            let normal = |x| simd.mul_f32s(simd.sub_f32s(x, mean), rstd);
            match beta {
                Some(beta) => vector::map(simd, y, [x, gamma, beta], |_, [x, gamma, beta]| {
                    simd.mul_add_e_f32s(normal(x), gamma, beta)
                }),
                None => vector::map(simd, y, [x, gamma], |_, [x, gamma]| {
                    simd.mul_f32s(normal(x), gamma)
                }),
            }
        }
    }
}

#[inline(always)]
fn statistics<S: Simd>(simd: S, x: &[f32]) -> (f32, f32) {
    let c = x.len() as f32;
    let mean = vector::sum(simd, [x], |[x]| x) / c;
    let center = simd.splat_f32s(mean);
    let square = |x| simd.mul_f32s(x, x);
    let variance = vector::sum(simd, [x], |[x]| square(simd.sub_f32s(x, center))) / c;
    (mean, 1.0 / (variance + EPS).sqrt())
}

pub(super) fn backward(
    dy: CpuTensor,
    x: CpuTensor,
    gamma: CpuTensor,
    (mean, rstd): (CpuTensor, CpuTensor),
    residual: Option<CpuTensor>,
) -> (CpuTensor, CpuTensor) {
    let shape = x.shape();
    let [n, c] = shape.dims();
    let residual = residual.map(contiguous);
    let ([dy_tensor, x_tensor], gamma) = ([dy, x].map(contiguous), contiguous(gamma));
    let (dy, x, gamma) = (values(&dy_tensor), values(&x_tensor), values(&gamma));
    let (mean, rstd) = (values(&mean), values(&rstd));

    let mut dx = memory::take(n * c);
    let rows = rows_per_task(n, c);
    let saved = |rows: Range<usize>| SavedRows {
        dy: &dy[rows.start * c..rows.end * c],
        x: &x[rows.start * c..rows.end * c],
        mean: &mean[rows.clone()],
        rstd: &rstd[rows],
        gamma,
    };
    let added = residual.as_ref().map(values);
    dx.par_chunks_mut(rows * c).enumerate().for_each(|(task, dx)| {
        let rows = task * rows..(task * rows + dx.len() / c);
        let added = added.map(|added| &added[rows.start * c..rows.end * c]);
        input_gradients(dx, saved(rows), added);
    });
    // The sums for gamma, then those for beta.
    let sums = sum_rows(n, 2 * c, |rows, sums| sum_weight_gradients(saved(rows), sums));
    memory::recycle([dy_tensor, x_tensor].into_iter().chain(residual));
    (from_values(dx, shape), from_values(sums, [1, 2, c].into()))
}

/// Splits the partial sums, which are whole sums here.
pub(super) fn weight_gradients(partial: Vec<CpuTensor>) -> Vec<(CpuTensor, CpuTensor)> {
    let both = partial.into_iter().map(|sums| {
        let [_, _, c] = sums.shape().dims();
        let sums = contiguous(sums);
        let (gamma, beta) = values(&sums).split_at(c);
        let tensor = |values: &[f32]| from_values(values.to_vec(), [c].into());
        (tensor(gamma), tensor(beta))
    });
    both.collect()
}

/// Rows of the inputs of the backward pass.
struct SavedRows<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    gamma: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
}

impl<'a> SavedRows<'a> {
    /// Row by row: `dy`, `x`, the mean and the reciprocal standard deviation.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (&'a [f32], &'a [f32], f32, f32)> {
        let c = self.gamma.len();
        let statistics = self.mean.iter().zip(self.rstd);
        let rows = self.dy.chunks(c).zip(self.x.chunks(c)).zip(statistics);
        rows.map(|((dy, x), (&mean, &rstd))| (dy, x, mean, rstd))
    }
}

vectorised! {
    /// Adds `added`, if any.
    fn input_gradients<S>(simd;
        dx: &mut [f32],
        saved: SavedRows<'_>,
        added: Option<&[f32]>,
    ) {
        let c = saved.gamma.len();
        for (row, (dx, (dy, x, mean, rstd))) in dx.chunks_mut(c).zip(saved.iter()).enumerate() {
            input_gradient(simd, dx, [dy, saved.gamma, x], mean, rstd);
            if let Some(added) = added {
                let added = &added[row * c..(row + 1) * c];
                vector::map(simd, dx, [added], |dx, [added]| simd.add_f32s(added, dx));
            }
        }
    }
}

vectorised! {
    /// Adds to the sums for gamma, then to those for beta.
    fn sum_weight_gradients<S>(simd; saved: SavedRows<'_>, sums: &mut [f32]) {
        let c = saved.gamma.len();
        let (dgamma, dbeta) = sums.split_at_mut(c);
        for (dy, x, mean, rstd) in saved.iter() {
            let [mean, rstd] = [mean, rstd].map(|value| simd.splat_f32s(value));
            vector::map(simd, dgamma, [dy, x], |sum, [dy, x]| {
                let normal = simd.mul_f32s(simd.sub_f32s(x, mean), rstd);
                simd.mul_add_e_f32s(dy, normal, sum)
            });
            vector::map(simd, dbeta, [dy], |sum, [dy]| simd.add_f32s(sum, dy));
        }
    }
}

#[inline(always)]
fn input_gradient<S: Simd>(simd: S, dx: &mut [f32], rows: [&[f32]; 3], mean: f32, rstd: f32) {
    let c = dx.len() as f32;
    let [dy, gamma, _] = rows;
    let center = simd.splat_f32s(mean);
    let mean_g = vector::sum(simd, [dy, gamma], |[dy, gamma]| simd.mul_f32s(dy, gamma)) / c;
    let mean_gx = vector::sum(simd, rows, |[dy, gamma, x]| {
        simd.mul_f32s(simd.mul_f32s(dy, gamma), simd.sub_f32s(x, center))
    }) * rstd
        / c;
    let [mean_g, mean_gx, rstd] = [mean_g, mean_gx, rstd].map(|value| simd.splat_f32s(value));
    vector::map(simd, dx, rows, |_, [dy, gamma, x]| {
        let normal = simd.mul_f32s(simd.sub_f32s(x, center), rstd);
        let g = simd.sub_f32s(simd.mul_f32s(dy, gamma), mean_g);
        simd.mul_f32s(simd.sub_f32s(g, simd.mul_f32s(normal, mean_gx)), rstd)
    });
}
