//! The softmax of rows, `exp(x - max) / sum`, for sampling. Training computes it inside attention
//! and the loss.

use burn::tensor::Tensor;

use super::OpsMode;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::dispatch::{Gpu, Kernels, Operand};

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;

/// Returns the softmax of each row of `x` `[rows, columns]`.
///
/// It has no WGSL kernel: sampling is bound by launches, so tensor operations are as fast. On CUDA
/// without the toolkit, burn's own exp does not compile.
pub fn softmax(x: Tensor<2>, mode: OpsMode) -> Tensor<2> {
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    if let Kernels::Cube(kernels) = Kernels::of(Operand::<Gpu>::first(&x), mode, true) {
        return Operand::<Gpu>::raise(cube::forward(&kernels, Operand::<Gpu>::lower(x)));
    }
    #[cfg(not(any(feature = "wgpu", feature = "cuda")))]
    let _ = mode;
    let exp = (x.clone() - x.max_dim(1)).exp();
    let sum = exp.clone().sum_dim(1);
    exp / sum
}
