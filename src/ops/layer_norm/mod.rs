//! Layer normalisation over the last dimension (Ba, Kiros and Hinton 2016, arXiv:1607.06450), or
//! normalisation by the root mean square alone (Zhang and Sennrich 2019, arXiv:1910.07467).

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

/// GPT-2's epsilon, added to the variance.
const EPS: f32 = 1e-5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormForm {
    /// Subtracts the mean of a row and divides by its standard deviation.
    Layer,
    /// Divides a row by the root of its mean square, to which `eps` is added: `y = x * rstd * gamma`
    /// with `rstd = 1 / sqrt(mean(x^2) + eps)`. It has neither mean nor beta.
    Rms { eps: f32 },
}

impl NormForm {
    fn is_rms(self) -> bool {
        matches!(self, Self::Rms { .. })
    }

    fn eps(self) -> f32 {
        match self {
            Self::Layer => EPS,
            Self::Rms { eps } => eps,
        }
    }
}

tensors! {
    /// The mean, which [`NormForm::Rms`] does not have, and the reciprocal standard deviation of each
    /// row, `[n, 1]` both. Two values per row of c cost less to save than to recompute.
    #[derive(Clone, Debug)]
    pub struct LayerNormStatistics {
        mean: Option<Tensor<2>>,
        rstd: Tensor<2>,
    }
}

op! {
    /// Normalises the rows of `x` `[n, c]` to `y = (x - mean) * rstd * gamma + beta`, with `gamma` and
    /// `beta` `[c]`. Returns `y` `[n, c]` and the statistics for the backward pass.
    pub fn layer_norm(
        x: Tensor<2>,
        gamma: Tensor<1>,
        beta: Option<Tensor<1>>;
        form: NormForm,
    ) -> (Tensor<2>, LayerNormStatistics) = forward(LayerNormInputs);
}

op! {
    /// Returns the gradient of the input of [`layer_norm`], `[n, c]`, from `dy` `[n, c]`, and the
    /// partial sums `[groups, 2, c]` of the gradients of `gamma` and `beta`, for
    /// [`layer_norm_weight_gradients`]. Without a beta, its sums have no meaning.
    ///
    /// `residual` `[n, c]`, the gradient of the residual stream around the layer, is added to the
    /// former, in place if nothing else holds it.
    pub fn layer_norm_backward(
        dy: Tensor<2>,
        x: Tensor<2>,
        gamma: Tensor<1>,
        statistics: LayerNormStatistics,
        residual: Option<Tensor<2>>;
        form: NormForm,
    ) -> (Tensor<2>, Tensor<3>) = backward(LayerNormBackwardInputs);
}

op! {
    /// Returns the gradients of `gamma` and `beta`, `[c]` both, of several layers, from the partial
    /// sums of each. Kernels take many layers in one launch.
    pub fn layer_norm_weight_gradients(
        partial: Vec<Tensor<3>>,
    ) -> Vec<(Tensor<1>, Tensor<1>)> = weight_gradients(WeightGradientsInputs);
}
