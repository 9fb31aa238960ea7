//! The layers of a model: their weights and passes.

use std::iter::once;

use burn::tensor::Tensor;

use super::adapter::Adapter;
use super::pass::BlockPass;
use super::quantized::QuantizedMatrix;
use crate::ops::{
    self, Activation, FrozenGradients, LayerNormStatistics, LinearGradients, NormForm, OpsMode,
};

#[derive(Clone, Debug)]
pub(super) struct WeightMatrix {
    pub weight: Tensor<2>,
    /// The copy in half precision, if the model keeps one.
    pub half: Option<Tensor<2>>,
}

/// A linear layer. Its matrix is `[in, out]`, the layout of Hugging Face's Conv1D.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    pub matrix: LinearMatrix,
    pub bias: Option<Tensor<1>>,
    pub trained: Trained,
}

/// The matrix of a linear layer.
#[derive(Clone, Debug)]
pub(super) enum LinearMatrix {
    Weights(WeightMatrix),
    /// That of a base in 8 bits, which is not trained.
    Quantized(QuantizedMatrix),
}

/// The part of a linear layer that is trained.
#[derive(Clone, Debug)]
pub(super) enum Trained {
    Weights,
    /// An adapter, added to weights that stay as they are.
    Adapter(Box<Adapter>),
    Nothing,
}

#[derive(Clone, Debug)]
pub(super) struct Norm {
    pub weight: Tensor<1>,
    pub bias: Option<Tensor<1>>,
    pub form: NormForm,
}

/// A weight in its place in a model.
pub(super) enum WeightMut<'a> {
    Vector(&'a mut Tensor<1>),
    Matrix(&'a mut WeightMatrix),
}

impl WeightMatrix {
    pub fn new(weight: Tensor<2>) -> Self {
        Self { weight, half: None }
    }

    /// Returns the tensor that products multiply: the copy in half precision if runs in the precision of
    /// `mode` have one, else the weight. The weight can be in half precision too.
    pub fn factor(&self, mode: OpsMode) -> Tensor<2> {
        match &self.half {
            Some(half) if mode.precision.keeps_half_weights() => half.clone(),
            _ => self.weight.clone(),
        }
    }
}

impl LinearMatrix {
    /// Returns the tensor that products multiply.
    fn factor(&self, mode: OpsMode) -> Tensor<2> {
        match self {
            Self::Weights(matrix) => matrix.factor(mode),
            Self::Quantized(matrix) => matrix.decode(mode),
        }
    }

    pub fn weights(&mut self) -> Option<&mut WeightMatrix> {
        match self {
            Self::Weights(matrix) => Some(matrix),
            Self::Quantized(_) => None,
        }
    }
}

impl Linear {
    pub fn weights(&mut self) -> impl Iterator<Item = WeightMut<'_>> {
        let bias = self.bias.as_mut().map(WeightMut::Vector);
        self.matrix.weights().map(WeightMut::Matrix).into_iter().chain(bias)
    }

    /// Returns the matrices of the adapter, if there is one.
    pub fn adapter(&mut self) -> impl Iterator<Item = WeightMut<'_>> {
        let adapter = match &mut self.trained {
            Trained::Adapter(adapter) => Some([&mut adapter.a, &mut adapter.b]),
            Trained::Weights | Trained::Nothing => None,
        };
        adapter.into_iter().flatten().map(WeightMut::Matrix)
    }

    pub fn forward(
        &self,
        x: Tensor<2>,
        residual: Option<Tensor<2>>,
        activation: Option<Activation>,
        at: BlockPass,
    ) -> Tensor<2> {
        let mode = at.pass.mode;
        let w = self.matrix.factor(mode);
        let b = self.bias.clone();
        let Trained::Adapter(adapter) = &self.trained else {
            return ops::linear(x, w, b, residual, activation, mode);
        };
        let y = ops::linear(x.clone(), w, b, residual, activation, mode);
        let [a, b] = adapter.factors(mode);
        let (x, activation) = adapter.input(x, activation, at);
        let u = ops::linear(x, a, None, None, activation, mode);
        ops::linear(u, b, None, Some(y), None, mode)
    }

    /// `residual + dropout(self(activation(x)))`.
    pub fn add_to(
        &self,
        residual: Tensor<2>,
        x: Tensor<2>,
        activation: Option<Activation>,
        site: u32,
        at: BlockPass,
    ) -> Tensor<2> {
        match at.dropout(site) {
            Some(dropout) => {
                let y = self.forward(x, None, activation, at);
                ops::dropout(y, Some(residual), at.time, dropout, at.pass.mode)
            }
            None => self.forward(x, Some(residual), activation, at),
        }
    }

    /// Returns the gradients of the input `x` and of what is trained, flat, from `dy`.
    pub fn backward(
        &self,
        dy: Tensor<2>,
        x: Tensor<2>,
        activation: Option<Activation>,
        at: BlockPass,
    ) -> (Tensor<2>, Vec<Tensor<1>>) {
        let mode = at.pass.mode;
        let weight = self.matrix.factor(mode);
        match &self.trained {
            Trained::Weights => {
                let LinearGradients { x, w, b } =
                    ops::linear_backward(dy, x, weight, activation, self.bias.is_some(), mode);
                (x, [w.flatten(0, 1)].into_iter().chain(b).collect())
            }
            Trained::Nothing => {
                let gradients = ops::frozen_linear_backward(dy, x, weight, None, activation, mode);
                (gradients.x, Vec::new())
            }
            Trained::Adapter(adapter) => {
                let [a, b] = adapter.factors(mode);
                let (h, of_h) = adapter.input(x.clone(), activation, at);
                let u = ops::linear(h.clone(), a.clone(), None, None, of_h, mode);
                let LinearGradients { x: du, w: of_b, .. } =
                    ops::linear_backward(dy.clone(), u, b, None, false, mode);
                let Some(dropout) = at.adapter_dropout(adapter.layer) else {
                    let adapted = Some((du, a));
                    let FrozenGradients { x, a: of_a } =
                        ops::frozen_linear_backward(dy, x, weight, adapted, activation, mode);
                    return (x, adapter.gradients(of_a, of_b));
                };
                let LinearGradients { x: dh, w: of_a, .. } =
                    ops::linear_backward(du, h, a, None, false, mode);
                let FrozenGradients { x: dx, .. } =
                    ops::frozen_linear_backward(dy, x.clone(), weight, None, activation, mode);
                let dx = match activation {
                    None => dropout.apply(dh, Some(dx), mode),
                    Some(activation) => {
                        let dh = dropout.apply(dh, None, mode);
                        dx + ops::activate_backward(dh, x, activation, mode)
                    }
                };
                (dx, adapter.gradients(Some(of_a), of_b))
            }
        }
    }
}

impl Norm {
    pub fn weights(&mut self) -> impl Iterator<Item = WeightMut<'_>> {
        once(&mut self.weight).chain(self.bias.as_mut()).map(WeightMut::Vector)
    }

    /// Returns the output, and the statistics for the backward pass.
    pub fn forward(&self, x: Tensor<2>, mode: OpsMode) -> (Tensor<2>, LayerNormStatistics) {
        ops::layer_norm(x, self.weight.clone(), self.bias.clone(), self.form, mode)
    }

    /// Returns the gradient of the input `x`, with `residual` added, and the partial sums of the
    /// weights' gradients, from `dy`.
    pub fn backward(
        &self,
        dy: Tensor<2>,
        x: Tensor<2>,
        statistics: LayerNormStatistics,
        residual: Option<Tensor<2>>,
        mode: OpsMode,
    ) -> (Tensor<2>, Tensor<3>) {
        let weight = self.weight.clone();
        ops::layer_norm_backward(dy, x, weight, statistics, residual, self.form, mode)
    }
}
