//! The softmax of rows, `exp(x - max) / sum`, for sampling. Attention and the loss have their own.

use burn::tensor::Tensor;

use super::OpsMode;
use super::shared::dispatch::{ChosenKernels, Gpu, Operand};

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;

/// Returns the softmax of each row of `x` `[rows, columns]`.
///
/// It has no WGSL kernel: sampling is bound by launches, so tensor operations are as fast. On CUDA
/// without the toolkit, burn's own exp does not compile.
pub fn softmax(x: Tensor<2>, mode: OpsMode) -> Tensor<2> {
    match ChosenKernels::of(Operand::<Gpu>::first(&x), mode, true) {
        #[cfg(any(feature = "wgpu", feature = "cuda"))]
        ChosenKernels::Cube(kernels) => {
            Operand::<Gpu>::raise(cube::forward(&kernels, Operand::<Gpu>::lower(x)))
        }
        _ => {
            let exp = (x.clone() - x.max_dim(1)).exp();
            let sum = exp.clone().sum_dim(1);
            exp / sum
        }
    }
}
