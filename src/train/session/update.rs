//! An update of the weights, and its results.

use std::time::Duration;

use burn::tensor::Tensor;
use web_time::Instant;

#[cfg(not(target_arch = "wasm32"))]
use super::together::sum_over_ranks;
use super::working::Reporter;
use super::{Clock, MODEL, Session, sync_is_due};
use crate::config::{self, Config};
use crate::data::Dataset;
use crate::gpu;
use crate::model::{Gpt, Pass, StepDropout, WeightGradients, scalar};
use crate::ops::{CrossEntropy, OpsMode};
use crate::plan::Plan;
use crate::protocol::{Event, RankStep, Step};
#[cfg(not(target_arch = "wasm32"))]
use crate::ranks::Wire;
use crate::train::batches::Batches;
use crate::train::{LossScale, TrainError, has_checkpoint};

/// The results of an update, still on the device.
pub(super) struct Update {
    loss: Tensor<1>,
    norm: Tensor<1>,
    learning_rate: f64,
}

/// The results of an update, on the host.
pub(super) struct Results {
    /// Not finite only if the loss is scaled.
    loss: f64,
    /// `None` if the update was skipped.
    norm: Option<f64>,
    learning_rate: f64,
    loss_scale: LossScale,
}

impl Session<'_> {
    /// Makes one update of the weights from the whole global batch.
    pub(super) async fn update(&mut self) -> Result<(), TrainError> {
        let accumulation = self.forecast.plan.accumulation;
        let model = self.model.take().expect(MODEL);
        let micro_batches = MicroBatches {
            config: &self.config,
            dataset: &self.dataset,
            plan: &self.forecast.plan,
            mode: self.mode,
            iteration: self.iteration,
            first_sequence: self.first_sequence(),
            mean_over: self.mean_over(),
        };
        let tokens = micro_batches.tokens();
        let grads = match accumulation {
            1 => WeightGradients::default(),
            _ => WeightGradients::zeros(&model),
        };
        let mut grads = grads.scaled(self.optimizer.loss_scale());
        let is_first = self.last_update.is_none();
        let mut reporter = Reporter::update(accumulation, is_first, &self.device, &mut *self.emit);
        let mut total: Option<Tensor<1>> = None;
        for micro_step in 0..accumulation {
            reporter.report(micro_step as u64);
            let value = micro_batches.add_gradients(&model, micro_step, counted, &mut grads)?;
            total = Some(match total {
                Some(total) => total + value,
                None => value,
            });
            if micro_step + 1 < accumulation && sync_is_due(&self.device.watchdog) {
                gpu::finish(&self.device.device).await?;
                self.device.watchdog.restart();
            }
        }
        let grads = grads.into_vec();
        #[cfg(not(target_arch = "wasm32"))]
        let (grads, total) = match (self.group.is_alone(), total) {
            (false, Some(total)) if self.config.trains_apart() => {
                (grads, Some(self.mean_of_ranks(total).await?))
            }
            (false, Some(total)) => {
                let (group, watchdog) = (&mut self.group, &self.device.watchdog);
                let (sums, spent) = sum_over_ranks(group, self.wire, watchdog, grads).await?;
                // The loss is a number to be read: it keeps its digits.
                let loss = vec![total];
                let (mut loss, more) = sum_over_ranks(group, Wire::Float32, watchdog, loss).await?;
                self.network += spent + more;
                (sums, loss.pop())
            }
            (_, total) => (grads, total),
        };
        let learning_rate = self
            .learning_rate
            .unwrap_or_else(|| config::learning_rate(&self.config, self.iteration));
        let step = self.iteration + 1;
        let (model, norm) = self.optimizer.update(model, grads, step, learning_rate, tokens).await;
        #[cfg(not(target_arch = "wasm32"))]
        let model = {
            let (group, watchdog) = (&mut self.group, &self.device.watchdog);
            let (model, spent) = self.optimizer.gather_weights(model, group, watchdog).await?;
            self.network += spent;
            model
        };
        self.model = Some(model);
        self.iteration = step;
        self.last_update = total.map(|loss| Update { loss, norm, learning_rate });
        Ok(())
    }

    /// Returns the first sequence of this rank in the global batch.
    pub(super) fn first_sequence(&self) -> usize {
        self.division.shares.first(self.group.rank()) as usize
    }

    /// Reads the results of the last update, if this process has made one.
    ///
    /// # Errors
    /// `NotFinite` if training has diverged. The weights are finite even then, but what led there
    /// is in them: they must not take the place of an earlier checkpoint.
    pub(super) async fn results(&self) -> Result<Option<Results>, TrainError> {
        let Some(update) = &self.last_update else { return Ok(None) };
        let loss = f64::from(scalar(update.loss.clone()).await);
        let norm = f64::from(scalar(update.norm.clone()).await);
        let loss_scale = self.optimizer.read_loss_scale().await;
        let diverged = |since: u64, scaling: Option<LossScale>| TrainError::NotFinite {
            iter: (self.iteration - 1).saturating_sub(since),
            scaling,
            has_checkpoint: has_checkpoint(self.folder.path()),
        };
        if self.mode.precision.scales_loss() {
            // A loss that is not finite counts as its gradient does.
            if loss_scale.has_failed() {
                return Err(diverged(0, Some(loss_scale)));
            }
        } else if loss_scale.skipped > self.skipped {
            // Maybe not in the last update, but in one that was not logged.
            return Err(diverged(loss_scale.clean, None));
        } else if !loss.is_finite() {
            return Err(diverged(0, None));
        }
        let norm = Some(norm).filter(|norm| norm.is_finite());
        Ok(Some(Results { loss, norm, learning_rate: update.learning_rate, loss_scale }))
    }

    /// Reads the results of the last update and emits them. This is the only wait of a step.
    pub(super) async fn log(&mut self, clock: &mut Clock) -> Result<(), TrainError> {
        let Some(results) = self.results().await? else { return Ok(()) };
        let spent = clock.since.elapsed().saturating_sub(clock.paused);
        let network = std::mem::take(&mut self.network);
        self.count_pace(spent.saturating_sub(network), clock.iterations);
        let per_update = |time: Duration| time.as_secs_f64() * 1e3 / clock.iterations as f64;
        let network_ms = per_update(network);
        let compute_ms = per_update(spent.saturating_sub(network));
        let seconds = spent.as_secs_f64() / clock.iterations as f64;
        let tokens = self.config.global_batch() * u64::from(self.config.block_size.get());
        let memory = self.memory.read(&self.device);
        let ranks =
            self.of_all_ranks(RankStep { compute_ms, network_ms, vram_bytes: memory.held })?;
        let scales_loss = self.mode.precision.scales_loss();
        let of_optimizer = self.optimizer.take_time();
        self.emit(Event::Step(Step {
            iter: self.iteration - 1,
            loss: results.loss,
            lr: results.learning_rate,
            grad_norm: results.norm,
            loss_scale: scales_loss.then_some(results.loss_scale.scale),
            skipped: results.loss_scale.skipped,
            tokens,
            ms: seconds * 1e3,
            optimizer_ms: of_optimizer
                .map(|time| time.as_secs_f64() * 1e3 / clock.iterations as f64),
            network_ms: Some(network_ms).filter(|_| !self.group.is_alone()),
            tokens_per_s: tokens as f64 / seconds,
            vram_bytes: memory.held,
            vram_peak_bytes: memory.peak,
            vram_classes: self.memory_by_class(),
            others_bytes: memory.others,
            ranks,
        }));
        *clock = Clock { since: Instant::now(), paused: Duration::ZERO, iterations: 0 };
        Ok(())
    }
}

/// The micro-batches of an update that this rank computes.
pub(super) struct MicroBatches<'a> {
    pub config: &'a Config,
    pub dataset: &'a Dataset,
    pub plan: &'a Plan,
    pub mode: OpsMode,
    /// Updates made before.
    pub iteration: u64,
    /// The first sequence of this rank in the global batch.
    pub first_sequence: usize,
    /// The sequences over which the loss is a mean.
    pub mean_over: usize,
}

impl MicroBatches<'_> {
    /// Returns the tokens over which the loss is a mean.
    fn tokens(&self) -> usize {
        self.mean_over * self.config.block_size.get() as usize
    }

    /// Adds the gradients of micro-batch `micro_step` of the next update; returns its share of the
    /// mean loss.
    pub fn add_gradients(
        &self,
        model: &Gpt,
        micro_step: usize,
        counted: usize,
        grads: &mut WeightGradients,
    ) -> Result<Tensor<1>, TrainError> {
        let Plan { micro_batch, loss_chunk, grad_checkpoint, .. } = *self.plan;
        let loss = CrossEntropy {
            vocab: model.architecture().vocab_size,
            chunk: loss_chunk,
            scale: 1.0 / counted as f32,
        };
        let first = self.first_sequence + micro_step * micro_batch;
        let batch = batches.train(self.iteration, first, micro_batch)?;
        let dropout = (self.config.dropout > 0.0).then_some(StepDropout {
            rate: self.config.dropout as f32,
            seed: self.config.seed,
            step: self.iteration,
            first_sequence: first as u32,
        });
        let pass = Pass { mode: self.mode, dropout };
        Ok(model.add_gradients(&batch, loss, pass, grad_checkpoint, grads))
    }
}
