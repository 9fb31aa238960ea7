//! The softmax of rows, for sampling: training has it inside of attention and of the loss.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use super::OpsMode;

/// `exp(x - max) / sum`, row by row. Outside autodiff.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait Softmax: Backend {
    /// Of each row of `x` `[rows, columns]`.
    fn softmax_rows(x: FloatTensor<Self>, mode: OpsMode) -> FloatTensor<Self> {
        let _ = mode;
        reference::<Self>(x)
    }
}

/// The softmax of each row of `x`.
pub fn softmax(x: Tensor<2>, mode: OpsMode) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::softmax_rows(x.into_dispatch(), mode))
}

pub(super) fn reference<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let max = B::float_max_dim(x.clone(), 1);
    let exp = B::float_exp(B::float_sub(x, max));
    let sum = B::float_sum_dim(exp.clone(), 1);
    B::float_div(exp, sum)
}
