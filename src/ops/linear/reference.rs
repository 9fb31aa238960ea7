use burn::tensor::Tensor;

use super::{
    Activation, FrozenBackwardInputs, FrozenGradients, LinearBackwardInputs, LinearGradients,
    LinearInputs,
};
use crate::config::Gelu;
use crate::ops::shared::dispatch::Reference;
use crate::ops::shared::{NORMAL_PEAK, TANH_CUBIC, TANH_SCALE};

const FRAC_1_SQRT_2: f32 = std::f32::consts::FRAC_1_SQRT_2;

pub(super) fn forward(inputs: LinearInputs<Reference>) -> Tensor<2> {
    let LinearInputs { x, w, b, residual, activation } = inputs;
    let mut y = activate(x, activation).matmul(w);
    if let Some(b) = b {
        y = y + b.unsqueeze();
    }
    match residual {
        Some(residual) => y + residual,
        None => y,
    }
}

pub(super) fn backward(inputs: LinearBackwardInputs<Reference>) -> LinearGradients {
    let LinearBackwardInputs { dy, x, w, activation, bias } = inputs;
    let db = bias.then(|| dy.clone().sum_dim(0).squeeze_dim(0));
    let dw = activate(x.clone(), activation).transpose().matmul(dy.clone());
    let dx = input_gradient(dy.matmul(w.transpose()), x, activation);
    LinearGradients { x: dx, w: dw, b: db }
}

pub(super) fn frozen_backward(inputs: FrozenBackwardInputs<Reference>) -> FrozenGradients {
    let FrozenBackwardInputs { dy, x, w, adapter, activation } = inputs;
    let mut dh = dy.matmul(w.transpose());
    let a = adapter.map(|(du, a)| {
        dh = dh.clone() + du.clone().matmul(a.transpose());
        activate(x.clone(), activation).transpose().matmul(du)
    });
    FrozenGradients { x: input_gradient(dh, x, activation), a }
}

/// Returns the gradient of `x` from `dh`, that of its activation.
pub(in crate::ops) fn input_gradient(
    dh: Tensor<2>,
    x: Tensor<2>,
    activation: Option<Activation>,
) -> Tensor<2> {
    match activation {
        None => dh,
        Some(Activation::Gelu(form)) => dh * gelu_derivative(x, form),
        Some(Activation::SwiGlu) => swiglu_backward(dh, x),
    }
}

pub(in crate::ops) fn activate(x: Tensor<2>, activation: Option<Activation>) -> Tensor<2> {
    let gate = match activation {
        None => return x,
        Some(Activation::SwiGlu) => {
            let [gate, up] = gate_and_up(x);
            return sigmoid(gate.clone()) * gate * up;
        }
        Some(Activation::Gelu(Gelu::Tanh)) => tanh_term(x.clone()),
        Some(Activation::Gelu(Gelu::Erf)) => (x.clone() * FRAC_1_SQRT_2).erf(),
    };
    x * 0.5 * (gate + 1.0)
}

fn gate_and_up(x: Tensor<2>) -> [Tensor<2>; 2] {
    let half = x.dims()[1] / 2;
    [0, half].map(|first| x.clone().narrow(1, first, half))
}

fn sigmoid(x: Tensor<2>) -> Tensor<2> {
    // The exp of some drivers overflows to NaN.
    (x.neg().clamp(-80.0, 80.0).exp() + 1.0).recip()
}

/// With `s` the logistic function of the gate, the derivative of `silu` is `s (1 + gate (1 - s))`.
fn swiglu_backward(dh: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    let [gate, up] = gate_and_up(x);
    let s = sigmoid(gate.clone());
    let d_up = dh.clone() * s.clone() * gate.clone();
    let slope = (gate * (s.clone().neg() + 1.0) + 1.0) * s;
    Tensor::cat(vec![dh * up * slope, d_up], 1)
}

/// `tanh(sqrt(2 / pi) (x + 0.044715 x^3))`.
fn tanh_term(x: Tensor<2>) -> Tensor<2> {
    let square = x.clone() * x.clone();
    let u = x * (square * (TANH_SCALE * TANH_CUBIC) + TANH_SCALE);
    // Some drivers compute tanh from exponentials that overflow. It is 1 in f32 from 9.01 on.
    u.clamp(-10.0, 10.0).tanh()
}

fn gelu_derivative(x: Tensor<2>, form: Gelu) -> Tensor<2> {
    let square = x.clone() * x.clone();
    match form {
        Gelu::Tanh => {
            // 0.5 (1 + t) + 0.5 x (1 - t^2) u', with t = tanh(u).
            let t = tanh_term(x.clone());
            let slope = square * (3.0 * TANH_SCALE * TANH_CUBIC) + TANH_SCALE;
            let tail = x * slope * ((t.clone() * t.clone()).neg() + 1.0);
            (t + 1.0 + tail) * 0.5
        }
        Gelu::Erf => {
            // Phi(x) + x phi(x).
            let share = ((x.clone() * FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
            let density = (square * -0.5).exp() * NORMAL_PEAK;
            share + x * density
        }
    }
}
