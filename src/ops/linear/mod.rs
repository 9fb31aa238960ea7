//! The linear layer, fused with the activation of its input, its bias and the residual stream:
//! `y = activation(x) w + b + residual`.
//!
//! The activation belongs to the layer after it. That layer saves its input for the gradient of its
//! weight and recomputes the activation from it. A block therefore saves only one of its two tensors of
//! `4c`: a quarter fewer activations. With SwiGLU it saves gate and up, `2f` instead of `3f`.

use burn::tensor::Tensor;

use super::shared::dispatch::{op, tensors};
use crate::protocol::Activation;

#[cfg(not(target_arch = "wasm32"))]
pub(super) mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) mod cube;
pub(super) mod reference;
#[cfg(feature = "wgpu")]
mod wgsl;

tensors! {
    pub struct LinearGradients {
        /// `[n, in]`, or `[n, 2 in]` with [`Activation::SwiGlu`].
        pub x: Tensor<2>,
        /// `[in, out]`.
        pub w: Tensor<2>,
        /// `[out]`, if the layer has a bias.
        pub b: Option<Tensor<1>>,
    }
}

tensors! {
    pub struct FrozenGradients {
        /// `[n, in]`, or `[n, 2 in]` with [`Activation::SwiGlu`].
        pub x: Tensor<2>,
        /// Of the adapter, `[in, rank]`, if there is one.
        pub a: Option<Tensor<2>>,
    }
}

op! {
    /// Computes a linear layer on `x` `[n, in]` with `w` `[in, out]` (Hugging Face's Conv1D layout),
    /// `b` `[out]` and `residual` `[n, out]`: returns `activation(x) w + b + residual`, `[n, out]`.
    pub fn linear(
        x: Tensor<2>,
        w: Tensor<2>,
        b: Option<Tensor<1>>,
        residual: Option<Tensor<2>>;
        activation: Option<Activation>,
    ) -> Tensor<2> = forward(LinearInputs);
}

op! {
    /// Returns the gradients of [`linear`] from `dy` `[n, out]`, with a bias gradient if `bias`. The
    /// gradient of the residual is `dy` itself.
    pub fn linear_backward(
        dy: Tensor<2>,
        x: Tensor<2>,
        w: Tensor<2>;
        activation: Option<Activation>,
        bias: bool,
    ) -> LinearGradients = backward(LinearBackwardInputs);
}

op! {
    /// Returns the gradients of [`linear`] with a weight `w` `[in, out]` that is not trained. `adapter` is
    /// the gradient `[n, rank]` of `activation(x) a` and the trained `a` `[in, rank]`: then `x` gets the
    /// gradients of both products.
    pub fn frozen_linear_backward(
        dy: Tensor<2>,
        x: Tensor<2>,
        w: Tensor<2>,
        adapter: Option<(Tensor<2>, Tensor<2>)>;
        activation: Option<Activation>,
    ) -> FrozenGradients = frozen_backward(FrozenBackwardInputs);
}
