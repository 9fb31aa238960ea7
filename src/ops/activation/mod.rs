//! The activation by itself. Layers apply it as they read their input (see `linear`); an adapter with dropout drops
//! elements of its result.

use burn::tensor::Tensor;

use super::shared::dispatch::op;
use crate::protocol::Activation;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

op! {
    /// Returns the activation of `x` `[n, c]`: `[n, c]`, or with [`Activation::SwiGlu`] `[n, c / 2]`.
    pub fn activate(
        x: Tensor<2>;
        activation: Activation,
    ) -> Tensor<2> = forward(ActivationInputs);
}

op! {
    /// Returns the gradient of `x` from `dy`, that of its activation.
    pub fn activate_backward(
        dy: Tensor<2>,
        x: Tensor<2>;
        activation: Activation,
    ) -> Tensor<2> = backward(ActivationBackwardInputs);
}
