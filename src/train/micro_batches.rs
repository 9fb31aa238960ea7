//! The micro-batches of an update.

use burn::tensor::Tensor;

use super::job::Job;
use super::rank_part::RankPart;
use crate::data::DataError;
use crate::model::{Gpt, MicroBatch, Pass, StepDropout, Take, WeightGradients};
use crate::ops::CrossEntropy;
use crate::plan::Plan;
use crate::protocol::Failure;
use crate::ranks::LeavingGradients;

pub(super) struct MicroBatches<'a> {
    pub job: &'a Job,
    pub plan: &'a Plan,
    pub ranks: &'a RankPart,
    pub iteration: u64,
}

impl MicroBatches<'_> {
    /// Returns the tokens over which the loss is a mean. Those of conversations are read once more for
    /// that, since the first micro-batch needs their number. Each rank reads the tokens of all ranks,
    /// because asking the others would be one more wait in each update.
    pub fn counted(&self) -> Result<usize, Failure> {
        let sequences = self.job.config.global_batch() as usize;
        if !self.job.dataset.train.has_conversations() {
            return Ok(sequences * self.job.config.block_size.get() as usize);
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
        let Job { config, dataset, .. } = self.job;
        let windows = dataset.train.windows(config.block_size.get() as usize);
        let tokens_of = |number| windows.training(config.seed, self.iteration, number as u64);
        MicroBatch::read(&windows, (first..first + count).map(tokens_of))
    }

    /// Adds the gradients of micro-batch `micro_step` of the next update. Returns its share of the mean
    /// loss, which is over `counted` tokens. In the last micro-batch, `leaving` gets each sum as soon as
    /// nothing more is added to it.
    pub fn add_gradients(
        &self,
        model: &Gpt,
        micro_step: usize,
        counted: usize,
        sums: &mut WeightGradients,
        leaving: Option<&mut LeavingGradients>,
    ) -> Result<Tensor<1>, Failure> {
        let Plan { micro_batch, loss_chunk, grad_checkpoint, .. } = *self.plan;
        let loss = CrossEntropy {
            vocab: model.architecture().vocab_size,
            chunk: loss_chunk,
            scale: 1.0 / counted as f32,
        };
        let first = self.ranks.first_sequence() + micro_step * micro_batch;
        let batch = self.read(first, micro_batch)?;
        let dropout = (self.job.config.dropout > 0.0).then_some(StepDropout {
            rate: self.job.config.dropout as f32,
            seed: self.job.config.seed,
            step: self.iteration,
            first_sequence: first as u32,
        });
        let pass = Pass { mode: self.job.mode, dropout };
        let mut take = leaving.map(|leaving| move |index, gradient| leaving.push(index, gradient));
        let take = take.as_mut().map(|take| take as Take<'_>);
        Ok(model.add_gradients(&batch, loss, pass, grad_checkpoint, sums, take))
    }
}
