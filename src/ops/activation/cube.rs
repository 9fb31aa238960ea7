use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{ActivationBackwardInputs, ActivationInputs};
use crate::config::Gelu;
use crate::ops::linear::cube::{activate, swiglu_gradient};
use crate::ops::shared::cube::gelu::gelu_derivative;
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};
use crate::ops::shared::kernels::contiguous;
use crate::protocol::Activation;

/// `dx = dy gelu'(x)`.
#[cube(launch_unchecked)]
fn gelu_gradient<T: Float, N: Size>(
    dy: &[Vector<T, N>],
    x: &[Vector<T, N>],
    dx: &mut [Vector<T, N>],
    vectors: usize,
    #[comptime] exact: bool,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let x = Vector::<f32, N>::cast_from(x[i]);
        let mut slope = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..N::value() {
            slope.insert(j, gelu_derivative(x.extract(j), exact));
        }
        dx[i] = Vector::cast_from(Vector::<f32, N>::cast_from(dy[i]) * slope);
    }
}

pub(super) fn forward(kernels: &CubeKernels, inputs: ActivationInputs<Gpu>) -> CubeTensor {
    activate(kernels, &contiguous(inputs.x), Some(inputs.activation))
}

pub(super) fn backward(kernels: &CubeKernels, inputs: ActivationBackwardInputs<Gpu>) -> CubeTensor {
    let ActivationBackwardInputs { dy, x, activation } = inputs;
    let [dy, x] = [dy, x].map(contiguous);
    let Activation::Gelu(form) = activation else { return swiglu_gradient(kernels, &dy, &x) };
    let dx = kernels.queue.empty_of(x.shape(), x.dtype);
    let elements = x.shape().num_elements();
    let vector = kernels.vector(x.dtype, elements);
    let vectors = elements / vector;
    let exact = form == Gelu::Erf;
    launch!(
        kernels,
        cover(vectors),
        gelu_gradient(vector, &[&dy, &x, &dx], vectors, exact, elem(&x))
    );
    dx
}
