//! The optimizer: after a clip of the global gradient norm, a rule for each weight.

use std::convert::Infallible;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use super::LossScale;
use crate::config::Config;
use crate::model::{Gpt, HalfWeights, Parameter, parameters};
use crate::ops::{self, AdamW, OpsMode, UpdateControl, UpdateSettings};

mod state;

pub use state::{Rule, State};

/// The epsilon of PyTorch and of GPT-2.
const EPS: f64 = 1e-8;

/// The state and the hyperparameters of an optimizer.
pub struct Optimizer {
    /// One for each part of each parameter, in the order of the model.
    states: Vec<State>,
    /// The state of loss scaling on the device, `[4]`; without scaling, it counts skipped updates.
    loss_scale: Tensor<1>,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    grad_clip: f64,
    mode: OpsMode,
}

impl Optimizer {
    /// Creates an optimizer for `model` with zero moments.
    pub fn new(config: &Config, model: &Gpt, mode: OpsMode) -> Self {
        let states = parameters(model).into_iter().flat_map(|Parameter { name, parts, .. }| {
            let zeros = |_| Ok::<_, Infallible>(parts.iter().map(Tensor::zeros_like).collect());
            let Ok(states) = Rule::of(config, &name).states(zeros);
            states
        });
        Self::with_states(config, states.collect(), mode)
    }

    /// Creates an optimizer with saved states, one for each part of each parameter, in the order of
    /// the model.
    ///
    /// # Panics
    /// If `states` is empty.
    pub fn with_states(config: &Config, states: Vec<State>, mode: OpsMode) -> Self {
        let loss_scale = LossScale::new(mode.precision.scales_loss());
        let (_, tensor) = &states[0].tensors()[0];
        Self {
            loss_scale: loss_scale.upload(&tensor.device()),
            states,
            beta1: config.beta1,
            beta2: config.beta2,
            weight_decay: config.weight_decay,
            grad_clip: config.grad_clip,
            mode,
        }
    }

    /// Continues with a saved state of loss scaling. In a precision without scaling, keeps only the
    /// number of skipped updates, which are none of Adam's steps.
    pub fn with_loss_scale(self, saved: LossScale) -> Self {
        let saved = match self.mode.precision.scales_loss() {
            true => saved,
            false => LossScale { skipped: saved.skipped, ..LossScale::new(false) },
        };
        Self { loss_scale: saved.upload(&self.loss_scale.device()), ..self }
    }

    /// Returns the weights of `model` as checkpoints save them.
    pub fn weights(&self, model: &Gpt) -> Vec<Parameter> {
        parameters(model)
    }

    /// Returns the tensors of the states as checkpoints save them: each with the name and the shape
    /// of its parameter in `model`, the name after that of the tensor, like `m.wte.weight`.
    pub fn saved_states(&self, model: &Gpt) -> Vec<Parameter> {
        let mut rest = self.states.as_slice();
        let mut saved = Vec::new();
        for Parameter { name, shape, parts } in parameters(model) {
            let (own, others) = rest.split_at(parts.len());
            rest = others;
            let mut kinds: Vec<Parameter> = Vec::new();
            for (kind, tensor) in own.iter().flat_map(State::tensors) {
                let name = format!("{kind}.{name}");
                match kinds.iter_mut().find(|saved| saved.name == name) {
                    Some(saved) => saved.parts.push(tensor),
                    None => {
                        kinds.push(Parameter { name, shape: shape.clone(), parts: vec![tensor] });
                    }
                }
            }
            saved.extend(kinds);
        }
        saved
    }

    /// Returns the state of loss scaling for
    /// [`WeightGradients::scaled`](crate::model::WeightGradients::scaled), `None` if the precision
    /// does not scale the loss.
    pub fn loss_scale(&self) -> Option<Tensor<1>> {
        self.mode.precision.scales_loss().then(|| self.loss_scale.clone())
    }

    /// Reads the state of loss scaling from the device, after all updates so far.
    pub async fn read_loss_scale(&self) -> LossScale {
        LossScale::read(self.loss_scale.clone()).await
    }

    /// Makes update number `step`, counted from 1, with flat gradients in the order of the model's
    /// parameters, scaled by [`loss_scale`](Self::loss_scale). `tokens` is the size of the global
    /// batch, by which a scaled loss is yet to be divided. Returns the new model, and the global
    /// norm before clipping as `[1]` on the device. If that is not finite, the update is skipped:
    /// model and states stay as they are. Nothing waits for the device.
    pub async fn update(
        &mut self,
        model: Gpt,
        grads: Vec<Tensor<1>>,
        step: u64,
        learning_rate: f64,
        tokens: usize,
    ) -> (Gpt, Tensor<1>) {
        let scales_loss = self.mode.precision.scales_loss();
        let settings = UpdateSettings {
            grad_clip: self.grad_clip as f32,
            divisor: if scales_loss { tokens as f32 } else { 1.0 },
            step,
            learning_rate,
            beta1: self.beta1,
            beta2: self.beta2,
            scales_loss,
        };
        let UpdateControl { norm, control, loss_scale } =
            ops::update_control(&grads, self.loss_scale.clone(), settings, self.mode);
        self.loss_scale = loss_scale;
        (self.update_on_device(model, grads, control, learning_rate), norm)
    }

    /// Updates a model on the device that holds its states.
    fn update_on_device(
        &mut self,
        mut model: Gpt,
        grads: Vec<Tensor<1>>,
        control: Tensor<1>,
        learning_rate: f64,
    ) -> Gpt {
        let mut update = Update {
            scalars: self.scalars(learning_rate),
            grads: grads.into_iter(),
            old: std::mem::take(&mut self.states).into_iter(),
            new: Vec::new(),
            halves: model.take_half_weights(),
            control,
            mode: self.mode,
        };
        let mut model = model.map(&mut update);
        model.put_half_weights(update.halves);
        self.states = update.new;
        model
    }

    fn scalars(&self, learning_rate: f64) -> Scalars {
        let scalars = |weight_decay: f64| AdamW {
            decay: (1.0 - learning_rate * weight_decay) as f32,
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            eps: EPS as f32,
        };
        Scalars { with_decay: scalars(self.weight_decay), without_decay: scalars(0.0) }
    }
}

/// The scalars of one update.
#[derive(Clone, Copy)]
struct Scalars {
    with_decay: AdamW,
    without_decay: AdamW,
}

impl Scalars {
    /// Returns the scalars of a weight of so many dimensions. As in GPT-2, matrices and embeddings
    /// decay, biases and layer norms do not.
    fn of(&self, dimensions: usize) -> AdamW {
        if dimensions >= 2 { self.with_decay } else { self.without_decay }
    }
}

/// A mapper from every weight to its next value.
struct Update {
    scalars: Scalars,
    grads: std::vec::IntoIter<Tensor<1>>,
    old: std::vec::IntoIter<State>,
    new: Vec<State>,
    /// The copies in float16, before and after the update.
    halves: HalfWeights,
    control: Tensor<1>,
    mode: OpsMode,
}

impl ModuleMapper for Update {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (Some(grad), Some(state)) = (self.grads.next(), self.old.next()) else {
            return param;
        };
        let (id, value, mapper) = param.consume();
        let shape = value.shape();
        let flat = value.reshape([shape.num_elements()]);
        let half = self.halves.remove(&id).map(|half| half.reshape([shape.num_elements()]));
        let control = self.control.clone();
        let (flat, half, state) = match state {
            State::AdamW(moments) => {
                let scalars = self.scalars.of(D);
                let (flat, half, moments) =
                    ops::adamw(flat, half, grad, moments, control, scalars, self.mode);
                (flat, half, State::AdamW(moments))
            }
        };
        self.new.push(state);
        if let Some(half) = half {
            self.halves.insert(id, half.reshape(shape.clone()));
        }
        Param::from_mapped_value(id, flat.reshape(shape), mapper)
    }
}
