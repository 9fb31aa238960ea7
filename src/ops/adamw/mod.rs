//! AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, in PyTorch's form), in place.

use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;
use super::shared::{Optional, implement};

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The scalars of one update of one tensor that the host knows. The device computes the others: see
/// [`UpdateControl::control`](super::UpdateControl::control).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// `1 - learning_rate * weight_decay`.
    pub decay: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

/// The running means of a parameter's gradient and of its square, `[elements]` both.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The first moment.
    pub m: Tensor<1>,
    /// The second moment.
    pub v: Tensor<1>,
}

/// Updates `w` `[elements]` and its moments by `grad`, as `control` `[4]` of
/// [`update_control`](super::update_control) says; an update that it skips changes nothing. `half`,
/// if any, is the copy of `w` in float16, which follows it.
///
/// A tensor that nothing else holds is updated in place, `half` too.
pub fn adamw(
    w: Tensor<1>,
    half: Option<Tensor<1>>,
    grad: Tensor<1>,
    moments: Moments,
    control: Tensor<1>,
    scalars: AdamW,
    mode: OpsMode,
) -> (Tensor<1>, Option<Tensor<1>>, Moments) {
    let weight = Weight {
        w: w.into_dispatch(),
        half: half.map(Tensor::into_dispatch).into(),
        m: moments.m.into_dispatch(),
        v: moments.v.into_dispatch(),
    };
    let (grad, control) = (grad.into_dispatch(), control.into_dispatch());
    let (w, half, m, v) = Dispatch::adamw(weight, grad, control, scalars, mode);
    let moments = Moments { m: Tensor::from_dispatch(m), v: Tensor::from_dispatch(v) };
    (Tensor::from_dispatch(w), half.map(Tensor::from_dispatch), moments)
}

/// A weight, its copy in float16 and its moments, all `[elements]`.
#[derive(Clone, Debug, ExtensionType)]
pub struct Weight<B: Backend> {
    w: FloatTensor<B>,
    #[extension_type]
    half: Optional<B>,
    m: FloatTensor<B>,
    v: FloatTensor<B>,
}

/// A weight, its copy in float16 and its moments after an update.
type Updated<B> = (FloatTensor<B>, Option<FloatTensor<B>>, FloatTensor<B>, FloatTensor<B>);

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait Optimize: Backend {
    /// Returns the new `w`, `half`, `m` and `v`.
    fn adamw(
        #[extension_type] weight: Weight<Self>,
        grad: FloatTensor<Self>,
        control: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>, FloatTensor<Self>, FloatTensor<Self>);
}

implement! {
    Optimize:
    fn adamw(
        weight: Weight<Self>,
        grad: FloatTensor<Self>,
        control: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>, FloatTensor<Self>, FloatTensor<Self>) {
        Kernels::of(&weight.w, mode), mode => update(weight, grad, control, scalars)
    }
}
