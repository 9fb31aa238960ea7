//! Windows of tokens as micro-batches.

use std::ops::Range;

use crate::data::{DataError, Dataset, Window, Windows};
use crate::model::MicroBatch;
use crate::ops::IGNORED;

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
        read(&windows, sequences.map(|number| windows.training(self.seed, step, number as u64)))
    }
}

/// Reads the windows with these tokens.
pub(super) fn read(
    windows: &Windows<'_>,
    tokens_of: impl Iterator<Item = Range<u64>>,
) -> Result<MicroBatch, DataError> {
    let (mut tokens, mut targets, mut sequences) = (Vec::new(), Vec::new(), 0);
    for window in tokens_of {
        let window: Window = windows.read(window)?;
        tokens.extend(window.tokens);
        targets.extend(window.targets.into_iter().map(|target| target.unwrap_or(IGNORED)));
        sequences += 1;
    }
    Ok(MicroBatch { tokens: tokens.into(), targets: targets.into(), sequences })
}

impl MicroBatch {
    /// Returns the number of targets that count in the loss.
    pub(super) fn counted(&self) -> usize {
        self.targets.iter().filter(|&&target| target != IGNORED).count()
    }
}
