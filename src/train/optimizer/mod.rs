//! The optimizer: after a clip of the global gradient norm, a rule for each weight.

use std::convert::Infallible;
use std::time::Duration;
use std::vec::IntoIter;

use burn::tensor::{DType, Tensor};

use crate::config::Config;
use crate::gpu::Watchdog;
use crate::model::{Gpt, LossScale, Parameter, parameters, put_weights, take_weights};
use crate::ops::{self, AdamW, Moments, OpsMode, UpdateControl, UpdateSettings, WeightUpdate};
use crate::ranks::Sharding;

mod muon;
#[cfg(not(target_arch = "wasm32"))]
mod offload;
mod state;

use muon::Muon;
pub use state::Masters;
use state::{PartState, Rule, lengths, tensors};

/// The epsilon of PyTorch and of GPT-2.
const EPS: f64 = 1e-8;

pub struct Optimizer {
    config: Config,
    /// One for each part of each parameter, in the order of the model. Without states for the parameters
    /// that other ranks update.
    parts: Vec<PartState>,
    /// Present if the states are divided among ranks.
    pub(crate) sharding: Option<Sharding>,
    /// Present if the states are in host memory; `None` if they are on the model's device.
    offload: Option<Offload>,
    /// The state of loss scaling on the device, `[4]`; without scaling, it counts skipped updates.
    loss_scale: Tensor<1>,
    mode: OpsMode,
}

#[derive(Default)]
struct Offload {
    /// Restarted at each answer of the device: an update waits for many.
    watchdog: Watchdog,
    /// The time that updates took after their gradients, since it was last asked for.
    spent: Duration,
}

impl Optimizer {
    /// Creates an optimizer for `model` with zero states on the model's device, either all or those of this
    /// rank. With `masters`, states and master weights are in host memory: the CPU applies AdamW to the
    /// device's gradients, and uploads the new weights.
    pub fn new(
        config: &Config,
        model: &Gpt,
        masters: Option<Masters>,
        sharding: Option<Sharding>,
        mode: OpsMode,
    ) -> Self {
        let zeros = |_: &str, _: &[usize]| Ok::<_, Infallible>(None);
        let Ok(optimizer) = Self::load(config, model, masters, sharding, mode, zeros);
        optimizer
    }

    /// Creates an optimizer with saved states, offloaded with `masters`, or with the states of this rank.
    /// `saved` returns the values of a tensor by its name in checkpoints and the shape of its parameter, or
    /// `None` for zeros; padding at their end may be missing. It is asked for all tensors, whatever the
    /// sharding: ranks read them together.
    pub fn load<E>(
        config: &Config,
        model: &Gpt,
        mut masters: Option<Masters>,
        sharding: Option<Sharding>,
        mode: OpsMode,
        mut saved: impl FnMut(&str, &[usize]) -> Result<Option<Vec<f32>>, E>,
    ) -> Result<Self, E> {
        let mut built = Vec::new();
        let parameters = parameters(model);
        let device = parameters[0].parts[0].device();
        let place = masters.as_ref().map_or(&device, |masters| &masters.host).clone();
        for (index, Parameter { name, shape, parts }) in parameters.into_iter().enumerate() {
            let of_part = |part: &Tensor<1>| match masters {
                Some(_) => lengths(part.dims()[0]),
                None => part.dims().to_vec(),
            };
            let lengths: Vec<Vec<usize>> = parts.iter().map(of_part).collect();
            let is_own = sharding.as_ref().is_none_or(|sharding| sharding.owns(index));
            let all = if is_own { lengths.concat() } else { Vec::new() };
            let rule = Rule::of(config, &name);
            let mut state =
                |kind| Ok(tensors(saved(&format!("{kind}.{name}"), &shape)?, &all, &place));
            let mut m = state("m")?.into_iter();
            let v = if rule == Rule::AdamW { state("v")? } else { Vec::new() };
            let kept = match &mut masters {
                Some(masters) if rule.keeps_masters(parts[0].dtype() != DType::F32) => {
                    masters.take(&name, &all)
                }
                _ => Vec::new(),
            };
            let mut v = v.into_iter();
            let mut kept = kept.into_iter();
            for lengths in lengths {
                let of_part = |tensors: &mut IntoIter<Tensor<1>>| {
                    tensors.by_ref().take(lengths.len()).collect()
                };
                built.push(PartState {
                    rule,
                    masters: of_part(&mut kept),
                    m: of_part(&mut m),
                    v: of_part(&mut v),
                });
            }
        }
        #[cfg(not(target_arch = "wasm32"))]
        if masters.is_some() {
            crate::gpu::start_compute_threads();
        }
        let loss_scale = LossScale::new(mode.precision.scales_loss());
        Ok(Self {
            loss_scale: loss_scale.upload(&device),
            config: config.clone(),
            parts: built,
            sharding,
            offload: masters.map(|_| Offload::default()),
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
    pub fn watched_by(mut self, watchdog: &Watchdog) -> Self {
        if let Some(offload) = &mut self.offload {
            offload.watchdog = watchdog.clone();
        }
        self
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

    /// Returns the tensors of the states as checkpoints save them, named like `m.wte.weight` and in the
    /// shapes of their parameters in `model`. Those of other ranks have no parts.
    pub fn saved_states(&self, model: &Gpt) -> Vec<Parameter> {
        let mut own = self.parts.iter();
        let mut saved = Vec::new();
        for Parameter { name, shape, parts } in parameters(model) {
            let own: Vec<&PartState> = own.by_ref().take(parts.len()).collect();
            for kind in Rule::of(&self.config, &name).kinds() {
                saved.push(Parameter {
                    name: format!("{kind}.{name}"),
                    shape: shape.clone(),
                    parts: own.iter().flat_map(|part| part.states(kind)).cloned().collect(),
                });
            }
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
    /// batch, by which a scaled loss is yet to be divided. Returns the global norm before clipping as
    /// `[1]` on the device. If it is not finite, the update is skipped: model and states stay as they
    /// are. Waits for the device only if states are in host memory.
    pub async fn update(
        &mut self,
        model: &mut Gpt,
        grads: Vec<Tensor<1>>,
        step: u64,
        learning_rate: f64,
        tokens: usize,
    ) -> Tensor<1> {
        let scales_loss = self.mode.precision.scales_loss();
        let settings = UpdateSettings {
            grad_clip: clip_norm(self.config.grad_clip),
            divisor: if scales_loss { tokens as f32 } else { 1.0 },
            step,
            learning_rate,
            beta1: self.config.beta1,
            beta2: self.config.beta2,
            scales_loss,
        };
        let UpdateControl { norm, control, loss_scale } =
            ops::update_control(grads.clone(), self.loss_scale.clone(), settings, self.mode);
        self.loss_scale = loss_scale;
        #[cfg(not(target_arch = "wasm32"))]
        if self.offload.is_some() {
            self.update_offloaded(model, grads, control, learning_rate).await;
            return norm;
        }
        self.update_on_device(model, grads, control, learning_rate);
        norm
    }

    /// Updates a model on the device that holds its states.
    fn update_on_device(
        &mut self,
        model: &mut Gpt,
        grads: Vec<Tensor<1>>,
        control: Tensor<1>,
        learning_rate: f64,
    ) {
        let muon = self.muon(learning_rate, control.clone());
        let scalars = self.scalars(learning_rate);
        let mut weights = take_weights(model);
        // AdamW updates all its weights at once.
        let mut of_adamw = Vec::new();
        let mut updates = Vec::new();
        for ((weight, part), grad) in weights.iter_mut().zip(&mut self.parts).zip(grads) {
            // Another rank has the state.
            let Some(m) = part.m.pop() else { continue };
            // Nothing else holds the weight, so that it is updated in place.
            let w = std::mem::replace(&mut weight.value, control.clone());
            let half = weight.half.take();
            if let Rule::Muon { matrices } = part.rule {
                let shape = weight.shape.dims();
                let (value, half, m) = muon.update(w, half, grad, m, matrices, shape);
                (weight.value, weight.half) = (value, half);
                part.m.push(m);
            } else if let Some(v) = part.v.pop() {
                let decays = decays(weight.shape.num_dims());
                updates.push(WeightUpdate { w, half, grad, moments: Moments { m, v }, decays });
                of_adamw.push((weight, part));
            }
        }
        // Of a sharded optimizer with more ranks than weights, a rank may have none.
        if !updates.is_empty() {
            let updated = ops::adamw(updates, control, scalars, self.mode);
            for ((weight, part), (value, half, Moments { m, v })) in
                of_adamw.into_iter().zip(updated)
            {
                (weight.value, weight.half) = (value, half);
                part.m.push(m);
                part.v.push(v);
            }
        }
        put_weights(model, weights);
    }

    fn muon(&self, learning_rate: f64, control: Tensor<1>) -> Muon {
        let weight_decay = self.config.weight_decay;
        Muon { learning_rate, weight_decay, control, mode: self.mode }
    }

    fn scalars(&self, learning_rate: f64) -> AdamW {
        AdamW {
            decay: (1.0 - learning_rate * self.config.weight_decay) as f32,
            beta1: self.config.beta1 as f32,
            beta2: self.config.beta2 as f32,
            eps: EPS as f32,
        }
    }
}

/// Returns true if a weight with this number of dimensions decays. As in GPT-2, matrices and embeddings do,
/// biases and layer norms do not.
fn decays(dimensions: usize) -> bool {
    dimensions >= 2
}
/// Returns the norm as the kernels have it, where 0 is off: GPUs take a smaller number than these for 0.
fn clip_norm(grad_clip: f64) -> f32 {
    if grad_clip > 0.0 { (grad_clip as f32).max(f32::MIN_POSITIVE) } else { 0.0 }
}
