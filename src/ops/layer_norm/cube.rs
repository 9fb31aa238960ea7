use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{LayerNormBackwardInputs, LayerNormInputs, WeightGradientsInputs};
use crate::ops::shared::cube::rows::{RowLayout, UNITS, in_row, team_index, team_lane, team_sums};
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};
use crate::ops::shared::kernels::{contiguous, owned};
use crate::plan::NORM_GROUPS;

/// `y = (x - mean) * rstd * gamma + beta`, a team for each row, which it holds in registers. An RMS norm
/// has no mean.
#[cube(launch_unchecked)]
fn normalise<T: Float, N: Size>(
    x: &[Vector<T, N>],
    gamma: &[Vector<f32, N>],
    beta: &[Vector<f32, N>],
    y: &mut [Vector<T, N>],
    mean: &mut [f32],
    rstd: &mut [f32],
    rows: usize,
    eps: f32,
    #[comptime] layout: RowLayout,
    #[comptime] has_beta: bool,
    #[comptime] rms: bool,
    #[define(T)] _elem: ElemType,
) {
    let own = comptime!(layout.own());
    let team = comptime!(layout.team);
    let lane = team_lane(layout);
    let index = CUBE_POS * comptime!(layout.teams()) + team_index(layout);
    // Teams without a row of their own read the last one: all invocations take part in the sums.
    let row = min(index, rows - 1);
    let base = row * comptime!(layout.vectors);
    let vector = N::value().comptime();
    let size = comptime!((layout.vectors * vector) as f32);
    let mut values = Array::<Vector<f32, N>>::new(own);
    let mut sums = Array::<f32>::new(1usize);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    #[unroll(layout.unrolls())]
    for i in 0..own {
        let column = i * team + lane;
        if in_row(column, layout) {
            let value = Vector::<f32, N>::cast_from(x[base + column]);
            values[i] = value;
            sum += value;
        }
    }
    let mut mu = 0.0f32;
    if comptime!(!rms) {
        sums[0] = sum.vector_sum();
        team_sums(&mut sums, 1usize, layout);
        mu = sums[0] / size;
    }
    // The variance from centred values: sum of squares less square of sum cancels.
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll(layout.unrolls())]
    for i in 0..own {
        if in_row(i * team + lane, layout) {
            let centred = values[i] - Vector::new(mu);
            values[i] = centred;
            squares += centred * centred;
        }
    }
    sums[0] = squares.vector_sum();
    team_sums(&mut sums, 1usize, layout);
    let scale = 1.0f32 / (sums[0] / size + eps).sqrt();
    if index < rows {
        #[unroll(layout.unrolls())]
        for i in 0..own {
            let column = i * team + lane;
            if in_row(column, layout) {
                let mut value = values[i] * Vector::new(scale) * gamma[column];
                if comptime!(has_beta) {
                    value += beta[column];
                }
                y[base + column] = Vector::cast_from(value);
            }
        }
        if lane == 0 {
            if comptime!(!rms) {
                mean[row] = mu;
            }
            rstd[row] = scale;
        }
    }
}

/// `dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat))` with `g = dy * gamma`, added to what `dx`
/// holds if `accumulates`, and the sums over `rows_per_group` rows that make up d-gamma and d-beta,
/// `[groups, 2, width]`. If `rms`, neither x nor g has its mean subtracted, and there is no d-beta.
///
/// A team takes every `teams`-th row of its workgroup's, and keeps both sums in registers. It loads its next
/// row before it adds up the one it has, and a row past the end as the last one, because loads under a
/// condition wait for one another.
#[cube(launch_unchecked)]
fn gradients<T: Float, N: Size>(
    dy: &[Vector<T, N>],
    x: &[Vector<T, N>],
    gamma: &[Vector<f32, N>],
    mean: &[f32],
    rstd: &[f32],
    dx: &mut [Vector<T, N>],
    partial: &mut [Vector<f32, N>],
    rows: usize,
    rows_per_group: usize,
    #[comptime] layout: RowLayout,
    #[comptime] accumulates: bool,
    #[comptime] rms: bool,
    #[define(T)] _elem: ElemType,
) {
    let own = comptime!(layout.own());
    let team = comptime!(layout.team);
    let teams = comptime!(layout.teams());
    let vectors = comptime!(layout.vectors);
    let lane = team_lane(layout);
    let nth = team_index(layout);
    let vector = N::value().comptime();
    let size = comptime!((layout.vectors * vector) as f32);
    let group = CUBE_POS;
    let first = group * rows_per_group;
    let last = min(first + rows_per_group, rows);

    let mut d_gamma = Array::<Vector<f32, N>>::new(own);
    let mut d_beta = Array::<Vector<f32, N>>::new(own);
    let mut next_dy = Array::<Vector<T, N>>::new(own);
    let mut next_x = Array::<Vector<T, N>>::new(own);
    let mut next_dx = Array::<Vector<T, N>>::new(own);
    let mut own_dy = Array::<Vector<f32, N>>::new(own);
    let mut own_x = Array::<Vector<f32, N>>::new(own);
    let mut own_dx = Array::<Vector<T, N>>::new(own);
    let mut sums = Array::<f32>::new(2usize);

    let mut row = first + nth;
    let mut at = min(row, last - 1);
    let mut mu = 0.0f32;
    if comptime!(!rms) {
        mu = mean[at];
    }
    let mut scale = rstd[at];
    #[unroll(layout.unrolls())]
    for i in 0..own {
        d_gamma[i] = Vector::new(0.0f32);
        d_beta[i] = Vector::new(0.0f32);
        let column = i * team + lane;
        if in_row(column, layout) {
            next_dy[i] = dy[at * vectors + column];
            next_x[i] = x[at * vectors + column];
            if comptime!(accumulates) {
                next_dx[i] = dx[at * vectors + column];
            }
        }
    }
    for _ in 0..rows_per_group.div_ceil(teams) {
        let present = row < last;
        let base = at * vectors;
        let row_scale = scale;
        let row_mu = mu;
        at = min(row + teams, last - 1);
        if comptime!(!rms) {
            mu = mean[at];
        }
        scale = rstd[at];
        // x becomes x_hat.
        #[unroll(layout.unrolls())]
        for i in 0..own {
            let column = i * team + lane;
            if in_row(column, layout) {
                own_dy[i] = Vector::cast_from(next_dy[i]);
                let value = Vector::<f32, N>::cast_from(next_x[i]);
                own_x[i] = (value - Vector::new(row_mu)) * Vector::new(row_scale);
                next_dy[i] = dy[at * vectors + column];
                next_x[i] = x[at * vectors + column];
                if comptime!(accumulates) {
                    own_dx[i] = next_dx[i];
                    next_dx[i] = dx[at * vectors + column];
                }
            }
        }
        let mut sum_g = Vector::<f32, N>::new(0.0f32);
        let mut sum_gx = Vector::<f32, N>::new(0.0f32);
        #[unroll(layout.unrolls())]
        for i in 0..own {
            let column = i * team + lane;
            if in_row(column, layout) {
                let d = own_dy[i];
                let slope = d * gamma[column];
                sum_g += slope;
                sum_gx += slope * own_x[i];
                own_dy[i] = slope;
                if present {
                    d_gamma[i] += d * own_x[i];
                    if comptime!(!rms) {
                        d_beta[i] += d;
                    }
                }
            }
        }
        sums[0] = sum_gx.vector_sum();
        sums[1] = sum_g.vector_sum();
        team_sums(&mut sums, comptime!(if rms { 1usize } else { 2usize }), layout);
        let mean_gx = sums[0] / size;
        let mut mean_g = 0.0f32;
        if comptime!(!rms) {
            mean_g = sums[1] / size;
        }
        if present {
            #[unroll(layout.unrolls())]
            for i in 0..own {
                let column = i * team + lane;
                if in_row(column, layout) {
                    let centred = own_dy[i] - Vector::new(mean_g) - own_x[i] * Vector::new(mean_gx);
                    let mut slope = Vector::new(row_scale) * centred;
                    if comptime!(accumulates) {
                        slope += Vector::cast_from(own_dx[i]);
                    }
                    dx[base + column] = Vector::cast_from(slope);
                }
            }
        }
        row += teams;
    }

    // The teams' sums, in the order of the teams.
    let units = comptime!(UNITS);
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(2 * UNITS));
    let unit = UNIT_POS as usize;
    #[unroll(layout.unrolls())]
    for i in 0..own {
        shared[unit] = d_gamma[i];
        shared[units + unit] = d_beta[i];
        sync_cube();
        let column = i * team + lane;
        #[unroll]
        for part in 0..2usize {
            // Two teams work at once, if there are two.
            if nth == comptime!(part % layout.teams()) && in_row(column, layout) {
                let mut sum = shared[part * units + lane];
                for other in 1..teams {
                    sum += shared[part * units + other * team + lane];
                }
                partial[(2 * group + part) * vectors + column] = sum;
            }
        }
        sync_cube();
    }
}

/// The sums over the groups, in their order: an invocation for each column of gamma and beta.
#[cube(launch_unchecked)]
fn sum_groups(partial: &[f32], gamma: &mut [f32], beta: &mut [f32], groups: usize, width: usize) {
    let column = ABSOLUTE_POS;
    if column < 2 * width {
        let mut sum = 0.0f32;
        for group in 0..groups {
            sum += partial[group * 2 * width + column];
        }
        if column < width {
            gamma[column] = sum;
        } else {
            beta[column - width] = sum;
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
    let vector = kernels.vector(x.dtype, c);
    let layout = RowLayout::new(&kernels.queue, c, vector);
    launch!(
        kernels,
        layout.team_each(n),
        normalise(
            vector,
            &[&x, &gamma, beta.as_ref(), &y, mean.as_ref(), &rstd],
            n,
            form.eps(),
            layout,
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
    let vector = kernels.vector(x.dtype, c);
    let layout = RowLayout::new(&kernels.queue, c, vector);
    launch!(
        kernels,
        layout.workgroup_each(groups),
        gradients(
            vector,
            &[&dy, &x, &gamma, mean.as_ref(), &rstd, &dx, &partial],
            n,
            rows_per_group,
            layout,
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
    let partial: Vec<CubeTensor> = inputs.partial.into_iter().map(contiguous).collect();
    let vectors = |partial: &CubeTensor| {
        let [gamma, beta] = [(); 2].map(|()| kernels.queue.empty([partial.shape()[2]]));
        (gamma, beta)
    };
    let gradients: Vec<_> = partial.iter().map(vectors).collect();
    #[cfg(feature = "cuda")]
    if super::cuda::sum_groups(kernels, &partial, &gradients) {
        return gradients;
    }
    for (partial, (gamma, beta)) in partial.iter().zip(&gradients) {
        let [groups, _, width] = partial.shape().dims();
        launch!(kernels, cover(2 * width), sum_groups(&[partial, gamma, beta], groups, width));
    }
    gradients
}
