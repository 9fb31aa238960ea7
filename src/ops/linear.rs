//! The linear layer with what is around it: the activation of its input, its bias, the residual
//! stream.
//!
//! The activation belongs to the layer after it. That layer keeps its input for the gradient of its
//! weight, and computes the activation again from it, so that of the two tensors of `4c` in a block
//! only one is kept: a quarter of all activations less.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::{OpsMode, Optional, split};
use crate::config::Gelu;

/// What is done to a layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// The Gaussian error linear unit (Hendrycks and Gimpel 2016, arXiv:1606.08415), exact or in
    /// the tanh form that OpenAI's GPT-2 was trained with.
    Gelu(Gelu),
}

impl Activation {
    pub(super) fn form(self) -> Option<Gelu> {
        match self {
            Activation::Identity => None,
            Activation::Gelu(form) => Some(form),
        }
    }
}

/// `y = activation(x) w + b + residual`.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
    Autodiff
)]
pub trait Linear: Backend {
    /// The differentiable op: `x` `[n, in]`, `w` `[in, out]` (Hugging Face's Conv1D layout),
    /// `b` `[out]`, `residual` `[n, out]`; gives `[n, out]`.
    fn linear(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        #[extension_type] b: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let _ = mode;
        reference_forward::<Self>(x, w, b.into_option(), residual.into_option(), activation)
    }

    /// From `dy` gives `dx` `[n, in]`, `dw` `[in, out]` and, with a bias, `db` `[out]`.
    /// The residual's gradient is `dy` itself.
    fn linear_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        activation: Activation,
        bias: bool,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let _ = mode;
        reference_backward::<Self>(dy, x, w, activation, bias)
    }
}

/// A linear layer on `x` `[n, in]` with `w` `[in, out]`: `activation(x) w + b + residual`.
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

#[derive(Debug)]
struct LinearBackward;

#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    w: FloatTensor<B>,
    activation: Activation,
    mode: OpsMode,
}

impl<B: Linear> Backward<B, 4> for LinearBackward {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 4>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let Saved { x, w, activation, mode } = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [of_x, of_w, of_b, of_residual] = ops.parents;
        if let Some(residual) = of_residual {
            grads.register::<B>(residual.id, dy.clone());
        }
        let (dx, dw, db) = B::linear_backward(dy, x, w, activation, of_b.is_some(), mode);
        for (parent, grad) in [(of_x, Some(dx)), (of_w, Some(dw)), (of_b, db)] {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                grads.register::<B>(parent.id, grad);
            }
        }
    }
}

impl<B: Linear, C: CheckpointStrategy> Linear for Autodiff<B, C> {
    fn linear(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        b: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (b, b_node) = split::<B, C>(b, &x);
        let (residual, residual_node) = split::<B, C>(residual, &x);
        let nodes = [x.node(), w.node(), b_node, residual_node];
        let x = x.into_primitive();
        let w = w.into_primitive();
        // burn's own backends have a `linear` too.
        let y = <B as Linear>::linear(x.clone(), w.clone(), b, residual, activation, mode);
        match LinearBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(Saved { x, w, activation, mode }, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

pub(super) fn reference_forward<B: Backend>(
    x: FloatTensor<B>,
    w: FloatTensor<B>,
    b: Option<FloatTensor<B>>,
    residual: Option<FloatTensor<B>>,
    activation: Activation,
) -> FloatTensor<B> {
    let mut y = B::float_matmul(activate::<B>(x, activation), w);
    if let Some(b) = b {
        let out = super::shape::<B>(&b).num_elements();
        y = B::float_add(y, B::float_reshape(b, [1, out].into()));
    }
    match residual {
        Some(residual) => B::float_add(y, residual),
        None => y,
    }
}

pub(super) fn reference_backward<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
    w: FloatTensor<B>,
    activation: Activation,
    bias: bool,
) -> (FloatTensor<B>, FloatTensor<B>, Option<FloatTensor<B>>) {
    let db = bias.then(|| column_sums::<B>(dy.clone()));
    let h = activate::<B>(x.clone(), activation);
    let (dh, dw) = products::<B>(dy, h, w);
    let dx = match activation {
        Activation::Identity => dh,
        Activation::Gelu(form) => B::float_mul(dh, gelu_derivative::<B>(x, form)),
    };
    (dx, dw, db)
}

fn activate<B: Backend>(x: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::Identity => x,
        Activation::Gelu(form) => gelu::<B>(x, form),
    }
}

/// `dx = d w^T` and `dw = x^T d`.
pub(super) fn products<B: Backend>(
    d: FloatTensor<B>,
    x: FloatTensor<B>,
    w: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dw = B::float_matmul(B::float_transpose(x), d.clone());
    let dx = B::float_matmul(d, B::float_transpose(w));
    (dx, dw)
}

fn column_sums<B: Backend>(d: FloatTensor<B>) -> FloatTensor<B> {
    let [_, out] = super::shape::<B>(&d).dims();
    B::float_reshape(B::float_sum_dim(d, 0), [out].into())
}

/// `sqrt(2 / pi)` and the cubic coefficient of the tanh form.
pub(super) const TANH_SCALE: f32 = 0.797_884_6;
pub(super) const TANH_CUBIC: f32 = 0.044_715;
/// `1 / sqrt(2 pi)`, the peak of the normal density.
pub(super) const NORMAL_PEAK: f32 = 0.398_942_3;

fn gelu<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let gate = match form {
        Gelu::Tanh => tanh_term::<B>(x.clone()),
        Gelu::Erf => {
            B::float_erf(B::float_mul_scalar(x.clone(), std::f32::consts::FRAC_1_SQRT_2.into()))
        }
    };
    let half = B::float_mul_scalar(x, 0.5f32.into());
    B::float_mul(half, B::float_add_scalar(gate, 1f32.into()))
}

/// `tanh(sqrt(2 / pi) (x + 0.044715 x^3))`.
fn tanh_term<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let square = B::float_mul(x.clone(), x.clone());
    let factor = B::float_add_scalar(
        B::float_mul_scalar(square, (TANH_SCALE * TANH_CUBIC).into()),
        TANH_SCALE.into(),
    );
    let u = B::float_mul(x, factor);
    // Some drivers compute tanh from exponentials that overflow. It is 1 in f32 from 9.01 on.
    B::float_tanh(B::float_clamp(u, (-10f32).into(), 10f32.into()))
}

fn gelu_derivative<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let half = 0.5f32.into();
    let square = B::float_mul(x.clone(), x.clone());
    match form {
        Gelu::Tanh => {
            // 0.5 (1 + t) + 0.5 x (1 - t^2) u', with t = tanh(u).
            let t = tanh_term::<B>(x.clone());
            let slope = B::float_add_scalar(
                B::float_mul_scalar(square, (3.0 * TANH_SCALE * TANH_CUBIC).into()),
                TANH_SCALE.into(),
            );
            let sech2 =
                B::float_add_scalar(B::float_neg(B::float_mul(t.clone(), t.clone())), 1f32.into());
            let tail = B::float_mul(B::float_mul(x, slope), sech2);
            let sum = B::float_add(B::float_add_scalar(t, 1f32.into()), tail);
            B::float_mul_scalar(sum, half)
        }
        Gelu::Erf => {
            // Phi(x) + x phi(x).
            let erf = B::float_erf(B::float_mul_scalar(
                x.clone(),
                std::f32::consts::FRAC_1_SQRT_2.into(),
            ));
            let cdf = B::float_mul_scalar(B::float_add_scalar(erf, 1f32.into()), half);
            let density = B::float_exp(B::float_mul_scalar(square, (-0.5f32).into()));
            let pdf = B::float_mul_scalar(density, NORMAL_PEAK.into());
            B::float_add(cdf, B::float_mul(x, pdf))
        }
    }
}
