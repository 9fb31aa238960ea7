//! A model in training: what an update advances, an evaluation measures and a checkpoint saves.

use burn::tensor::Tensor;

use super::Result;
use super::inputs::{RunInputs, StepPlan};
use super::journal::Journal;
use super::learner::{LastUpdate, Learner};
use super::position::Position;
use super::rank_part::RankPart;
use crate::config::Config;
use crate::data::DataError;
use crate::gpu::{self, DeviceKind};
use crate::model::{LossScale, MicroBatch, Pass, StepDropout, Take, WeightGradients, scalar};
use crate::ops::CrossEntropy;
use crate::plan::Plan;
use crate::protocol::{Failure, Task};
use crate::ranks::{LeavingGradients, sum_over_ranks};

pub(super) struct Training {
    pub inputs: RunInputs,
    pub steps: StepPlan,
    pub ranks: RankPart,
    pub learner: Learner,
    pub position: Position,
}

struct BatchGradients {
    /// In the order of the model.
    gradients: Vec<Tensor<1>>,
    /// `[1]`.
    loss: Option<Tensor<1>>,
    /// The tokens over which gradients and loss are means.
    tokens: usize,
}

pub(super) struct UpdateResults {
    /// Not finite only if the loss is scaled.
    pub loss: f64,
    /// `None` if the update was skipped.
    pub norm: Option<f64>,
    pub learning_rate: f64,
    pub loss_scale: LossScale,
}

impl Training {
    /// Returns the configuration of this rank's share of the global batch.
    pub fn own_config(&self) -> Config {
        self.ranks.own_config(&self.inputs.config)
    }

    /// Makes one update of the weights from the whole global batch.
    pub async fn update(&mut self, journal: &mut Journal<'_>) -> Result<()> {
        let BatchGradients { gradients, loss, tokens } = self.gradients(journal).await?;
        let learning_rate = self.position.learning_rate(&self.inputs.config);
        let step = self.position.iteration + 1;
        let learner = &mut self.learner;
        let update =
            learner.optimizer.update(&mut learner.model, gradients, step, learning_rate, tokens);
        let norm = update.await;
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(sharding) = &learner.optimizer.sharding {
            let RankPart { group, network, .. } = &mut self.ranks;
            let watchdog = &learner.device.watchdog;
            let gathered = sharding.gather_weights::<Failure>(&mut learner.model, group, watchdog);
            *network += gathered.await?;
        }
        learner.last_update = loss.map(|loss| LastUpdate { loss, norm, learning_rate });
        self.position.iteration = step;
        Ok(())
    }

    /// Computes the gradients of the next update. On several ranks, each computes the gradients of
    /// its share, and they are summed.
    async fn gradients(&mut self, journal: &mut Journal<'_>) -> Result<BatchGradients> {
        let Learner { model, optimizer, device, last_update, .. } = &self.learner;
        let accumulation = self.steps.plan().accumulation;
        let tokens = self.counted_tokens()?;
        let sums = if accumulation == 1 {
            WeightGradients::default()
        } else {
            WeightGradients::zeros(model)
        };
        let mut sums = sums.scaled(optimizer.loss_scale());
        // The first update of a process waits for the compiler of the kernels.
        let compiles = last_update.is_none() && device.info.kind != DeviceKind::Cpu;
        let task = if compiles { Task::Compile } else { Task::Step };
        let total = if accumulation > 1 { accumulation as u64 } else { 0 };
        let mut reporter = journal.report(task, total);
        if compiles {
            reporter.announce(0);
        }
        let mut loss: Option<Tensor<1>> = None;
        let mut leaving = (!self.ranks.group.is_alone()).then(LeavingGradients::default);
        for micro_step in 0..accumulation {
            reporter.report(micro_step as u64);
            let is_last = micro_step + 1 == accumulation;
            let leaving = leaving.as_mut().filter(|_| is_last);
            let value = self.add_gradients(micro_step, tokens, &mut sums, leaving)?;
            loss = Some(match loss {
                Some(loss) => loss + value,
                None => value,
            });
            if !is_last && self.learner.sync_is_due() {
                gpu::finish(&device.device).await?;
                device.watchdog.restart();
            }
        }
        let (Some(leaving), Some(own)) = (leaving, loss.clone()) else {
            return Ok(BatchGradients { gradients: sums.into_vec(), loss, tokens });
        };
        let group = &mut self.ranks.group;
        let sums = sum_over_ranks::<Failure>(group, &device.watchdog, leaving, own)?;
        self.ranks.network += sums.waited;
        Ok(BatchGradients { gradients: sums.gradients, loss: Some(sums.loss), tokens })
    }

    /// Returns the number of tokens over which the loss of the next update is a mean. Conversations are
    /// read once more to count them, since the first micro-batch needs the number. Each rank reads the
    /// tokens of all ranks, because asking the others would be one more wait in each update.
    pub fn counted_tokens(&self) -> Result<usize> {
        let RunInputs { config, dataset, .. } = &self.inputs;
        let sequences = config.global_batch() as usize;
        if !dataset.train.has_conversations() {
            return Ok(sequences * config.block_size.get() as usize);
        }
        let mut counted = 0;
        for sequence in 0..sequences {
            counted += self.read(sequence, 1)?.counted();
        }
        Ok(counted)
    }

    /// Reads sequences `first..first + count` of the global batch. They depend on the seed, the
    /// iteration and their number only, not on the micro-batch.
    fn read(&self, first: usize, count: usize) -> Result<MicroBatch, DataError> {
        let RunInputs { config, dataset, .. } = &self.inputs;
        let windows = dataset.train.windows(config.block_size.get() as usize);
        let iteration = self.position.iteration;
        let tokens_of = |number| windows.training(config.seed, iteration, number as u64);
        MicroBatch::read(&windows, (first..first + count).map(tokens_of))
    }

    /// Adds the gradients of micro-batch `micro_step` of the next update to `sums`. Returns its share of
    /// the mean loss, which is over `counted` tokens. In the last micro-batch, `leaving` gets each sum as
    /// soon as nothing more is added to it.
    pub fn add_gradients(
        &self,
        micro_step: usize,
        counted: usize,
        sums: &mut WeightGradients,
        leaving: Option<&mut LeavingGradients>,
    ) -> Result<Tensor<1>> {
        let RunInputs { config, mode, .. } = &self.inputs;
        let Plan { micro_batch, loss_chunk, grad_checkpoint, .. } = *self.steps.plan();
        let model = &self.learner.model;
        let loss = CrossEntropy {
            vocab: model.architecture().vocab_size,
            chunk: loss_chunk,
            scale: 1.0 / counted as f32,
        };
        let first = self.ranks.first_sequence() + micro_step * micro_batch;
        let batch = self.read(first, micro_batch)?;
        let dropout = (config.dropout > 0.0 || config.lora_dropout > 0.0).then_some(StepDropout {
            rate: config.dropout as f32,
            adapter_rate: config.lora_dropout as f32,
            seed: config.seed,
            step: self.position.iteration,
            first_sequence: first as u32,
        });
        let pass = Pass { mode: *mode, dropout };
        let mut take = leaving.map(|leaving| move |index, gradient| leaving.push(index, gradient));
        let take = take.as_mut().map(|take| take as Take<'_>);
        Ok(model.add_gradients(&batch, loss, pass, grad_checkpoint, sums, take))
    }

    /// Reads the results of the last update, if this process has made one.
    ///
    /// # Errors
    /// `NotFinite` if training has diverged. The weights are finite even then, but the divergence began
    /// before: they must not take the place of an earlier checkpoint.
    pub async fn results(&self, journal: &Journal<'_>) -> Result<Option<UpdateResults>> {
        let Learner { optimizer, last_update, skipped, .. } = &self.learner;
        let Some(update) = last_update else { return Ok(None) };
        let loss = f64::from(scalar(update.loss.clone()).await);
        let norm = f64::from(scalar(update.norm.clone()).await);
        let loss_scale = optimizer.read_loss_scale().await;
        // `since` counts the updates after the one that was not finite.
        let diverged = |since: u64, scaling| {
            let iter = (self.position.iteration - 1).saturating_sub(since);
            Err(journal.not_finite(iter, scaling))
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
        Ok(Some(UpdateResults { loss, norm, learning_rate: update.learning_rate, loss_scale }))
    }
}
