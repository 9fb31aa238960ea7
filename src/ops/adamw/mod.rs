//! AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, in PyTorch's form), in place.

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

/// The scalars of one update of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// `1 - learning_rate * weight_decay`.
    pub decay: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// `learning_rate / (1 - beta1^step)`.
    pub step_size: f32,
    /// `1 / sqrt(1 - beta2^step)`.
    pub second_correction: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

impl AdamW {
    /// The scalars of update number `step`, counted from 1, in f64 until the end: `1 - beta^step`
    /// loses digits in f32.
    pub fn new(
        step: u64,
        learning_rate: f64,
        weight_decay: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
    ) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            decay: (1.0 - learning_rate * weight_decay) as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            step_size: (learning_rate / correction(beta1)) as f32,
            second_correction: (1.0 / correction(beta2).sqrt()) as f32,
            eps: eps as f32,
        }
    }
}

/// The running means of a parameter's gradient and of its square, `[elements]` both.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The first moment.
    pub m: Tensor<1>,
    /// The second moment.
    pub v: Tensor<1>,
}

/// Updates `w` `[elements]` and its moments by `grad * clip`. `clip` is `[1]` and stays on the
/// device, so that no step waits for the host.
pub fn adamw(
    w: Tensor<1>,
    grad: Tensor<1>,
    moments: Moments,
    clip: Tensor<1>,
    scalars: AdamW,
    mode: OpsMode,
) -> (Tensor<1>, Moments) {
    let (w, m, v) = Dispatch::adamw(
        w.into_dispatch(),
        grad.into_dispatch(),
        moments.m.into_dispatch(),
        moments.v.into_dispatch(),
        clip.into_dispatch(),
        scalars,
        mode,
    );
    let moments = Moments { m: Tensor::from_dispatch(m), v: Tensor::from_dispatch(v) };
    (Tensor::from_dispatch(w), moments)
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait Optimize: Backend {
    /// Returns the new `w`, `m` and `v`, all `[elements]`.
    fn adamw(
        w: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        clip: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

implement! {
    Optimize:
    fn adamw(
        w: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        clip: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        Kernels::of(&w, mode), mode => update(w, grad, m, v, clip, scalars)
    }
}
