//! Layer normalisation over the last dimension (Ba, Kiros and Hinton 2016, arXiv:1607.06450).

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
use super::shared::Optional;
use super::shared::implement;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// GPT-2's epsilon, added to the variance.
const EPS: f32 = 1e-5;

/// The mean and the reciprocal standard deviation of each row, `[n, 1]` both. Two values per
/// row of c cost less to save than to recompute.
#[derive(Clone, Debug)]
pub struct LayerNormStatistics {
    mean: Tensor<2>,
    rstd: Tensor<2>,
}

/// The gradients of a layer normalisation.
pub struct LayerNormGradients {
    /// The gradient of the input, `[n, c]`.
    pub x: Tensor<2>,
    /// The gradient of the scale, `[c]`.
    pub gamma: Tensor<1>,
    /// The gradient of the shift, `[c]`.
    pub beta: Tensor<1>,
}

/// Normalises the rows of `x` `[n, c]` to `y = (x - mean) * rstd * gamma + beta`, with `gamma` and
/// `beta` `[c]`. Returns `y` `[n, c]` and the statistics for the backward pass.
pub fn layer_norm(
    x: Tensor<2>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    mode: OpsMode,
) -> (Tensor<2>, LayerNormStatistics) {
    let (y, mean, rstd) = Dispatch::layer_norm(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.map(Tensor::into_dispatch).into(),
        mode,
    );
    let [y, mean, rstd] = [y, mean, rstd].map(Tensor::from_dispatch);
    (y, LayerNormStatistics { mean, rstd })
}

/// Returns the gradients of [`layer_norm`] from `dy` `[n, c]`.
pub fn layer_norm_backward(
    dy: Tensor<2>,
    x: Tensor<2>,
    gamma: Tensor<1>,
    statistics: LayerNormStatistics,
    mode: OpsMode,
) -> LayerNormGradients {
    let (dx, dgamma, dbeta) = Dispatch::layer_norm_backward(
        dy.into_dispatch(),
        x.into_dispatch(),
        gamma.into_dispatch(),
        statistics.mean.into_dispatch(),
        statistics.rstd.into_dispatch(),
        mode,
    );
    LayerNormGradients {
        x: Tensor::from_dispatch(dx),
        gamma: Tensor::from_dispatch(dgamma),
        beta: Tensor::from_dispatch(dbeta),
    }
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait LayerNorm: Backend {
    /// Returns `y` `[n, c]`, and `mean` and `rstd` `[n, 1]`.
    fn layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `dx` `[n, c]`, `dgamma` `[c]` and `dbeta` `[c]`.
    fn layer_norm_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        rstd: FloatTensor<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

implement! {
    LayerNorm:
    fn layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        Kernels::of(&x, mode), mode => forward(x, gamma, beta.into_option())
    }

    fn layer_norm_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        rstd: FloatTensor<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        Kernels::of(&x, mode), mode => backward(dy, x, gamma, mean, rstd)
    }
}
