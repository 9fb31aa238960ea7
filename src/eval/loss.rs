//! The loss on fixed windows of a split.

use std::f64::consts::LN_2;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::data::{DataError, Dataset, Split, Tokenizer};
use crate::model::{Gpt, MicroBatch, Pass, scalar};
use crate::ops::{CrossEntropy, OpsMode};

/// The settings of an evaluation. Only `block_size` changes the result.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation {
    /// Tokens of a window; at most the model's context.
    pub block_size: usize,
    pub sequences: usize,
    pub chunk: usize,
    pub mode: OpsMode,
}

/// The loss on some windows before the division by their tokens, so that ranks can add theirs up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LossSum {
    /// The bits of the sum in nats. As JSON, a float would lose its last bit, and NaN.
    nats: u64,
    tokens: u64,
    /// The bytes of text in these tokens; `None` if the tokenizer is unknown.
    bytes: Option<u64>,
}

impl LossSum {
    fn new(nats: f64, tokens: u64, bytes: Option<u64>) -> Self {
        Self { nats: nats.to_bits(), tokens, bytes }
    }

    fn nats(&self) -> f64 {
        f64::from_bits(self.nats)
    }

    pub fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.zip(other.bytes).map(|(own, others)| own + others);
        Self::new(self.nats() + other.nats(), self.tokens + other.tokens, bytes)
    }

    /// Returns the mean over the predicted tokens, in nats per token.
    pub fn per_token(&self) -> f64 {
        self.nats() / self.tokens as f64
    }

    /// Returns the loss in bits per byte of text, which does not depend on the tokenizer. The end of a
    /// document is a predicted token without bytes. `None` if the tokenizer is unknown.
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bytes = self.bytes.filter(|bytes| *bytes > 0)?;
        let bytes_per_token = bytes as f64 / self.tokens as f64;
        Some(self.per_token() / LN_2 / bytes_per_token)
    }
}

/// Computes the loss of a model on the windows of `split` that begin and end at the tokens `chosen`. In
/// conversations, only the assistant's messages count. The micro-batches are small and run one after
/// the other, so the peak of memory is below a training step's.
///
/// Calls `stop` before each micro-batch with the number of windows done so far. Returns `None` if
/// `stop` returned true.
pub async fn sum_losses(
    model: &Gpt,
    dataset: &Dataset,
    split: &Split,
    chosen: &[Range<u64>],
    evaluation: &Evaluation,
    stop: &mut impl FnMut(u64) -> bool,
) -> Result<Option<LossSum>, DataError> {
    let architecture = model.architecture();
    let windows = split.windows(evaluation.block_size);
    let pass = Pass { mode: evaluation.mode, dropout: None };
    let lengths = dataset.tokenizer.as_ref().map(Tokenizer::byte_lengths);
    let mut sum = 0.0;
    let mut bytes = 0;
    let mut tokens = 0;
    for (chunk, chosen) in chosen.chunks(evaluation.sequences).enumerate() {
        if stop((chunk * evaluation.sequences) as u64) {
            return Ok(None);
        }
        let batch = MicroBatch::read(&windows, chosen.iter().cloned())?;
        let counted = batch.counted();
        tokens += counted as u64;
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
    Ok(Some(LossSum::new(sum, tokens, lengths.map(|_| bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_per_byte_do_not_depend_on_the_tokenizer() {
        // 100 bytes at 1 bit each: as bytes, and as 25 tokens of 4 bytes.
        let bits = |tokens, bytes| LossSum::new(100.0 * LN_2, tokens, bytes).bits_per_byte();
        assert_eq!(bits(100, Some(100)), Some(1.0));
        assert_eq!(bits(25, Some(100)), Some(1.0));
        assert_eq!(bits(25, None), None);
        // Ends of documents alone.
        assert_eq!(bits(25, Some(0)), None);
    }

    #[test]
    fn parts_of_ranks_add_up_to_the_mean_over_tokens() {
        let part = |nats, tokens, bytes| LossSum::new(nats, tokens, bytes);
        let sum = |a: LossSum, b| (a.plus(b).per_token(), a.plus(b).bytes);
        // Not the mean of 1 and 3.
        assert_eq!(sum(part(30.0, 30, Some(40)), part(30.0, 10, Some(120))), (1.5, Some(160)));
        // A rank without windows.
        assert_eq!(sum(part(30.0, 30, Some(40)), part(0.0, 0, Some(0))), (1.0, Some(40)));
        // A rank that lacks the tokenizer.
        assert_eq!(sum(part(30.0, 30, Some(40)), part(30.0, 10, None)), (1.5, None));
        // On its way between ranks.
        let text = serde_json::to_string(&part(f64::NAN, 1, None)).unwrap();
        let read: LossSum = serde_json::from_str(&text).unwrap();
        assert!(read.per_token().is_nan());
    }
}
