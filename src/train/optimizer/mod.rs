//! The optimizer: after a clip of the global gradient norm, a rule for each weight.

use std::convert::Infallible;
use std::time::Duration;

use burn::tensor::{DType, Device, Shape, Tensor};

use crate::config::{Config, OptimizerKind};
use crate::gpu::Watchdog;
use crate::model::{FlatWeight, Gpt, LossScale, Parameter, map_weights, parameters};
use crate::ops::{self, AdamW, OpsMode, UpdateControl, UpdateSettings, WeightUpdate};
use crate::ranks::{Shard, Sharding};

mod muon;
#[cfg(not(target_arch = "wasm32"))]
mod offload;
mod outer;
mod state;

use muon::Muon;
use outer::Outer;
pub use state::Masters;
use state::{PartState, Rule, WeightState, cut, pieces};

/// The name of the outer step's momentum in checkpoints, before the name of a parameter.
pub(super) const OUTER: &str = "outer";

/// The epsilon of PyTorch and of GPT-2.
const EPS: f64 = 1e-8;

/// The state and the hyperparameters of an optimizer.
pub struct Optimizer {
    kind: OptimizerKind,
    /// One for each part of each parameter, in the order of the model. Without states for the parameters
    /// that other ranks update.
    parts: Vec<PartState>,
    /// Present if the states are divided among ranks.
    sharding: Option<Sharding>,
    /// Present if the states are in host memory; `None` if they are on the model's device.
    offload: Option<Offload>,
    /// Present if ranks train apart.
    outer: Option<Outer>,
    /// The state of loss scaling on the device, `[4]`; without scaling, it counts skipped updates.
    loss_scale: Tensor<1>,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    grad_clip: f64,
    mode: OpsMode,
}

/// An optimizer whose states are in host memory.
#[derive(Default)]
struct Offload {
    /// Told of each answer of the device: an update takes many.
    watchdog: Watchdog,
    /// The time that updates took after their gradients, since it was last asked for.
    spent: Duration,
}

impl Optimizer {
    /// Creates an optimizer for `model` with zero states on its device.
    pub fn new(config: &Config, model: &Gpt, mode: OpsMode) -> Self {
        Self::with_zeros(config, model, None, None, mode)
    }

    /// Creates an optimizer for `model` with zero states and master weights in host memory. The CPU
    /// applies AdamW there, on the gradients of the device, which is sent the new weights.
    pub fn offloaded(config: &Config, model: &Gpt, masters: Masters, mode: OpsMode) -> Self {
        Self::with_zeros(config, model, Some(masters), None, mode)
    }

    /// Creates an optimizer for `model` with zero states: in host memory with `masters`, and with those
    /// of a `shard` or with all of them.
    pub(super) fn with_zeros(
        config: &Config,
        model: &Gpt,
        masters: Option<Masters>,
        shard: Option<Shard>,
        mode: OpsMode,
    ) -> Self {
        let zeros = |_: &str, _: &[usize], lengths: &[usize], device: &Device| {
            Ok::<_, Infallible>(lengths.iter().map(|&n| Tensor::zeros([n], device)).collect())
        };
        let Ok(optimizer) = Self::build(config, model, masters, shard, mode, zeros);
        optimizer
    }

    /// Creates an optimizer with saved states, offloaded with `masters`, or with the states of a `shard`.
    /// `saved` returns the values of a tensor by its name in checkpoints and the shape of its parameter;
    /// padding at their end may be missing. It is asked for all tensors, whatever the shard: ranks read
    /// them together.
    pub fn load<E>(
        config: &Config,
        model: &Gpt,
        masters: Option<Masters>,
        shard: Option<Shard>,
        mode: OpsMode,
        mut saved: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, E>,
    ) -> Result<Self, E> {
        let tensors = |name: &str, shape: &[usize], lengths: &[usize], device: &Device| {
            Ok(cut(&saved(name, shape)?, lengths, device))
        };
        Self::build(config, model, masters, shard, mode, tensors)
    }

    /// Creates an optimizer. `tensors` returns the tensors of these lengths on a device that are
    /// together the tensor of the states with a name and a shape.
    fn build<E>(
        config: &Config,
        model: &Gpt,
        mut masters: Option<Masters>,
        shard: Option<Shard>,
        mode: OpsMode,
        mut tensors: impl FnMut(&str, &[usize], &[usize], &Device) -> Result<Vec<Tensor<1>>, E>,
    ) -> Result<Self, E> {
        let mut built = Vec::new();
        let parameters = parameters(model);
        let states = |Parameter { name, parts, .. }: &Parameter| {
            let elements: usize = parts.iter().map(|part| part.dims()[0]).sum();
            (elements * Rule::of(config.optimizer, name).kinds().len()) as u64
        };
        let states: Vec<u64> = parameters.iter().map(states).collect();
        let sharding = shard.map(|shard| Sharding::new(shard, &states));
        let device = parameters[0].parts[0].device();
        let place = masters.as_ref().map_or(&device, |masters| &masters.host).clone();
        for (index, Parameter { name, shape, parts }) in parameters.into_iter().enumerate() {
            let of_part = |part: &Tensor<1>| -> Vec<usize> {
                let [elements] = part.dims();
                match masters {
                    Some(_) => pieces(elements).map(|piece| piece.len()).collect(),
                    None => vec![elements],
                }
            };
            let lengths: Vec<Vec<usize>> = parts.iter().map(of_part).collect();
            let is_own = sharding.as_ref().is_none_or(|sharding| sharding.owns(index));
            let all = if is_own { lengths.concat() } else { Vec::new() };
            let rule = Rule::of(config.optimizer, &name);
            let states =
                rule.states(|kind| tensors(&format!("{kind}.{name}"), &shape, &all, &place))?;
            let kept = match &mut masters {
                Some(masters) if rule.keeps_masters(parts[0].dtype() != DType::F32) => {
                    masters.take(&name, &all)
                }
                _ => Vec::new(),
            };
            let (mut states, mut kept) = (states.into_iter(), kept.into_iter());
            for lengths in lengths {
                let kept = kept.by_ref().take(lengths.len());
                let states = states.by_ref().take(lengths.len());
                built.push(PartState { masters: kept.collect(), states: states.collect() });
            }
        }
        let loss_scale = LossScale::new(mode.precision.scales_loss());
        Ok(Self {
            loss_scale: loss_scale.upload(&device),
            kind: config.optimizer,
            parts: built,
            sharding,
            offload: masters.map(|_| Offload::default()),
            outer: Outer::of(config),
            beta1: config.beta1,
            beta2: config.beta2,
            weight_decay: config.weight_decay,
            grad_clip: config.grad_clip,
            mode,
        })
    }

    /// Continues with a saved state of loss scaling. In a precision without scaling, keeps only the
    /// number of skipped updates, which are none of Adam's steps.
    pub fn with_loss_scale(self, saved: LossScale) -> Self {
        let saved = if self.mode.precision.scales_loss() {
            saved
        } else {
            LossScale { skipped: saved.skipped, ..LossScale::new(false) }
        };
        Self { loss_scale: saved.upload(&self.loss_scale.device()), ..self }
    }

    /// Reports to `watchdog` that the device has answered, during updates in host memory.
    pub fn set_watchdog(&mut self, watchdog: &Watchdog) {
        if let Some(offload) = &mut self.offload {
            offload.watchdog = watchdog.clone();
        }
    }

    /// Returns true if the states are divided among ranks.
    pub fn is_sharded(&self) -> bool {
        self.sharding.is_some()
    }

    /// Returns the division of the states among ranks.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn sharding(&self) -> Option<&Sharding> {
        self.sharding.as_ref()
    }

    /// Returns the time that updates in host memory took since this was last called, from the end
    /// of the backward pass; `None` if states are on the model's device.
    pub fn take_time(&mut self) -> Option<Duration> {
        self.offload.as_mut().map(|offload| std::mem::take(&mut offload.spent))
    }

    /// Returns the weights of `model` as checkpoints save them: the master weights.
    pub fn weights(&self, model: &Gpt) -> Vec<Parameter> {
        let mut weights = parameters(model);
        let mut own = self.parts.iter();
        for Parameter { parts, .. } in &mut weights {
            let masters = |(part, own): (Tensor<1>, &PartState)| {
                if own.masters.is_empty() { vec![part] } else { own.masters.clone() }
            };
            *parts =
                std::mem::take(parts).into_iter().zip(own.by_ref()).flat_map(masters).collect();
        }
        weights
    }

    /// Returns the tensors of the states as checkpoints save them: each with the name and the shape
    /// of its parameter in `model`, the name after that of the tensor, like `m.wte.weight`. Those that
    /// another rank has are without parts.
    pub fn saved_states(&self, model: &Gpt) -> Vec<Parameter> {
        let mut own = self.parts.iter();
        let mut saved = Vec::new();
        for Parameter { name, shape, parts } in parameters(model) {
            let states = own.by_ref().take(parts.len()).flat_map(|part| &part.states);
            let tensors: Vec<_> = states.flat_map(WeightState::tensors).collect();
            for kind in Rule::of(self.kind, &name).kinds() {
                let of_kind = tensors.iter().filter(|(of, _)| of == kind);
                saved.push(Parameter {
                    name: format!("{kind}.{name}"),
                    shape: shape.clone(),
                    parts: of_kind.map(|(_, tensor)| tensor.clone()).collect(),
                });
            }
        }
        saved
    }

    /// Returns the state of loss scaling as a rank that trains apart saves its own.
    pub fn saved_loss_scale(&self) -> Parameter {
        let (name, shape) = (LossScale::NAME.to_string(), vec![4]);
        Parameter { name, shape, parts: vec![self.loss_scale.clone()] }
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
    /// model and states stay as they are. Waits for the device only if states are in host memory.
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
        #[cfg(not(target_arch = "wasm32"))]
        if self.offload.is_some() {
            return (self.update_offloaded(model, grads, control, learning_rate).await, norm);
        }
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
        let muon = self.muon(learning_rate, control.clone());
        let placeholder = Tensor::empty([1], &control.device());
        let mut halves = model.take_half_weights();
        let (mut old, mut grads) = (std::mem::take(&mut self.parts).into_iter(), grads.into_iter());
        // AdamW alone holds its weights and updates them in place, all at once.
        let (mut taken, mut weights) = (Vec::new(), Vec::new());
        let model = map_weights(model, |FlatWeight { id, value: w, shape }| {
            let state = old.next().and_then(|part| part.states.into_iter().next());
            let (Some(grad), Some(state)) = (grads.next(), state) else {
                taken.push(Taken::Updated(PartState::default()));
                return FlatWeight { id, value: w, shape };
            };
            let half = halves.remove(&id).map(|half| half.reshape([shape.num_elements()]));
            match state {
                WeightState::AdamW(moments) => {
                    let dimensions = shape.num_dims();
                    let decays = decays(dimensions);
                    weights.push(WeightUpdate { w, half, grad, moments, decays });
                    taken.push(Taken::AdamW(shape));
                    FlatWeight::placeholder(id, placeholder.clone(), dimensions)
                }
                WeightState::Muon(momentum) => {
                    let (value, half, momentum) =
                        muon.update(w, half, grad, momentum, shape.dims());
                    let states = vec![WeightState::Muon(momentum)];
                    taken.push(Taken::Updated(PartState { masters: Vec::new(), states }));
                    if let Some(half) = half {
                        halves.insert(id, half.reshape(shape.clone()));
                    }
                    FlatWeight { id, value, shape }
                }
            }
        });
        let scalars = self.scalars(learning_rate);
        // Of a sharded optimizer with more ranks than weights, a rank may have none.
        let updated = if weights.is_empty() {
            Vec::new()
        } else {
            ops::adamw(weights, control, scalars, self.mode)
        };
        let (mut taken, mut updated) = (taken.into_iter(), updated.into_iter());
        let parts = &mut self.parts;
        let mut model = map_weights(model, |weight| {
            let shape = match taken.next() {
                Some(Taken::AdamW(shape)) => shape,
                Some(Taken::Updated(part)) => {
                    parts.push(part);
                    return weight;
                }
                None => return weight,
            };
            let Some((value, half, moments)) = updated.next() else { return weight };
            parts
                .push(PartState { masters: Vec::new(), states: vec![WeightState::AdamW(moments)] });
            if let Some(half) = half {
                halves.insert(weight.id, half.reshape(shape.clone()));
            }
            FlatWeight { id: weight.id, value, shape }
        });
        model.put_half_weights(halves);
        model
    }

    fn muon(&self, learning_rate: f64, control: Tensor<1>) -> Muon {
        Muon { learning_rate, weight_decay: self.weight_decay, control, mode: self.mode }
    }

    fn scalars(&self, learning_rate: f64) -> AdamW {
        AdamW {
            decay: (1.0 - learning_rate * self.weight_decay) as f32,
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            eps: EPS as f32,
        }
    }
}

/// Returns true if a weight with this number of dimensions decays. As in GPT-2, matrices and embeddings do,
/// biases and layer norms do not.
fn decays(dimensions: usize) -> bool {
    dimensions >= 2
}

/// A weight that an update has gone past.
enum Taken {
    /// Its shape: AdamW updates it, with all others at once.
    AdamW(Shape),
    /// The new state of a weight that has been updated.
    Updated(PartState),
}
