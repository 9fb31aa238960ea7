//! AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, in PyTorch's form), in place.

use burn::tensor::Tensor;

use super::shared::dispatch::{op, tensors};

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
#[cfg(feature = "cuda")]
pub(super) mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The scalars of one update that the host knows. The device computes the others: see
/// [`UpdateControl::control`](super::UpdateControl::control).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// `1 - learning_rate * weight_decay`, for the weights that decay.
    pub decay: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
}

impl AdamW {
    fn decay_of(&self, decays: bool) -> f32 {
        if decays { self.decay } else { 1.0 }
    }
}

tensors! {
    /// The running means of a parameter's gradient and of its square, `[elements]` both.
    #[derive(Clone, Debug)]
    pub struct Moments {
        pub m: Tensor<1>,
        pub v: Tensor<1>,
    }
}

tensors! {
    /// A weight to update, all tensors `[elements]`.
    #[derive(Clone, Debug)]
    pub struct WeightUpdate {
        pub w: Tensor<1>,
        /// The weight's copy in half precision, if it has one, which follows it.
        pub half: Option<Tensor<1>>,
        pub grad: Tensor<1>,
        pub moments: Moments,
        pub decays: bool,
    }
}

/// A weight after an update: the weight, its copy in half precision and its moments.
pub type UpdatedWeight = (Tensor<1>, Option<Tensor<1>>, Moments);

/// A [`WeightUpdate`] in the tensors of a backend: `w`, `half`, `grad`, `m` and `v`, and `decays`.
type Weight<T> = (T, Option<T>, T, (T, T), bool);

/// An [`UpdatedWeight`] in the tensors of a backend.
type Updated<T> = (T, Option<T>, (T, T));

op! {
    /// Updates weights and their moments by their gradients, as `control` `[4]` of
    /// [`update_control`](super::update_control) describes; an update that it skips changes nothing.
    ///
    /// A tensor that nothing else holds is updated in place. Kernels take many weights in one launch.
    pub fn adamw(
        weights: Vec<WeightUpdate>,
        control: Tensor<1>;
        scalars: AdamW,
    ) -> Vec<UpdatedWeight> = update(AdamWInputs);
}
