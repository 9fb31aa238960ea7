//! AdamW over all weights, after a clip of the global gradient norm.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use crate::config::Config;
use crate::model::{Gpt, parameters};
use crate::ops::{self, AdamW, GradientNorm, Moments, OpsMode};

/// The epsilon of PyTorch and of GPT-2.
const EPS: f64 = 1e-8;

/// The state and the hyperparameters of AdamW.
pub struct Optimizer {
    /// In the order of the model's parameters.
    moments: Vec<Moments>,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    grad_clip: f64,
    mode: OpsMode,
}

impl Optimizer {
    /// Creates an optimizer for `model` with zero moments.
    pub fn new(config: &Config, model: &Gpt, mode: OpsMode) -> Self {
        let zeros = |part: Tensor<1>| Moments { m: part.zeros_like(), v: part.zeros_like() };
        let parts = parameters(model).into_iter().flat_map(|parameter| parameter.parts);
        Self::with_moments(config, parts.map(zeros).collect(), mode)
    }

    /// Creates an optimizer with saved moments, in the order of the model's parameters.
    pub fn with_moments(config: &Config, moments: Vec<Moments>, mode: OpsMode) -> Self {
        Self {
            moments,
            beta1: config.beta1,
            beta2: config.beta2,
            weight_decay: config.weight_decay,
            grad_clip: config.grad_clip,
            mode,
        }
    }

    /// Returns the moments, in the order of the model's parameters.
    pub fn moments(&self) -> &[Moments] {
        &self.moments
    }

    /// Makes update number `step`, counted from 1, with flat gradients in the order of the model's
    /// parameters. Returns the new model, and the global norm before clipping as `[1]` on the
    /// device. Nothing waits for the device.
    pub fn update(
        &mut self,
        model: Gpt,
        grads: Vec<Tensor<1>>,
        step: u64,
        learning_rate: f64,
    ) -> (Gpt, Tensor<1>) {
        let GradientNorm { norm, clip } =
            ops::gradient_norm(&grads, self.grad_clip as f32, self.mode);
        let scalars = |weight_decay| {
            AdamW::new(step, learning_rate, weight_decay, self.beta1, self.beta2, EPS)
        };
        let mut update = Update {
            with_decay: scalars(self.weight_decay),
            without_decay: scalars(0.0),
            grads: grads.into_iter(),
            old: std::mem::take(&mut self.moments).into_iter(),
            new: Vec::new(),
            clip,
            mode: self.mode,
        };
        let model = model.map(&mut update);
        self.moments = update.new;
        (model, norm)
    }
}

/// A mapper from every weight to its next value.
struct Update {
    with_decay: AdamW,
    without_decay: AdamW,
    grads: std::vec::IntoIter<Tensor<1>>,
    old: std::vec::IntoIter<Moments>,
    new: Vec<Moments>,
    clip: Tensor<1>,
    mode: OpsMode,
}

impl ModuleMapper for Update {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (Some(grad), Some(moments)) = (self.grads.next(), self.old.next()) else {
            return param;
        };
        // As GPT-2: matrices and embeddings decay, biases and layer norms do not.
        let scalars = if D >= 2 { self.with_decay } else { self.without_decay };
        let (id, value, mapper) = param.consume();
        let shape = value.shape();
        let flat = value.reshape([shape.num_elements()]);
        let (flat, moments) =
            ops::adamw(flat, grad, moments, self.clip.clone(), scalars, self.mode);
        self.new.push(moments);
        Param::from_mapped_value(id, flat.reshape(shape), mapper)
    }
}
