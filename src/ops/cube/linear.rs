//! The linear layer: what is around the matrix products, which are burn's own.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::math::{erf, exp};
use super::{ELEMENTWISE, Kernels, argument, contiguous, cover, elements, owned};
use crate::config::Gelu;
use crate::gpu::queue::Workgroups;
use crate::ops::Activation;
use crate::ops::linear::{NORMAL_PEAK, TANH_CUBIC, TANH_SCALE};

/// Parts into which the rows of a bias gradient are cut: each leaves its own sums for the second
/// stage.
const GROUPS: usize = 64;

/// `exp(-2 u)` of the tanh form, `u` bounded where the logistic function of `2 u` is 0 or 1 in f32:
/// some drivers' exp overflows to what is no number.
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
fn activate(x: &[f32], h: &mut [f32], elements: usize, #[comptime] exact: bool) {
    let i = ABSOLUTE_POS;
    if i < elements {
        h[i] = gelu(x[i], exact);
    }
}

/// Multiplies `d` with the activation's derivative at `x`.
#[cube(launch_unchecked)]
fn activate_backward(x: &[f32], d: &mut [f32], elements: usize, #[comptime] exact: bool) {
    let i = ABSOLUTE_POS;
    if i < elements {
        d[i] *= gelu_derivative(x[i], exact);
    }
}

/// Adds bias and residual to `y`, what there is of them.
#[cube(launch_unchecked)]
fn add(
    y: &mut [f32],
    bias: &[f32],
    residual: &[f32],
    elements: usize,
    width: usize,
    #[comptime] has_bias: bool,
    #[comptime] has_residual: bool,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let mut value = y[i];
        if comptime!(has_bias) {
            value += bias[i % width];
        }
        if comptime!(has_residual) {
            value += residual[i];
        }
        y[i] = value;
    }
}

/// The sums of `rows_per_group` rows of `d`, in their order: an invocation for each column of each
/// group.
#[cube(launch_unchecked)]
fn column_sums(d: &[f32], partial: &mut [f32], rows: usize, width: usize, rows_per_group: usize) {
    let column = CUBE_POS_X as usize * ELEMENTWISE as usize + UNIT_POS as usize;
    let group = CUBE_POS_Y as usize;
    if column < width {
        let first = group * rows_per_group;
        let last = min(first + rows_per_group, rows);
        let mut sum = 0.0f32;
        for row in first..last {
            sum += d[row * width + column];
        }
        partial[group * width + column] = sum;
    }
}

impl Kernels {
    fn activate(&self, x: &CubeTensor, activation: Activation) -> CubeTensor {
        let Some(form) = activation.form() else { return x.clone() };
        let [n, c] = x.shape().dims();
        let h = self.queue.empty([n, c]);
        let (count, dim) = cover(n * c);
        unsafe {
            activate::launch_unchecked(
                self.client(),
                count,
                dim,
                argument(x),
                argument(&h),
                n * c,
                form == Gelu::Erf,
            );
        }
        h
    }

    fn column_sums(&self, d: &CubeTensor) -> CubeTensor {
        let [n, c] = d.shape().dims();
        let rows_per_group = n.div_ceil(GROUPS);
        let groups = n.div_ceil(rows_per_group);
        let partial = self.queue.empty([groups, c]);
        unsafe {
            column_sums::launch_unchecked(
                self.client(),
                Workgroups::Plane(c.div_ceil(ELEMENTWISE as usize), groups).count(),
                CubeDim::new_1d(ELEMENTWISE),
                argument(d),
                argument(&partial),
                n,
                c,
                rows_per_group,
            );
        }
        self.sum_groups(&partial, groups, c)
    }

    pub fn linear(
        &self,
        x: CubeTensor,
        w: CubeTensor,
        b: Option<CubeTensor>,
        residual: Option<CubeTensor>,
        activation: Activation,
    ) -> CubeTensor {
        let h = self.activate(&contiguous(x), activation);
        let y = owned(CubeBackend::float_matmul(h, w));
        if b.is_none() && residual.is_none() {
            return y;
        }
        let (b, residual) = (b.map(contiguous), residual.map(contiguous));
        let [_, width] = y.shape().dims();
        let (count, dim) = cover(elements(&y));
        unsafe {
            add::launch_unchecked(
                self.client(),
                count,
                dim,
                argument(&y),
                self.optional(b.as_ref()),
                self.optional(residual.as_ref()),
                elements(&y),
                width,
                b.is_some(),
                residual.is_some(),
            );
        }
        y
    }

    pub fn linear_backward(
        &self,
        dy: CubeTensor,
        x: CubeTensor,
        w: CubeTensor,
        activation: Activation,
        bias: bool,
    ) -> (CubeTensor, CubeTensor, Option<CubeTensor>) {
        let (dy, x) = (contiguous(dy), contiguous(x));
        let db = bias.then(|| self.column_sums(&dy));
        let h = self.activate(&x, activation);
        let dw = CubeBackend::float_matmul(CubeBackend::float_transpose(h), dy.clone());
        let dx = CubeBackend::float_matmul(dy, CubeBackend::float_transpose(w));
        let Some(form) = activation.form() else { return (dx, dw, db) };
        let dx = owned(dx);
        let (count, dim) = cover(elements(&dx));
        unsafe {
            activate_backward::launch_unchecked(
                self.client(),
                count,
                dim,
                argument(&x),
                argument(&dx),
                elements(&dx),
                form == Gelu::Erf,
            );
        }
        (dx, dw, db)
    }
}
