//! The global norm of all gradients, in two stages, and the factor that clips it.

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
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

/// Elements whose squares are summed by one task or workgroup: few enough that f32 keeps its digits
/// and that one invocation of a software adapter can loop over its part.
const NORM_SPAN: usize = 16 * 1024;

/// Added to the norm before dividing by it, as in PyTorch's `clip_grad_norm_`.
const NORM_EPS: f32 = 1e-6;

/// The global norm of gradients and the factor that clips them, `[1]` both, on the device.
#[derive(Clone, Debug)]
pub struct GradientNorm {
    /// The norm before clipping.
    pub norm: Tensor<1>,
    /// `min(1, limit / norm)`.
    pub clip: Tensor<1>,
}

/// Returns the norm of all of `grads` taken together, and the factor that clips it to `limit`; a
/// limit of 0 does not clip. `grads` is not empty.
pub fn gradient_norm(grads: &[Tensor<1>], limit: f32, mode: OpsMode) -> GradientNorm {
    let spans = |grad: &Tensor<1>| grad.dims()[0].div_ceil(NORM_SPAN);
    let count = grads.iter().map(spans).sum::<usize>();
    let mut sums = Tensor::<1>::empty([count], &grads[0].device()).into_dispatch();
    let mut first = 0;
    for grad in grads {
        sums = Dispatch::sum_squares(grad.clone().into_dispatch(), sums, first, mode);
        first += spans(grad);
    }
    let (norm, clip) = Dispatch::clip_factor(sums, limit, mode);
    GradientNorm { norm: Tensor::from_dispatch(norm), clip: Tensor::from_dispatch(clip) }
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait SquaredNorm: Backend {
    /// Writes the sums of the squares of each [`NORM_SPAN`] elements of `x` `[elements]` to
    /// `sums[first..]`; returns `sums`.
    fn sum_squares(
        x: FloatTensor<Self>,
        sums: FloatTensor<Self>,
        first: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self>;

    /// Returns the root of the sum of `sums`, and the factor that clips it to `limit`: `[1]` both.
    fn clip_factor(
        sums: FloatTensor<Self>,
        limit: f32,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

implement! {
    SquaredNorm:
    fn sum_squares(
        x: FloatTensor<Self>,
        sums: FloatTensor<Self>,
        first: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        Kernels::of(&x, mode), mode => sum_squares(x, sums, first)
    }

    fn clip_factor(
        sums: FloatTensor<Self>,
        limit: f32,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        Kernels::of(&sums, mode), mode => clip_factor(sums, limit)
    }
}
