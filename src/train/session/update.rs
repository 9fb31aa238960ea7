//! An update of the weights, and its results.

use std::ops::Range;
use std::time::Duration;

use burn::tensor::Tensor;
use web_time::Instant;

use super::together::{Gradients, sum_over_ranks};
use super::working::Reporter;
use super::{Clock, MODEL, Session, sync_is_due};
use crate::config::{self, Config};
use crate::data::Dataset;
use crate::gpu;
use crate::model::{Gpt, MicroBatch, Pass, StepDropout, WeightGradients, scalar};
use crate::ops::{CrossEntropy, OpsMode};
use crate::plan::Plan;
use crate::protocol::{Event, RankStep, Step};
use crate::runs::has_checkpoint;
use crate::train::batches::Batches;
use crate::train::{LossScale, TrainError};

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
        let model = self.model.take().expect(MODEL);
        let (grads, loss, counted) = self.gradients(&model).await?;
        let learning_rate = self
            .learning_rate
            .unwrap_or_else(|| config::learning_rate(&self.config, self.iteration));
        let step = self.iteration + 1;
        let (model, norm) = self.optimizer.update(model, grads, step, learning_rate, counted).await;
        #[cfg(not(target_arch = "wasm32"))]
        let model = match self.optimizer.sharding() {
            None => model,
            Some(sharding) => {
                let (group, watchdog) = (&mut self.group, &self.device.watchdog);
                let gathered = sharding.gather_weights::<TrainError>(model, group, watchdog);
                let (model, spent) = gathered.await?;
                self.network += spent;
                model
            }
        };
        self.model = Some(model);
        self.iteration = step;
        self.last_update = loss.map(|loss| Update { loss, norm, learning_rate });
        Ok(())
    }

    /// Returns the gradients of the next update in the order of the model, its loss, and the tokens over
    /// which both are means. On several ranks, each computes those of its share, and they are summed.
    async fn gradients(
        &mut self,
        model: &Gpt,
    ) -> Result<(Vec<Tensor<1>>, Option<Tensor<1>>, usize), TrainError> {
        let accumulation = self.forecast.plan.accumulation;
        let micro_batches = MicroBatches {
            config: &self.config,
            dataset: &self.dataset,
            plan: &self.forecast.plan,
            mode: self.mode,
            iteration: self.iteration,
            first_sequence: self.first_sequence(),
            mean_over: self.mean_over(),
        };
        let counted = micro_batches.counted()?;
        let sums = match accumulation {
            1 => WeightGradients::default(),
            _ => WeightGradients::zeros(model),
        };
        let mut sums = sums.scaled(self.optimizer.loss_scale());
        let is_first = self.last_update.is_none();
        let mut reporter = Reporter::update(accumulation, is_first, &self.device, &mut *self.emit);
        let mut loss: Option<Tensor<1>> = None;
        let are_summed = !self.group.is_alone() && !self.config.trains_apart();
        let mut leaving = are_summed.then(Gradients::default);
        for micro_step in 0..accumulation {
            reporter.report(micro_step as u64);
            let is_last = micro_step + 1 == accumulation;
            let value = match &mut leaving {
                Some(leaving) if is_last => {
                    let sums = std::mem::take(&mut sums);
                    let mut take = |gradient| leaving.push(gradient);
                    micro_batches.last_gradients(model, micro_step, counted, sums, &mut take)?
                }
                _ => micro_batches.add_gradients(model, micro_step, counted, &mut sums)?,
            };
            loss = Some(match loss {
                Some(loss) => loss + value,
                None => value,
            });
            if !is_last && sync_is_due(&self.device.watchdog) {
                gpu::finish(&self.device.device).await?;
                self.device.watchdog.restart();
            }
        }
        if let (false, true, Some(own)) = (self.group.is_alone(), self.config.trains_apart(), &loss)
        {
            let mean = self.mean_of_ranks(own.clone(), counted).await?;
            return Ok((sums.into_vec(), Some(mean), counted));
        }
        let (Some(leaving), Some(own)) = (leaving, loss.clone()) else {
            return Ok((sums.into_vec(), loss, counted));
        };
        let (group, watchdog) = (&mut self.group, &self.device.watchdog);
        let sums = sum_over_ranks(group, self.wire, watchdog, leaving, own).await?;
        self.network += sums.waited;
        Ok((WeightGradients::in_model_order(sums.gradients, model), Some(sums.loss), counted))
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
    /// The sequences of the global batch over whose tokens the loss is a mean.
    pub mean_over: Range<usize>,
}

impl MicroBatches<'_> {
    /// Returns the tokens over which the loss is a mean. Those of conversations are read once more for
    /// that, since the first micro-batch needs their number. Each rank reads those of all ranks: to ask
    /// the others would be one more wait in each update.
    pub fn counted(&self) -> Result<usize, TrainError> {
        let batches = self.batches();
        if !self.dataset.train.has_conversations() {
            return Ok(self.mean_over.len() * batches.block_size);
        }
        let mut counted = 0;
        for sequence in self.mean_over.clone() {
            counted += batches.train(self.iteration, sequence, 1)?.counted();
        }
        Ok(counted)
    }

    fn batches(&self) -> Batches<'_> {
        let block_size = self.config.block_size.get() as usize;
        Batches { dataset: self.dataset, seed: self.config.seed, block_size }
    }

    /// Adds the gradients of micro-batch `micro_step` of the next update; returns its share of the
    /// mean loss, which is over `counted` tokens.
    pub fn add_gradients(
        &self,
        model: &Gpt,
        micro_step: usize,
        counted: usize,
        sums: &mut WeightGradients,
    ) -> Result<Tensor<1>, TrainError> {
        let (batch, loss, pass) = self.micro_batch(model, micro_step, counted)?;
        Ok(model.add_gradients(&batch, loss, pass, self.plan.grad_checkpoint, sums))
    }

    /// As [`add_gradients`](Self::add_gradients), for the last micro-batch: gives the sums to `take`,
    /// each as soon as nothing more is added to it.
    fn last_gradients(
        &self,
        model: &Gpt,
        micro_step: usize,
        counted: usize,
        sums: WeightGradients,
        take: &mut dyn FnMut(Tensor<1>),
    ) -> Result<Tensor<1>, TrainError> {
        let (batch, loss, pass) = self.micro_batch(model, micro_step, counted)?;
        Ok(model.last_gradients(&batch, loss, pass, self.plan.grad_checkpoint, sums, take))
    }

    fn micro_batch(
        &self,
        model: &Gpt,
        micro_step: usize,
        counted: usize,
    ) -> Result<(MicroBatch, CrossEntropy, Pass), TrainError> {
        let Plan { micro_batch, loss_chunk, .. } = *self.plan;
        let loss = CrossEntropy {
            vocab: model.architecture().vocab_size,
            chunk: loss_chunk,
            scale: 1.0 / counted as f32,
        };
        let first = self.first_sequence + micro_step * micro_batch;
        let batch = self.batches().train(self.iteration, first, micro_batch)?;
        let dropout = (self.config.dropout > 0.0).then_some(StepDropout {
            rate: self.config.dropout as f32,
            seed: self.config.seed,
            step: self.iteration,
            first_sequence: first as u32,
        });
        Ok((batch, loss, Pass { mode: self.mode, dropout }))
    }
}
