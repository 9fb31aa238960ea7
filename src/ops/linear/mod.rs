//! The linear layer, fused with the activation of its input, its bias and the residual stream:
//! `y = activation(x) w + b + residual`.
//!
//! The activation belongs to the layer after it. That layer saves its input for the gradient of its
//! weight and recomputes the activation from it, so that of the two tensors of `4c` in a block only
//! one is saved: a quarter fewer activations.

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
use super::shared::Optional;
use super::shared::implement;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;
use crate::config::Gelu;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
mod wgsl;

/// The activation of a layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// No activation.
    Identity,
    /// The Gaussian error linear unit (Hendrycks and Gimpel 2016, arXiv:1606.08415), exact or in
    /// the tanh form that OpenAI's GPT-2 was trained with.
    Gelu(Gelu),
}

impl Activation {
    /// The form of GELU; `None` without an activation.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    fn form(self) -> Option<Gelu> {
        match self {
            Activation::Identity => None,
            Activation::Gelu(form) => Some(form),
        }
    }
}

/// The gradients of a linear layer.
pub struct LinearGradients {
    /// The gradient of the input, `[n, in]`.
    pub x: Tensor<2>,
    /// The gradient of the weight, `[in, out]`.
    pub w: Tensor<2>,
    /// The gradient of the bias, `[out]`, if the layer has one.
    pub b: Option<Tensor<1>>,
}

/// A linear layer on `x` `[n, in]` with `w` `[in, out]` (Hugging Face's Conv1D layout), `b` `[out]`
/// and `residual` `[n, out]`: returns `activation(x) w + b + residual`, `[n, out]`.
pub fn linear(
    x: Tensor<2>,
    w: Tensor<2>,
    b: Option<Tensor<1>>,
    residual: Option<Tensor<2>>,
    activation: Activation,
    mode: OpsMode,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::linear(
        x.into_dispatch(),
        w.into_dispatch(),
        b.map(Tensor::into_dispatch).into(),
        residual.map(Tensor::into_dispatch).into(),
        activation,
        mode,
    ))
}

/// Returns the gradients of [`linear`] from `dy` `[n, out]`, with a bias gradient if `bias`. The
/// gradient of the residual is `dy` itself.
pub fn linear_backward(
    dy: Tensor<2>,
    x: Tensor<2>,
    w: Tensor<2>,
    activation: Activation,
    bias: bool,
    mode: OpsMode,
) -> LinearGradients {
    let [dy, x, w] = [dy, x, w].map(Tensor::into_dispatch);
    let (dx, dw, db) = Dispatch::linear_backward(dy, x, w, activation, bias, mode);
    LinearGradients {
        x: Tensor::from_dispatch(dx),
        w: Tensor::from_dispatch(dw),
        b: db.map(Tensor::from_dispatch),
    }
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait Linear: Backend {
    /// Returns `y` `[n, out]`.
    fn linear(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        #[extension_type] b: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> FloatTensor<Self>;

    /// Returns `dx` `[n, in]`, `dw` `[in, out]` and, with a bias, `db` `[out]`.
    fn linear_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        activation: Activation,
        bias: bool,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>);
}

implement! {
    Linear:
    fn linear(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        b: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        Kernels::of(&x, mode), mode => forward(x, w, b.into_option(), residual.into_option(), activation)
    }

    fn linear_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        activation: Activation,
        bias: bool,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>) {
        Kernels::of(&x, mode), mode => backward(dy, x, w, activation, bias)
    }
}
