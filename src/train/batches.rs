//! Windows of tokens as micro-batches.

use crate::data::{DataError, Dataset, Split, windows};
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
        let split = &self.dataset.train;
        let starts = (first..first + count).map(|sequence| {
            let block_size = self.block_size as u64;
            windows::train_start(self.seed, step, sequence as u64, split.len(), block_size)
        });
        self.read(split, starts)
    }

    /// Reads the windows of `split` that start at the tokens `starts`.
    pub fn at(&self, split: &Split, starts: &[u64]) -> Result<MicroBatch, DataError> {
        self.read(split, starts.iter().copied())
    }

    fn read(
        &self,
        split: &Split,
        starts: impl Iterator<Item = u64>,
    ) -> Result<MicroBatch, DataError> {
        let mut tokens = Vec::new();
        let mut targets = Vec::new();
        let mut sequences = 0;
        for start in starts {
            let window = split.window(start, self.block_size + 1)?;
            tokens.extend_from_slice(&window[..self.block_size]);
            targets.extend_from_slice(&window[1..]);
            sequences += 1;
        }
        Ok(MicroBatch { tokens: tokens.into(), targets: targets.into(), sequences })
    }
}
