//! The loss on fixed windows of a split.

use std::f64::consts::LN_2;

use super::TrainError;
use super::batches;
use crate::data::{Dataset, Split, Tokenizer};
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
        split.windows(self.block_size).evaluation(wanted).len() as u64
    }
}

/// The loss on some text.
#[derive(Clone, Copy, Debug)]
pub struct MeanLoss {
    /// The mean over the predicted tokens, in nats per token.
    pub per_token: f64,
    /// The mean number of bytes that a predicted token stands for; `None` if the tokenizer is unknown.
    pub bytes_per_token: Option<f64>,
}

impl MeanLoss {
    /// Returns the loss in bits per byte of text, which does not depend on the tokenizer. The end of a
    /// document is predicted and has no bytes.
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bytes = self.bytes_per_token.filter(|bytes| *bytes > 0.0)?;
        Some(self.per_token / LN_2 / bytes)
    }
}

/// Computes the mean loss of a model over at most `wanted` windows of `split`. They are evenly spread
/// and always the same. Of conversations, only what the assistant says counts. The micro-batches are small and run one after the other: the peak of memory is
/// below that of a training step.
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
    let block_size = evaluation.block_size;
    let starts = windows::eval_starts(split.len(), block_size as u64, wanted);
    let sum = sum_losses(model, dataset, split, &starts, evaluation, stop).await?;
    Ok(sum.map(|sum| sum / (starts.len() * block_size) as f64))
}

/// Computes the sum of the losses of the tokens in the windows of `split` that start at `starts`, as
/// [`mean_loss`] does.
///
/// # Errors
/// As [`mean_loss`].
pub async fn sum_losses(
    model: &Gpt,
    dataset: &Dataset,
    split: &Split,
    starts: &[u64],
    evaluation: &Evaluation,
    stop: &mut impl FnMut(u64) -> bool,
) -> Result<Option<f64>, TrainError> {
    let architecture = model.architecture();
    let batches = Batches { dataset, seed: 0, block_size: evaluation.block_size };
    let pass = Pass { mode: evaluation.mode, dropout: None };
    let lengths = dataset.tokenizer.as_ref().map(Tokenizer::byte_lengths);
    let (mut sum, mut bytes, mut tokens) = (0.0, 0, 0);
    for (chunk, chosen) in chosen.chunks(evaluation.sequences).enumerate() {
        if stop((chunk * evaluation.sequences) as u64) {
            return Ok(None);
        }
        let batch = batches::read(&windows, chosen.iter().cloned())?;
        let counted = batch.counted();
        tokens += counted;
        if let Some(lengths) = &lengths {
            let length = |id: &u32| u64::from(lengths.get(*id as usize).copied().unwrap_or(0));
            bytes += batch.targets.iter().map(length).sum::<u64>();
        }
        let loss = CrossEntropy {
            vocab: architecture.vocab_size,
            chunk: evaluation.chunk,
            scale: 1.0 / counted as f32,
        };
        let mean = scalar(model.loss(&batch, loss, pass)).await;
        sum += f64::from(mean) * counted as f64;
    }
    let tokens = tokens as f64;
    let bytes_per_token = lengths.map(|_| bytes as f64 / tokens);
    Ok(Some(MeanLoss { per_token: sum / tokens, bytes_per_token }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_per_byte_do_not_depend_on_the_tokenizer() {
        // 100 bytes at 1 bit each: as bytes, and as 25 tokens of 4 bytes.
        let bits =
            |per_token, bytes_per_token| MeanLoss { per_token, bytes_per_token }.bits_per_byte();
        assert_eq!(bits(LN_2, Some(1.0)), Some(1.0));
        assert_eq!(bits(4.0 * LN_2, Some(4.0)), Some(1.0));
        assert_eq!(bits(LN_2, None), None);
        // Ends of documents alone.
        assert_eq!(bits(LN_2, Some(0.0)), None);
    }
    Ok(Some(sum))
}
