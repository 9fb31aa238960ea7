//! An update of the weights, and its results.

use std::time::Duration;

use burn::tensor::Tensor;
use web_time::Instant;

use super::{Session, sync_is_due};
use crate::gpu::{self, DeviceKind};
use crate::model::{Gpt, LossScale, WeightGradients, scalar};
use crate::protocol::{Event, Failure, RankStep, Step, Task};
use crate::ranks::{LeavingGradients, sum_over_ranks};
use crate::train::learner::{Learner, Update};
use crate::train::micro_batches::MicroBatches;

struct BatchGradients {
    /// In the order of the model.
    gradients: Vec<Tensor<1>>,
    /// `[1]`.
    loss: Option<Tensor<1>>,
    /// The tokens over which gradients and loss are means.
    tokens: usize,
}

pub(super) struct Results {
    /// Not finite only if the loss is scaled.
    loss: f64,
    /// `None` if the update was skipped.
    norm: Option<f64>,
    learning_rate: f64,
    loss_scale: LossScale,
}

/// The time spent on updates since the last log line.
pub(super) struct Clock {
    pub since: Instant,
    pub paused: Duration,
    pub iterations: u64,
}

impl Clock {
    pub fn start() -> Self {
        Self { since: Instant::now(), paused: Duration::ZERO, iterations: 0 }
    }
}

impl Session<'_> {
    /// Makes one update of the weights from the whole global batch.
    pub(super) async fn update(&mut self) -> Result<(), Failure> {
        let model = self.learner.take();
        let BatchGradients { gradients, loss, tokens } = self.gradients(&model).await?;
        let learning_rate = self.position.learning_rate(&self.job.config);
        let step = self.position.iteration + 1;
        let optimizer = &mut self.learner.optimizer;
        let (model, norm) = optimizer.update(model, gradients, step, learning_rate, tokens).await;
        #[cfg(not(target_arch = "wasm32"))]
        let model = match &optimizer.sharding {
            None => model,
            Some(sharding) => {
                let (group, watchdog) = (&mut self.ranks.group, &self.device.watchdog);
                let gathered = sharding.gather_weights::<Failure>(model, group, watchdog);
                let (model, spent) = gathered.await?;
                self.ranks.network += spent;
                model
            }
        };
        self.learner.put(model);
        self.position.iteration = step;
        self.learner.last_update = loss.map(|loss| Update { loss, norm, learning_rate });
        Ok(())
    }

    /// Computes the gradients of the next update. On several ranks, each computes the gradients of
    /// its share, and they are summed.
    async fn gradients(&mut self, model: &Gpt) -> Result<BatchGradients, Failure> {
        let plan = self.steps.plan();
        let accumulation = plan.accumulation;
        let iteration = self.position.iteration;
        let micro_batches = MicroBatches { job: &self.job, plan, ranks: &self.ranks, iteration };
        let tokens = micro_batches.counted()?;
        let sums = if accumulation == 1 {
            WeightGradients::default()
        } else {
            WeightGradients::zeros(model)
        };
        let mut sums = sums.scaled(self.learner.optimizer.loss_scale());
        // The first update of a process waits for the compiler of the kernels.
        let compiles =
            self.learner.last_update.is_none() && self.device.info.kind != DeviceKind::Cpu;
        let task = if compiles { Task::Compile } else { Task::Step };
        let total = if accumulation > 1 { accumulation as u64 } else { 0 };
        let mut reporter = self.journal.report(task, total);
        if compiles {
            reporter.announce(0);
        }
        let mut loss: Option<Tensor<1>> = None;
        let mut leaving = (!self.ranks.group.is_alone()).then(LeavingGradients::default);
        for micro_step in 0..accumulation {
            reporter.report(micro_step as u64);
            let is_last = micro_step + 1 == accumulation;
            let leaving = leaving.as_mut().filter(|_| is_last);
            let value =
                micro_batches.add_gradients(model, micro_step, tokens, &mut sums, leaving)?;
            loss = Some(match loss {
                Some(loss) => loss + value,
                None => value,
            });
            if !is_last && sync_is_due(&self.device.watchdog) {
                gpu::finish(&self.device.device).await?;
                self.device.watchdog.restart();
            }
        }
        let (Some(leaving), Some(own)) = (leaving, loss.clone()) else {
            return Ok(BatchGradients { gradients: sums.into_vec(), loss, tokens });
        };
        let group = &mut self.ranks.group;
        let sums = sum_over_ranks::<Failure>(group, &self.device.watchdog, leaving, own)?;
        self.ranks.network += sums.waited;
        Ok(BatchGradients { gradients: sums.gradients, loss: Some(sums.loss), tokens })
    }

    /// Reads the results of the last update, if this process has made one.
    ///
    /// # Errors
    /// `NotFinite` if training has diverged. The weights are finite even then, but what led there is in
    /// them: they must not take the place of an earlier checkpoint.
    pub(super) async fn results(&self) -> Result<Option<Results>, Failure> {
        let Learner { optimizer, last_update, skipped, .. } = &self.learner;
        let Some(update) = last_update else { return Ok(None) };
        let loss = f64::from(scalar(update.loss.clone()).await);
        let norm = f64::from(scalar(update.norm.clone()).await);
        let loss_scale = optimizer.read_loss_scale().await;
        // `since` counts the updates after the one that was not finite.
        let diverged = |since: u64, scaling| {
            let iter = (self.position.iteration - 1).saturating_sub(since);
            Err(self.journal.not_finite(iter, scaling))
        };
        if optimizer.loss_scale().is_some() {
            // A loss that is not finite counts as its gradient does.
            if loss_scale.has_failed() {
                return diverged(0, Some(loss_scale));
            }
        } else if loss_scale.skipped > *skipped {
            // Maybe not in the last update, but in one that was not logged.
            return diverged(loss_scale.clean, None);
        } else if !loss.is_finite() {
            return diverged(0, None);
        }
        let norm = Some(norm).filter(|norm| norm.is_finite());
        Ok(Some(Results { loss, norm, learning_rate: update.learning_rate, loss_scale }))
    }

    /// Reads the results of the last update and emits them. This is the only wait of a step.
    pub(super) async fn log(&mut self, clock: &mut Clock) -> Result<(), Failure> {
        let Some(results) = self.results().await? else { return Ok(()) };
        let spent = clock.since.elapsed().saturating_sub(clock.paused);
        let network = std::mem::take(&mut self.ranks.network);
        self.count_pace(spent.saturating_sub(network), clock.iterations);
        let per_update = |time: Duration| time.as_secs_f64() * 1e3 / clock.iterations as f64;
        let network_ms = per_update(network);
        let compute_ms = per_update(spent.saturating_sub(network));
        let seconds = spent.as_secs_f64() / clock.iterations as f64;
        let config = &self.job.config;
        let tokens = config.global_batch() * u64::from(config.block_size.get());
        let vram_bytes = self.memory.read(&self.device);
        let ranks = self.ranks.steps(RankStep { compute_ms, network_ms, vram_bytes })?;
        let scales_loss = self.job.mode.precision.scales_loss();
        let of_optimizer = self.learner.optimizer.take_time();
        self.journal.emit(Event::Step(Step {
            iter: self.position.iteration - 1,
            loss: results.loss,
            lr: results.learning_rate,
            grad_norm: results.norm,
            loss_scale: scales_loss.then_some(results.loss_scale.scale),
            skipped: results.loss_scale.skipped,
            tokens,
            ms: seconds * 1e3,
            optimizer_ms: of_optimizer.map(per_update),
            network_ms: Some(network_ms).filter(|_| !self.ranks.group.is_alone()),
            tokens_per_s: tokens as f64 / seconds,
            vram_bytes,
            vram_peak_bytes: vram_bytes.map(|_| self.memory.peak),
            vram_classes: self.memory_by_class(),
            others_bytes: self.memory.others,
            health: self.memory.health,
            ranks,
        }));
        if let Some(text) = self.memory.throttle_warning() {
            self.journal.warn(text);
        }
        self.avoid_paging(compute_ms * 1e-3).await?;
        *clock = Clock::start();
        Ok(())
    }
}
