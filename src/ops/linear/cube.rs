//! The linear layer in cubecl's language: products, and passes for activations and the bias gradient.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{Activation, LinearBackwardInputs, LinearInputs};
use crate::config::Gelu;
use crate::gpu::queue::Workgroups;
use crate::ops::shared::cube::gelu::{gelu, sigmoid};
use crate::ops::shared::cube::product::Epilogue;
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, Gpu, cover, elem, launch};
use crate::ops::shared::kernels::contiguous;

/// Groups of rows in the first stage of a bias gradient; the second stage adds their sums.
const GROUPS: usize = 64;

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

/// `h = silu(gate) * up`, of rows of gate and up, `width` elements each.
#[cube(launch_unchecked)]
fn apply_swiglu<T: Float>(
    x: &[T],
    h: &mut [T],
    elements: usize,
    width: usize,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let at = i + i / width * width;
        let gate = f32::cast_from(x[at]);
        h[i] = T::cast_from(gate * sigmoid(gate) * f32::cast_from(x[at + width]));
    }
}

/// The gradients of gate and up from the gradient of `h`. The derivative of silu is `s + gate s (1 - s)` with
/// `s` the logistic function of the gate.
#[cube(launch_unchecked)]
fn swiglu_gradients<T: Float>(
    dh: &[T],
    x: &[T],
    dx: &mut [T],
    elements: usize,
    width: usize,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let at = i + i / width * width;
        let d = f32::cast_from(dh[i]);
        let gate = f32::cast_from(x[at]);
        let up = f32::cast_from(x[at + width]);
        let s = sigmoid(gate);
        // 1 - s, without cancellation.
        let rest = sigmoid(-gate);
        dx[at] = T::cast_from(d * up * (s + gate * s * rest));
        dx[at + width] = T::cast_from(d * gate * s);
    }
}

/// The sums of each `rows_per_group` rows of `d`, in order: an invocation for a column of a group.
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

fn activate(kernels: &CubeKernels, x: &CubeTensor, activation: Option<Activation>) -> CubeTensor {
    let [n, c] = x.shape().dims();
    match activation {
        None => x.clone(),
        Some(Activation::Gelu(form)) => {
            let h = kernels.queue.empty_of([n, c], x.dtype);
            let exact = form == Gelu::Erf;
            launch!(kernels, cover(n * c), apply_gelu(&[x, &h], n * c, exact, elem(x)));
            h
        }
        Some(Activation::SwiGlu) => {
            let elements = n * c / 2;
            let width = c / 2;
            let h = kernels.queue.empty_of([n, width], x.dtype);
            launch!(kernels, cover(elements), apply_swiglu(&[x, &h], elements, width, elem(x)));
            h
        }
    }
}

fn column_sums(kernels: &CubeKernels, d: &CubeTensor) -> CubeTensor {
    let [n, c] = d.shape().dims();
    let rows_per_group = n.div_ceil(GROUPS);
    let groups = n.div_ceil(rows_per_group);
    let partial = kernels.queue.empty([groups, c]);
    let count = Workgroups::Plane(c.div_ceil(ELEMENTWISE as usize), groups).count();
    launch!(
        kernels,
        (count, CubeDim::new_1d(ELEMENTWISE)),
        sum_columns(&[d, &partial], n, c, rows_per_group, elem(d))
    );
    kernels.sum_groups(&partial, groups, c)
}

pub(super) fn forward(kernels: &CubeKernels, inputs: LinearInputs<Gpu>) -> CubeTensor {
    let LinearInputs { x, w, b, residual, activation } = inputs;
    let h = activate(kernels, &contiguous(x), activation);
    let w = kernels.cast(w, &h);
    let dtype = h.dtype;
    let [b, residual] = [b, residual].map(|addend| addend.map(contiguous));
    let epilogue =
        Epilogue { bias: b.as_ref(), residual: residual.as_ref(), ..Epilogue::default() };
    kernels.product(h, w, dtype, epilogue)
}

/// Returns the gradients of the weight and the bias from the transposed input `h` `[in, n]` and `dy` `[n, out]`.
fn parameter_gradients(
    kernels: &CubeKernels,
    h: CubeTensor,
    dy: &CubeTensor,
    bias: bool,
) -> (CubeTensor, Option<CubeTensor>) {
    #[cfg(feature = "cuda")]
    if let Some((dw, db)) = bias.then(|| kernels.product_and_sums(&h, dy)).flatten() {
        return (dw, Some(db));
    }
    let db = bias.then(|| column_sums(kernels, dy));
    (kernels.product(h, dy.clone(), DType::F32, Epilogue::default()), db)
}

pub(super) fn backward(
    kernels: &CubeKernels,
    inputs: LinearBackwardInputs<Gpu>,
) -> (CubeTensor, CubeTensor, Option<CubeTensor>) {
    let LinearBackwardInputs { dy, x, w, activation, bias } = inputs;
    let [dy, x] = [dy, x].map(contiguous);
    let h = Gpu::float_transpose(activate(kernels, &x, activation));
    let (dw, db) = parameter_gradients(kernels, h, &dy, bias);
    let w = Gpu::float_transpose(kernels.cast(w, &x));
    if activation == Some(Activation::SwiGlu) {
        let dh = kernels.product(dy, w, x.dtype, Epilogue::default());
        let [n, width] = dh.shape().dims();
        let dx = kernels.queue.empty_of(x.shape(), x.dtype);
        launch!(
            kernels,
            cover(n * width),
            swiglu_gradients(&[&dh, &x, &dx], n * width, width, elem(&x))
        );
        return (dx, dw, db);
    }
    let derivative = match activation {
        Some(Activation::Gelu(form)) => Some((form, &x)),
        _ => None,
    };
    let epilogue = Epilogue { derivative, ..Epilogue::default() };
    let dx = kernels.product(dy, w, x.dtype, epilogue);
    (dx, dw, db)
}
