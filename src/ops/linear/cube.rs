//! The linear layer in cubecl's language: activation, bias and residual are separate passes around
//! the matrix products.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::Activation;
use crate::config::Gelu;
use crate::gpu::queue::Workgroups;
use crate::ops::shared::cube::math::{erf, exp};
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, argument, cover, elem, launch};
use crate::ops::shared::kernels::{contiguous, elements};
use crate::ops::shared::{NORMAL_PEAK, TANH_CUBIC, TANH_SCALE};

/// Groups of rows in the first stage of a bias gradient; the second stage adds their sums.
const GROUPS: usize = 64;

/// `exp(-2 u)` of the tanh form, `u` bounded where the logistic function of `2 u` is 0 or 1 in f32:
/// the exp of some drivers overflows to NaN.
#[cube]
fn exp_minus_2u(x: f32) -> f32 {
    let u = x * (TANH_SCALE + comptime!(TANH_SCALE * TANH_CUBIC) * x * x);
    exp(clamp(-2.0f32 * u, -80.0f32, 80.0f32))
}

/// The normal distribution's share below `x`.
#[cube]
fn normal_share(x: f32) -> f32 {
    0.5f32 * (1.0f32 + erf(x * comptime!(std::f32::consts::FRAC_1_SQRT_2)))
}

#[cube]
fn gelu(x: f32, #[comptime] exact: bool) -> f32 {
    if comptime!(exact) {
        x * normal_share(x)
    } else {
        // (1 + tanh(u)) / 2 is the logistic function of 2 u, which does not cancel.
        x / (1.0f32 + exp_minus_2u(x))
    }
}

#[cube]
fn gelu_derivative(x: f32, #[comptime] exact: bool) -> f32 {
    if comptime!(exact) {
        normal_share(x) + x * NORMAL_PEAK * exp(-0.5f32 * x * x)
    } else {
        // With s the logistic function of 2 u: s + 2 x s (1 - s) u'.
        let slope = TANH_SCALE + comptime!(3.0 * TANH_SCALE * TANH_CUBIC) * x * x;
        let e = exp_minus_2u(x);
        let s = 1.0f32 / (1.0f32 + e);
        s + 2.0f32 * x * s * (e * s) * slope
    }
}

#[cube(launch_unchecked)]
fn apply_gelu<T: Float>(
    x: &[T],
    h: &mut [T],
    elements: usize,
    #[comptime] exact: bool,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        h[i] = T::cast_from(gelu(f32::cast_from(x[i]), exact));
    }
}

/// Multiplies `d` by the derivative of GELU at `x`.
#[cube(launch_unchecked)]
fn apply_gelu_derivative<T: Float>(
    x: &[T],
    d: &mut [T],
    elements: usize,
    #[comptime] exact: bool,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let slope = gelu_derivative(f32::cast_from(x[i]), exact);
        d[i] = T::cast_from(f32::cast_from(d[i]) * slope);
    }
}

/// Adds the bias and the residual to `y`, if any.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "one for each buffer and size")]
fn add<T: Float>(
    y: &mut [T],
    bias: &[f32],
    residual: &[T],
    elements: usize,
    width: usize,
    #[comptime] has_bias: bool,
    #[comptime] has_residual: bool,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let mut value = f32::cast_from(y[i]);
        if comptime!(has_bias) {
            value += bias[i % width];
        }
        if comptime!(has_residual) {
            value += f32::cast_from(residual[i]);
        }
        y[i] = T::cast_from(value);
    }
}

/// The sums of `rows_per_group` rows of `d`, in their order: an invocation for each column of each
/// group.
#[cube(launch_unchecked)]
fn sum_columns<T: Float>(
    d: &[T],
    partial: &mut [f32],
    rows: usize,
    width: usize,
    rows_per_group: usize,
    #[define(T)] _elem: ElemType,
) {
    let column = CUBE_POS_X as usize * ELEMENTWISE as usize + UNIT_POS as usize;
    let group = CUBE_POS_Y as usize;
    if column < width {
        let first = group * rows_per_group;
        let last = min(first + rows_per_group, rows);
        let mut sum = 0.0f32;
        for row in first..last {
            sum += f32::cast_from(d[row * width + column]);
        }
        partial[group * width + column] = sum;
    }
}

fn activate(kernels: &CubeKernels, x: &CubeTensor, activation: Activation) -> CubeTensor {
    let Some(form) = activation.form() else { return x.clone() };
    let [n, c] = x.shape().dims();
    let h = kernels.queue.empty_of([n, c], x.dtype);
    let (count, dim) = cover(n * c);
    launch!(apply_gelu(
        kernels.client(),
        count,
        dim,
        argument(x),
        argument(&h),
        n * c,
        form == Gelu::Erf,
        elem(x),
    ));
    h
}

fn column_sums(kernels: &CubeKernels, d: &CubeTensor) -> CubeTensor {
    let [n, c] = d.shape().dims();
    let rows_per_group = n.div_ceil(GROUPS);
    let groups = n.div_ceil(rows_per_group);
    let partial = kernels.queue.empty([groups, c]);
    launch!(sum_columns(
        kernels.client(),
        Workgroups::Plane(c.div_ceil(ELEMENTWISE as usize), groups).count(),
        CubeDim::new_1d(ELEMENTWISE),
        argument(d),
        argument(&partial),
        n,
        c,
        rows_per_group,
        elem(d),
    ));
    kernels.sum_groups(&partial, groups, c)
}

pub(super) fn forward(
    kernels: &CubeKernels,
    x: CubeTensor,
    w: CubeTensor,
    b: Option<CubeTensor>,
    residual: Option<CubeTensor>,
    activation: Activation,
) -> CubeTensor {
    let h = activate(kernels, &contiguous(x), activation);
    let (w, dtype) = (kernels.cast(w, &h), h.dtype);
    let y = kernels.product(h, w, dtype);
    if b.is_none() && residual.is_none() {
        return y;
    }
    let (b, residual) = (b.map(contiguous), residual.map(contiguous));
    let [_, width] = y.shape().dims();
    let (count, dim) = cover(elements(&y));
    launch!(add(
        kernels.client(),
        count,
        dim,
        argument(&y),
        kernels.optional(b.as_ref()),
        kernels.optional(residual.as_ref()),
        elements(&y),
        width,
        b.is_some(),
        residual.is_some(),
        elem(&y),
    ));
    y
}

pub(super) fn backward(
    kernels: &CubeKernels,
    dy: CubeTensor,
    x: CubeTensor,
    w: CubeTensor,
    activation: Activation,
    bias: bool,
) -> (CubeTensor, CubeTensor, Option<CubeTensor>) {
    let (dy, x) = (contiguous(dy), contiguous(x));
    let db = bias.then(|| column_sums(kernels, &dy));
    let h = activate(kernels, &x, activation);
    let dw = kernels.product(CubeBackend::float_transpose(h), dy.clone(), DType::F32);
    let w = CubeBackend::float_transpose(kernels.cast(w, &x));
    let dx = kernels.product(dy, w, x.dtype);
    let Some(form) = activation.form() else { return (dx, dw, db) };
    let (count, dim) = cover(elements(&dx));
    launch!(apply_gelu_derivative(
        kernels.client(),
        count,
        dim,
        argument(&x),
        argument(&dx),
        elements(&dx),
        form == Gelu::Erf,
        elem(&x),
    ));
    (dx, dw, db)
}
