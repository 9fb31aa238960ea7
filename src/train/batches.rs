//! Windows of tokens as micro-batches.

use crate::data::{DataError, Dataset};
use crate::model::MicroBatch;

/// Reads micro-batches from a data set.
pub(super) struct Batches<'a> {
    pub dataset: &'a Dataset,
    /// The run's seed.
    pub seed: u64,
    /// Tokens of a window.
    pub block_size: usize,
}

impl Batches<'_> {
    /// Reads sequences `first..first + count` of the global batch of a step. They depend on the
    /// seed, the step and their number only, not on the micro-batch.
    pub fn train(&self, step: u64, first: usize, count: usize) -> Result<MicroBatch, DataError> {
        let windows = self.dataset.train.windows(self.block_size);
        let sequences = first..first + count;
        let tokens_of = |number| windows.training(self.seed, step, number as u64);
        MicroBatch::read(&windows, sequences.map(tokens_of))
    }
}
