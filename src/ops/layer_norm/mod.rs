//! Layer normalisation over the last dimension (Ba, Kiros and Hinton 2016, arXiv:1607.06450).

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;
use super::shared::{Optional, Tensors, implement};

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

/// Returns the gradient of the input of [`layer_norm`], `[n, c]`, from `dy` `[n, c]`, and the partial
/// sums `[groups, 2, c]` of the gradients of `gamma` and `beta`, for [`layer_norm_weight_gradients`].
///
/// `residual` `[n, c]`, the gradient of the residual stream around the layer, is added to the former,
/// in place if nothing else holds it.
pub fn layer_norm_backward(
    dy: Tensor<2>,
    x: Tensor<2>,
    gamma: Tensor<1>,
    statistics: LayerNormStatistics,
    residual: Option<Tensor<2>>,
    mode: OpsMode,
) -> (Tensor<2>, Tensor<3>) {
    let (dx, partial) = Dispatch::layer_norm_backward(
        dy.into_dispatch(),
        x.into_dispatch(),
        gamma.into_dispatch(),
        statistics.mean.into_dispatch(),
        statistics.rstd.into_dispatch(),
        residual.map(Tensor::into_dispatch).into(),
        mode,
    );
    (Tensor::from_dispatch(dx), Tensor::from_dispatch(partial))
}

/// Returns the gradients of `gamma` and `beta`, `[c]` both, of several layers, from the partial sums
/// of each. Kernels take many layers in one launch.
pub fn layer_norm_weight_gradients(partial: Vec<Tensor<3>>, mode: OpsMode) -> Vec<[Tensor<1>; 2]> {
    if partial.is_empty() {
        return Vec::new();
    }
    let partial = Tensors(partial.into_iter().map(Tensor::into_dispatch).collect());
    let (gamma, beta) = Dispatch::layer_norm_weight_gradients(partial, mode);
    let pairs = gamma.into_iter().zip(beta);
    pairs.map(|(gamma, beta)| [gamma, beta].map(Tensor::from_dispatch)).collect()
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

    /// Returns `dx` `[n, c]`, with `residual` added, and the partial sums `[groups, 2, c]` of
    /// `dgamma` and `dbeta`.
    fn layer_norm_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        rstd: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `dgamma` and `dbeta`, `[c]` each, for each of `partial`, which is not empty.
    fn layer_norm_weight_gradients(
        #[extension_type] partial: Tensors<Self>,
        mode: OpsMode,
    ) -> (Vec<FloatTensor<Self>>, Vec<FloatTensor<Self>>);
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
        residual: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        Kernels::of(&x, mode), mode => backward(dy, x, gamma, mean, rstd, residual.into_option())
    }

    fn layer_norm_weight_gradients(
        partial: Tensors<Self>,
        mode: OpsMode,
    ) -> (Vec<FloatTensor<Self>>, Vec<FloatTensor<Self>>) {
        Kernels::of(&partial.0[0], mode), mode => weight_gradients(partial.0)
    }
}
