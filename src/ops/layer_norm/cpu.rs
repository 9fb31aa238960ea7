use std::ops::Range;

use burn::backend::TensorMetadata;
use pulp::Simd;
use rayon::prelude::*;

use super::{LayerNormBackwardInputs, LayerNormInputs, NormForm, WeightGradientsInputs};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, memory, rows_per_task, sum_rows, values, vector,
    vectorised,
};

pub(super) fn forward(
    inputs: LayerNormInputs<Flex>,
) -> (CpuTensor, (Option<CpuTensor>, CpuTensor)) {
    let LayerNormInputs { x, gamma, beta, form } = inputs;
    let shape = x.shape();
    let [n, c] = shape.dims();
    let [x, gamma] = [x, gamma].map(contiguous);
    let [x, gamma] = [&x, &gamma].map(values);
    let beta = beta.map(contiguous);
    let beta = beta.as_ref().map(values);
    let mut y = memory::take(n * c);
    let mut mean = vec![0.0f32; n];
    let mut rstd = vec![0.0f32; n];
    let rows = rows_per_task(n, c);
    y.par_chunks_mut(rows * c)
        .zip(x.par_chunks(rows * c))
        .zip(mean.par_chunks_mut(rows).zip(rstd.par_chunks_mut(rows)))
        .for_each(|((y, x), (mean, rstd))| normalise(y, x, (gamma, beta), form, mean, rstd));
    let [mean, rstd] = [mean, rstd].map(|values| from_values(values, [n, 1].into()));
    (from_values(y, shape), ((!form.is_rms()).then_some(mean), rstd))
}

vectorised! {
    fn normalise<S>(simd;
        y: &mut [f32],
        x: &[f32],
        weights: (&[f32], Option<&[f32]>),
        form: NormForm,
        mean: &mut [f32],
        rstd: &mut [f32],
    ) {
        let (gamma, beta) = weights;
        let c = gamma.len();
        let rows = y.chunks_mut(c).zip(x.chunks(c)).zip(mean.iter_mut().zip(rstd));
        for ((y, x), (mean, rstd)) in rows {
            (*mean, *rstd) = statistics(simd, x, form);
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
fn statistics<S: Simd>(simd: S, x: &[f32], form: NormForm) -> (f32, f32) {
    let c = x.len() as f32;
    let mean = if form.is_rms() { 0.0 } else { vector::sum(simd, [x], |[x]| x) / c };
    let center = simd.splat_f32s(mean);
    let square = |x| simd.mul_f32s(x, x);
    let variance = vector::sum(simd, [x], |[x]| square(simd.sub_f32s(x, center))) / c;
    (mean, 1.0 / (variance + form.eps()).sqrt())
}

pub(super) fn backward(inputs: LayerNormBackwardInputs<Flex>) -> (CpuTensor, CpuTensor) {
    let LayerNormBackwardInputs { dy, x, gamma, statistics, residual, form: _ } = inputs;
    let shape = x.shape();
    let [n, c] = shape.dims();
    let residual = residual.map(contiguous);
    let [dy_tensor, x_tensor, gamma] = [dy, x, gamma].map(contiguous);
    let [dy, x, gamma] = [&dy_tensor, &x_tensor, &gamma].map(values);
    let mean = statistics.0.as_ref().map(values);
    let rstd = values(&statistics.1);

    let mut dx = memory::take(n * c);
    let rows = rows_per_task(n, c);
    let norm_rows = NormRows { dy, x, gamma, mean, rstd };
    let added = residual.as_ref().map(values);
    dx.par_chunks_mut(rows * c).enumerate().for_each(|(task, dx)| {
        let first = task * rows;
        input_gradients(dx, norm_rows, first..first + dx.len() / c, added);
    });
    // The sums for gamma, then those for beta.
    let sums = sum_rows(n, 2 * c, |rows, sums| sum_weight_gradients(norm_rows, rows, sums));
    memory::recycle([dy_tensor, x_tensor].into_iter().chain(residual));
    (from_values(dx, shape), from_values(sums, [1, 2, c].into()))
}

/// Splits the partial sums, which are whole sums here.
pub(super) fn weight_gradients(inputs: WeightGradientsInputs<Flex>) -> Vec<(CpuTensor, CpuTensor)> {
    let both = inputs.partial.into_iter().map(|sums| {
        let [_, _, c] = sums.shape().dims();
        let sums = contiguous(sums);
        let (gamma, beta) = values(&sums).split_at(c);
        let tensor = |values: &[f32]| from_values(values.to_vec(), [c].into());
        (tensor(gamma), tensor(beta))
    });
    both.collect()
}

#[derive(Clone, Copy)]
struct NormRows<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    gamma: &'a [f32],
    /// `None` for an RMS norm.
    mean: Option<&'a [f32]>,
    rstd: &'a [f32],
}

impl<'a> NormRows<'a> {
    /// Row `row` of `dy` and `x`, its mean and its reciprocal standard deviation.
    #[inline(always)]
    fn row(&self, row: usize) -> (&'a [f32], &'a [f32], Option<f32>, f32) {
        let part = row * self.gamma.len()..(row + 1) * self.gamma.len();
        (&self.dy[part.clone()], &self.x[part], self.mean.map(|mean| mean[row]), self.rstd[row])
    }
}

vectorised! {
    fn input_gradients<S>(simd;
        dx: &mut [f32],
        inputs: NormRows<'_>,
        rows: Range<usize>,
        added: Option<&[f32]>,
    ) {
        let c = inputs.gamma.len();
        for (dx, row) in dx.chunks_mut(c).zip(rows) {
            let (dy, x, mean, rstd) = inputs.row(row);
            input_gradient(simd, dx, [dy, inputs.gamma, x], mean, rstd);
            if let Some(added) = added {
                let added = &added[row * c..(row + 1) * c];
                vector::map(simd, dx, [added], |dx, [added]| simd.add_f32s(added, dx));
            }
        }
    }
}

vectorised! {
    /// Adds to the sums for gamma, then to those for beta.
    fn sum_weight_gradients<S>(simd; inputs: NormRows<'_>, rows: Range<usize>, sums: &mut [f32]) {
        let (dgamma, dbeta) = sums.split_at_mut(inputs.gamma.len());
        for (dy, x, mean, rstd) in rows.map(|row| inputs.row(row)) {
            let [mean, rstd] = [mean.unwrap_or(0.0), rstd].map(|value| simd.splat_f32s(value));
            vector::map(simd, dgamma, [dy, x], |sum, [dy, x]| {
                let normal = simd.mul_f32s(simd.sub_f32s(x, mean), rstd);
                simd.mul_add_e_f32s(dy, normal, sum)
            });
            vector::map(simd, dbeta, [dy], |sum, [dy]| simd.add_f32s(sum, dy));
        }
    }
}

#[inline(always)]
fn input_gradient<S: Simd>(
    simd: S,
    dx: &mut [f32],
    rows: [&[f32]; 3],
    mean: Option<f32>,
    rstd: f32,
) {
    let c = dx.len() as f32;
    let [dy, gamma, _] = rows;
    let center = simd.splat_f32s(mean.unwrap_or(0.0));
    let mean_g = match mean {
        Some(_) => vector::sum(simd, [dy, gamma], |[dy, gamma]| simd.mul_f32s(dy, gamma)) / c,
        None => 0.0,
    };
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
