//! The global norm of all gradients, in two stages, and what follows from it: whether the update is
//! made, the factor of the gradients, the bias corrections of Adam, and the next loss scale.
//!
//! Everything stays on the device, so that no step waits for the host. A gradient that is not finite
//! never reaches a weight: the update is skipped. With float16 activations that happens now and
//! then, because the loss is scaled (Micikevicius et al. 2018, arXiv:1710.03740): its gradient is
//! multiplied by a scale that keeps small gradients from underflowing, and that is halved when
//! large ones overflow.

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

/// Elements of a gradient whose squares are summed by one task or workgroup: few enough that f32 keeps
/// its digits and that one invocation of a software adapter can loop over its part. Each is divided by
/// the loss scale and the divisor before: the squares of scaled gradients would leave the range of f32.
pub(super) const NORM_SPAN: usize = 16 * 1024;

/// Added to the norm before dividing by it, as in PyTorch's `clip_grad_norm_`.
const NORM_EPS: f32 = 1e-6;

/// Updates without overflow after which the loss scale is doubled, as in PyTorch's `GradScaler`.
const GROWTH_INTERVAL: u32 = 2000;

/// The loss scale is not doubled beyond this. The gradient of a logit is at most the scale, and
/// float16 ends at 65504: the next power of two would overflow wherever the model gives the target
/// a small probability, in every update.
const MAX_GROWN_SCALE: u32 = 1 << 15;

/// The loss scale is not halved below this. The gradient of a logit is then at most 1: if anything
/// still overflows, the scale is not the reason.
const MIN_SCALE: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateSettings {
    /// The norm to which the gradients are clipped; 0 does not clip.
    pub grad_clip: f32,
    /// Divides the gradients, together with the loss scale, so that they belong to the mean loss: the
    /// tokens of the global batch where the loss is scaled, else 1.
    pub divisor: f32,
    /// The number of the update, from 1. Skipped updates count; the device subtracts their number.
    pub step: u64,
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    /// True if the loss scale adapts; else it does not change, and skipped updates are counted.
    pub scales_loss: bool,
}

impl UpdateSettings {
    /// Returns the logarithms of both betas, from which the device computes `beta^step`: in f32, a
    /// beta near 1 has lost the digits of `1 - beta`, its logarithm has not.
    fn log_betas(&self) -> [f32; 2] {
        // The logarithm of 0 becomes a number whose exponential is 0.
        [self.beta1, self.beta2].map(|beta| libm::log(beta).max(-1e3) as f32)
    }
}

tensors! {
    /// The results of [`update_control`], on the device.
    #[derive(Clone, Debug)]
    pub struct UpdateControl {
        /// The norm of the gradients, without loss scale and before clipping, `[1]`; finite if they are.
        pub norm: Tensor<1>,
        /// For [`adamw`](super::adamw), `[4]`: the factor of the gradients, which clips them and takes
        /// out the loss scale; 1 if the update is made and 0 if it is skipped;
        /// `learning_rate / (1 - beta1^t)`; `1 / sqrt(1 - beta2^t)`, with `t` the updates made, this
        /// one included.
        pub control: Tensor<1>,
        /// The state of loss scaling after this update, `[4]`: the scale, updates made since the scale
        /// last changed or an update was skipped, updates skipped, updates skipped in a row.
        pub loss_scale: Tensor<1>,
    }
}

op! {
    /// Decides on an update from its gradients `grads`, each `[elements]`. `loss_scale` `[4]` is the state of
    /// loss scaling before it, as [`UpdateControl::loss_scale`]; its scale is 1 where the loss is not scaled.
    ///
    /// An update with gradients that are not finite is skipped, and halves the loss scale. 2000 updates
    /// in a row that are made double it.
    pub fn update_control(
        grads: Vec<Tensor<1>>,
        loss_scale: Tensor<1>;
        settings: UpdateSettings,
    ) -> UpdateControl = decide(UpdateControlInputs);
}
