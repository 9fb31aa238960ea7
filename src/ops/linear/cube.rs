//! The linear layer in cubecl's language: products, and passes for activations and the bias gradient.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{Activation, FrozenBackwardInputs, LinearBackwardInputs, LinearInputs};
use crate::config::Gelu;
use crate::ops::shared::cube::gelu::{gelu, sigmoid};
use crate::ops::shared::cube::product::Epilogue;
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};
use crate::ops::shared::kernels::contiguous;

#[cube(launch_unchecked)]
fn apply_gelu<T: Float, N: Size>(
    x: &[Vector<T, N>],
    h: &mut [Vector<T, N>],
    vectors: usize,
    #[comptime] exact: bool,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let x = Vector::<f32, N>::cast_from(x[i]);
        let mut value = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..N::value() {
            value.insert(j, gelu(x.extract(j), exact));
        }
        h[i] = Vector::cast_from(value);
    }
}

/// `h = silu(gate) * up`, of rows of gate and up, `width` vectors each.
#[cube(launch_unchecked)]
fn apply_swiglu<T: Float, N: Size>(
    x: &[Vector<T, N>],
    h: &mut [Vector<T, N>],
    vectors: usize,
    width: usize,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let at = i + i / width * width;
        let gate = Vector::<f32, N>::cast_from(x[at]);
        let up = Vector::<f32, N>::cast_from(x[at + width]);
        let mut share = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..N::value() {
            share.insert(j, sigmoid(gate.extract(j)));
        }
        h[i] = Vector::cast_from(gate * share * up);
    }
}

/// The gradients of gate and up from the gradient of `h`. The derivative of silu is `s + gate s (1 - s)` with
/// `s` the logistic function of the gate.
#[cube(launch_unchecked)]
fn swiglu_gradients<T: Float, N: Size>(
    dh: &[Vector<T, N>],
    x: &[Vector<T, N>],
    dx: &mut [Vector<T, N>],
    vectors: usize,
    width: usize,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let at = i + i / width * width;
        let d = Vector::<f32, N>::cast_from(dh[i]);
        let gate = Vector::<f32, N>::cast_from(x[at]);
        let up = Vector::<f32, N>::cast_from(x[at + width]);
        let mut s = Vector::<f32, N>::new(0.0f32);
        // 1 - s, without cancellation.
        let mut rest = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..N::value() {
            s.insert(j, sigmoid(gate.extract(j)));
            rest.insert(j, sigmoid(-gate.extract(j)));
        }
        dx[at] = Vector::cast_from(d * up * (s + gate * s * rest));
        dx[at + width] = Vector::cast_from(d * gate * s);
    }
}

pub(in crate::ops) fn activate(
    kernels: &CubeKernels,
    x: &CubeTensor,
    activation: Option<Activation>,
) -> CubeTensor {
    let [n, c] = x.shape().dims();
    match activation {
        None => x.clone(),
        Some(Activation::Gelu(form)) => {
            let h = kernels.queue.empty_of([n, c], x.dtype);
            let exact = form == Gelu::Erf;
            let vector = kernels.vector(x.dtype, n * c);
            let vectors = n * c / vector;
            launch!(kernels, cover(vectors), apply_gelu(vector, &[x, &h], vectors, exact, elem(x)));
            h
        }
        Some(Activation::SwiGlu) => {
            let width = c / 2;
            let h = kernels.queue.empty_of([n, width], x.dtype);
            let vector = kernels.vector(x.dtype, width);
            let width = width / vector;
            launch!(
                kernels,
                cover(n * width),
                apply_swiglu(vector, &[x, &h], n * width, width, elem(x))
            );
            h
        }
    }
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
    let [n, out] = dy.shape().dims();
    let db = bias.then(|| kernels.column_sums(dy, n, out));
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
    (input_gradient(kernels, [dy, w], &x, activation, None), dw, db)
}

pub(super) fn frozen_backward(
    kernels: &CubeKernels,
    inputs: FrozenBackwardInputs<Gpu>,
) -> (CubeTensor, Option<CubeTensor>) {
    let FrozenBackwardInputs { dy, x, w, adapter, activation } = inputs;
    let [dy, x] = [dy, x].map(contiguous);
    let Some((du, a)) = adapter else {
        return (input_gradient(kernels, [dy, w], &x, activation, None), None);
    };
    let du = contiguous(du);
    let h = Gpu::float_transpose(activate(kernels, &x, activation));
    let da = kernels.product(h, du.clone(), DType::F32, Epilogue::default());
    (input_gradient(kernels, [dy, w], &x, activation, Some([du, a])), Some(da))
}

/// Returns the gradient of `x`, given the gradient of the layer's output and the weight, and the same two of an
/// adapter.
fn input_gradient(
    kernels: &CubeKernels,
    [dy, w]: [CubeTensor; 2],
    x: &CubeTensor,
    activation: Option<Activation>,
    adapter: Option<[CubeTensor; 2]>,
) -> CubeTensor {
    let [n, _] = x.shape().dims();
    let width = w.shape()[0];
    let dh = kernels.queue.empty_of([n, width], x.dtype);
    let add = |dy, w, epilogue| {
        let w = Gpu::float_transpose(kernels.cast(w, x));
        kernels.product_into(dy, w, &dh, epilogue);
    };
    // SwiGLU's derivative follows in a pass of its own.
    let derivative = match activation {
        Some(Activation::Gelu(form)) => Some((form, x)),
        _ => None,
    };
    let epilogue = Epilogue { derivative, ..Epilogue::default() };
    let accumulate = adapter.is_some();
    if let Some([du, a]) = adapter {
        add(du, a, epilogue);
    }
    add(dy, w, Epilogue { accumulate, ..epilogue });
    if activation == Some(Activation::SwiGlu) { swiglu_gradient(kernels, &dh, x) } else { dh }
}

/// Returns the gradient of gate and up `x` from `dh`, that of their SwiGLU.
pub(in crate::ops) fn swiglu_gradient(
    kernels: &CubeKernels,
    dh: &CubeTensor,
    x: &CubeTensor,
) -> CubeTensor {
    let [n, width] = dh.shape().dims();
    let dx = kernels.queue.empty_of(x.shape(), x.dtype);
    let vector = kernels.vector(x.dtype, width);
    let width = width / vector;
    launch!(
        kernels,
        cover(n * width),
        swiglu_gradients(vector, &[dh, x, &dx], n * width, width, elem(x))
    );
    dx
}
