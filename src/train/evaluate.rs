//! The loss on fixed windows of a split.

use super::TrainError;
use super::batches::Batches;
use crate::data::{Dataset, Split, windows};
use crate::model::{Gpt, Pass, scalar};
use crate::ops::{CrossEntropy, OpsMode};

/// The settings of an evaluation. Its result depends on `block_size` only.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation {
    /// Tokens of a window; at most the model's context.
    pub block_size: usize,
    /// Sequences of a micro-batch.
    pub sequences: usize,
    /// Rows of a logits chunk.
    pub chunk: usize,
    /// The implementation of the ops.
    pub mode: OpsMode,
}

impl Evaluation {
    /// Returns the number of windows that [`mean_loss`] evaluates.
    pub fn windows(&self, split: &Split, wanted: u64) -> u64 {
        windows::eval_starts(split.len(), self.block_size as u64, wanted).len() as u64
    }
}

/// Computes the mean loss of a model, in nats per token, over at most `wanted`
/// windows of `split`. They are evenly spread and always the same. The micro-batches are small and
/// run one after the other: the peak of memory is below that of a training step.
///
/// `stop` is called before each micro-batch with the number of windows that are done. Returns `None`
/// if it returned true.
///
/// # Errors
/// If the data cannot be read.
pub async fn mean_loss(
    model: &Gpt,
    dataset: &Dataset,
    split: &Split,
    wanted: u64,
    evaluation: &Evaluation,
    stop: &mut impl FnMut(u64) -> bool,
) -> Result<Option<f64>, TrainError> {
    let architecture = model.architecture();
    let block_size = evaluation.block_size;
    let batches = Batches { dataset, seed: 0, block_size };
    let starts = windows::eval_starts(split.len(), block_size as u64, wanted);
    let pass = Pass { mode: evaluation.mode, dropout: None };
    let mut sum = 0.0;
    for (chunk, starts) in starts.chunks(evaluation.sequences).enumerate() {
        if stop((chunk * evaluation.sequences) as u64) {
            return Ok(None);
        }
        let batch = batches.at(split, starts)?;
        let tokens = batch.tokens.len();
        let loss = CrossEntropy {
            vocab: architecture.vocab_size,
            chunk: evaluation.chunk,
            scale: 1.0 / tokens as f32,
        };
        let mean = scalar(model.loss(&batch, loss, pass)).await;
        sum += f64::from(mean) * tokens as f64;
    }
    Ok(Some(sum / (starts.len() * block_size) as f64))
}
