//! The softmax of rows, `exp(x - max) / sum`, for sampling. Training computes it inside attention
//! and the loss.

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;

/// Returns the softmax of each row of `x` `[rows, columns]`.
pub fn softmax(x: Tensor<2>, mode: OpsMode) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::softmax_rows(x.into_dispatch(), mode))
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait Softmax: Backend {
    /// Returns the softmax of each row of `x`.
    fn softmax_rows(x: FloatTensor<Self>, mode: OpsMode) -> FloatTensor<Self>;
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Softmax for burn_cubecl::CubeBackend {
    /// Has no WGSL kernel: sampling is bound by launches, and tensor ops do. On CUDA without
    /// the toolkit, burn's own exp does not compile.
    fn softmax_rows(x: FloatTensor<Self>, mode: OpsMode) -> FloatTensor<Self> {
        match Kernels::of(&x, mode) {
            Kernels::Cube(kernels) => cube::forward(&kernels, x),
            _ => reference::forward::<Self>(x),
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Softmax for burn::backend::Flex {
    fn softmax_rows(x: FloatTensor<Self>, _: OpsMode) -> FloatTensor<Self> {
        reference::forward::<Self>(x)
    }
}
