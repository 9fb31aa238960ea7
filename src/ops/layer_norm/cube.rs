use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Slice;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{LayerNormBackwardInputs, LayerNormInputs, WeightGradientsInputs};
use crate::ops::shared::cube::reduce::group_sum;
use crate::ops::shared::cube::{CubeKernels, Gpu, each, elem, launch};
use crate::ops::shared::kernels::owned;
use crate::plan::NORM_GROUPS;

/// Invocations that share a row.
const UNITS: u32 = 128;

/// `y = (x - mean) * rstd * gamma + beta`, a workgroup for each row, which it holds in registers. An RMS
/// norm has no mean.
#[cube(launch_unchecked)]
fn normalise<T: Float>(
    x: &[T],
    gamma: &[f32],
    beta: &[f32],
    y: &mut [T],
    mean: &mut [f32],
    rstd: &mut [f32],
    rows: usize,
    eps: f32,
    #[comptime] width: usize,
    #[comptime] has_beta: bool,
    #[comptime] rms: bool,
    #[define(T)] _elem: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let units = UNITS as usize;
    let columns = comptime!(width.div_ceil(UNITS as usize));
    let lane = UNIT_POS as usize;
    let base = row * width;
    let size = width as f32;
    let mut values = Array::<f32>::new(columns);
    let mut sum = 0.0f32;
    for i in 0..columns {
        let column = i * units + lane;
        if column < width {
            values[i] = f32::cast_from(x[base + column]);
            sum += values[i];
        }
    }
    let mut mu = 0.0f32;
    if comptime!(!rms) {
        mu = group_sum(sum, UNITS) / size;
    }
    // The variance from centred values: sum of squares less square of sum cancels.
    let mut squares = 0.0f32;
    for i in 0..columns {
        if i * units + lane < width {
            let centred = values[i] - mu;
            values[i] = centred;
            squares += centred * centred;
        }
    }
    let scale = 1.0f32 / (group_sum(squares, UNITS) / size + eps).sqrt();
    for i in 0..columns {
        let column = i * units + lane;
        if column < width {
            let mut value = values[i] * scale * gamma[column];
            if comptime!(has_beta) {
                value += beta[column];
            }
            y[base + column] = T::cast_from(value);
        }
    }
    if lane == 0 {
        if comptime!(!rms) {
            mean[row] = mu;
        }
        rstd[row] = scale;
    }
}

/// `dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat))` with `g = dy * gamma`, added to what `dx`
/// holds if `accumulates`, and the sums over `rows_per_group` rows that make up d-gamma and d-beta,
/// `[groups, 2, width]`. A workgroup goes through its rows in order and keeps both sums in registers. If
/// `rms`, neither x nor g has its mean subtracted.
#[cube(launch_unchecked)]
fn gradients<T: Float>(
    dy: &[T],
    x: &[T],
    gamma: &[f32],
    mean: &[f32],
    rstd: &[f32],
    dx: &mut [T],
    partial: &mut [f32],
    rows: usize,
    rows_per_group: usize,
    #[comptime] width: usize,
    #[comptime] accumulates: bool,
    #[comptime] rms: bool,
    #[define(T)] _elem: ElemType,
) {
    let units = UNITS as usize;
    let columns = comptime!(width.div_ceil(UNITS as usize));
    let lane = UNIT_POS as usize;
    let size = width as f32;
    let group = CUBE_POS;
    let first = group * rows_per_group;
    let last = min(first + rows_per_group, rows);
    let mut d_gamma = Array::<f32>::new(columns);
    let mut d_beta = Array::<f32>::new(columns);
    let mut x_hat = Array::<f32>::new(columns);
    let mut g = Array::<f32>::new(columns);
    for i in 0..columns {
        d_gamma[i] = 0.0f32;
        d_beta[i] = 0.0f32;
    }
    for row in first..last {
        let base = row * width;
        let mut mu = 0.0f32;
        if comptime!(!rms) {
            mu = mean[row];
        }
        let scale = rstd[row];
        let mut sum_g = 0.0f32;
        let mut sum_gx = 0.0f32;
        for i in 0..columns {
            let column = i * units + lane;
            if column < width {
                let d = f32::cast_from(dy[base + column]);
                let normal = (f32::cast_from(x[base + column]) - mu) * scale;
                let slope = d * gamma[column];
                x_hat[i] = normal;
                g[i] = slope;
                sum_g += slope;
                sum_gx += slope * normal;
                d_gamma[i] += d * normal;
                d_beta[i] += d;
            }
        }
        let mut mean_g = 0.0f32;
        if comptime!(!rms) {
            mean_g = group_sum(sum_g, UNITS) / size;
        }
        let mean_gx = group_sum(sum_gx, UNITS) / size;
        for i in 0..columns {
            let column = i * units + lane;
            if column < width {
                let mut slope = scale * (g[i] - mean_g - x_hat[i] * mean_gx);
                if comptime!(accumulates) {
                    slope += f32::cast_from(dx[base + column]);
                }
                dx[base + column] = T::cast_from(slope);
            }
        }
    }
    for i in 0..columns {
        let column = i * units + lane;
        if column < width {
            partial[2 * group * width + column] = d_gamma[i];
            partial[(2 * group + 1) * width + column] = d_beta[i];
        }
    }
}

pub(super) fn forward(
    kernels: &CubeKernels,
    inputs: LayerNormInputs<Gpu>,
) -> (CubeTensor, (Option<CubeTensor>, CubeTensor)) {
    let LayerNormInputs { x, gamma, beta, form } = inputs;
    let [n, c] = x.shape().dims();
    let y = kernels.queue.empty_of([n, c], x.dtype);
    let mean = (!form.is_rms()).then(|| kernels.queue.empty([n, 1]));
    let rstd = kernels.queue.empty([n, 1]);
    launch!(
        kernels,
        each(n, UNITS),
        normalise(
            &[&x, &gamma, beta.as_ref(), &y, mean.as_ref(), &rstd],
            n,
            form.eps(),
            c,
            beta.is_some(),
            form.is_rms(),
            elem(&x),
        )
    );
    (y, (mean, rstd))
}

pub(super) fn backward(
    kernels: &CubeKernels,
    inputs: LayerNormBackwardInputs<Gpu>,
) -> (CubeTensor, CubeTensor) {
    let LayerNormBackwardInputs { dy, x, gamma, statistics, residual, form } = inputs;
    let (mean, rstd) = statistics;
    let [n, c] = x.shape().dims();
    let accumulates = residual.is_some();
    let rows_per_group = n.div_ceil(NORM_GROUPS);
    let groups = n.div_ceil(rows_per_group);
    let dx = residual.map_or_else(|| kernels.queue.empty_of([n, c], x.dtype), owned);
    let partial = kernels.queue.empty([groups, 2, c]);
    launch!(
        kernels,
        each(groups, UNITS),
        gradients(
            &[&dy, &x, &gamma, mean.as_ref(), &rstd, &dx, &partial],
            n,
            rows_per_group,
            c,
            accumulates,
            form.is_rms(),
            elem(&x),
        )
    );
    (dx, partial)
}

pub(super) fn weight_gradients(
    kernels: &CubeKernels,
    inputs: WeightGradientsInputs<Gpu>,
) -> Vec<(CubeTensor, CubeTensor)> {
    let both = inputs.partial.into_iter().map(|partial| {
        let [groups, _, c] = partial.shape().dims();
        let sums = kernels.sum_groups(&partial, groups, 2 * c);
        let of = |first| Gpu::float_slice(sums.clone(), &[Slice::from(first..first + c)]);
        (of(0), of(c))
    });
    both.collect()
}
