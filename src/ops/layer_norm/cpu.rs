//! Layer normalisation as loops over rows.

use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::EPS;
use crate::ops::shared::cpu::{
    CpuTensor, contiguous, from_values, math, memory, rows_per_task, sum_rows, values, vectorised,
};

pub(super) fn forward(
    x: CpuTensor,
    gamma: CpuTensor,
    beta: Option<CpuTensor>,
) -> (CpuTensor, CpuTensor, CpuTensor) {
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
        .for_each(|((y, x), (mean, rstd))| {
            vectorised(|| {
                let rows = y.chunks_mut(c).zip(x.chunks(c)).zip(mean.iter_mut().zip(rstd));
                for ((y, x), (mean, rstd)) in rows {
                    (*mean, *rstd) = statistics(x);
                    for i in 0..c {
                        y[i] = (x[i] - *mean) * *rstd * gamma[i];
                    }
                    if let Some(beta) = beta {
                        math::axpy(y, 1.0, beta);
                    }
                }
            });
        });
    (from_values(y, shape), from_values(mean, [n, 1].into()), from_values(rstd, [n, 1].into()))
}

#[inline(always)]
fn statistics(x: &[f32]) -> (f32, f32) {
    let c = x.len();
    let mean = math::sum_by(c, |i| x[i]) / c as f32;
    let variance = math::sum_by(c, |i| (x[i] - mean) * (x[i] - mean)) / c as f32;
    (mean, 1.0 / (variance + EPS).sqrt())
}

pub(super) fn backward(
    dy: CpuTensor,
    x: CpuTensor,
    gamma: CpuTensor,
    mean: CpuTensor,
    rstd: CpuTensor,
) -> (CpuTensor, CpuTensor, CpuTensor) {
    let shape = x.shape();
    let [n, c] = shape.dims();
    let ([dy_tensor, x_tensor], gamma) = ([dy, x].map(contiguous), contiguous(gamma));
    let (dy, x, gamma) = (values(&dy_tensor), values(&x_tensor), values(&gamma));
    let (mean, rstd) = (values(&mean), values(&rstd));

    let mut dx = memory::take(n * c);
    let rows = rows_per_task(n, c);
    dx.par_chunks_mut(rows * c).enumerate().for_each(|(task, dx)| {
        vectorised(|| {
            for (i, dx) in dx.chunks_mut(c).enumerate() {
                let row = task * rows + i;
                let range = row * c..(row + 1) * c;
                input_gradient(dx, &dy[range.clone()], &x[range], gamma, mean[row], rstd[row]);
            }
        });
    });
    // The sums for gamma, then those for beta.
    let mut sums = sum_rows(n, 2 * c, |row, sums| {
        let (dgamma, dbeta) = sums.split_at_mut(c);
        let (dy, x) = (&dy[row * c..][..c], &x[row * c..][..c]);
        for i in 0..c {
            dgamma[i] += dy[i] * (x[i] - mean[row]) * rstd[row];
            dbeta[i] += dy[i];
        }
    });
    let dbeta = sums.split_off(c);
    memory::recycle([dy_tensor, x_tensor]);
    (from_values(dx, shape), from_values(sums, [c].into()), from_values(dbeta, [c].into()))
}

#[inline(always)]
fn input_gradient(dx: &mut [f32], dy: &[f32], x: &[f32], gamma: &[f32], mean: f32, rstd: f32) {
    let c = dx.len();
    let (dy, x, gamma) = (&dy[..c], &x[..c], &gamma[..c]);
    let mean_g = math::sum_by(c, |i| dy[i] * gamma[i]) / c as f32;
    let mean_gx = math::sum_by(c, |i| dy[i] * gamma[i] * (x[i] - mean)) * rstd / c as f32;
    for i in 0..c {
        let x_hat = (x[i] - mean) * rstd;
        dx[i] = (dy[i] * gamma[i] - mean_g - x_hat * mean_gx) * rstd;
    }
}
