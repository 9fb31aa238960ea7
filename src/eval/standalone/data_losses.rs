//! The losses of a finished model on a data set.

use std::fmt;

use serde_json::{Value, json};

use crate::data::{DataError, Dataset, Split};
use crate::eval::{Evaluation, sum_losses};
use crate::model::Gpt;

/// The losses of a model on a data set, in nats per token.
pub struct DataLosses {
    /// `None` for an evaluation of all windows, which would take hours.
    train: Option<f64>,
    val: f64,
    /// On the validation split; `None` if the tokenizer is unknown.
    bits_per_byte: Option<f64>,
    entropy_floor: Option<f64>,
}

impl DataLosses {
    /// Evaluates at most `windows` windows of each split, or with 0 the whole validation split. The
    /// windows are evenly spread and always the same. `show` gets the number of windows that are
    /// done, and their total.
    pub async fn of(
        model: &Gpt,
        dataset: &Dataset,
        evaluation: &Evaluation,
        windows: u64,
        mut show: impl FnMut(u64, u64),
    ) -> Result<Self, DataError> {
        let wanted = if windows == 0 { u64::MAX } else { windows };
        let mut sum = async |split: &Split| {
            let chosen = split.windows(evaluation.block_size).evaluation(wanted);
            let mut stop = |done| {
                show(done, chosen.len() as u64);
                false
            };
            sum_losses(model, dataset, split, &chosen, evaluation, &mut stop).await
        };
        let train = if windows == 0 { None } else { sum(&dataset.train).await? };
        let val = sum(&dataset.val).await?;
        Ok(Self {
            train: train.map(|loss| loss.per_token()),
            val: val.map_or(f64::NAN, |loss| loss.per_token()),
            bits_per_byte: val.and_then(|loss| loss.bits_per_byte()),
            entropy_floor: dataset.entropy_floor,
        })
    }

    pub fn json(&self) -> Value {
        json!({
            "train_loss": self.train, "val_loss": self.val, "val_perplexity": self.val.exp(),
            "bits_per_byte": self.bits_per_byte, "entropy_floor": self.entropy_floor,
        })
    }
}

impl fmt::Display for DataLosses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(train) = self.train {
            writeln!(f, "train loss {train:.4}, perplexity {:.2}", train.exp())?;
        }
        write!(f, "val loss {:.4}, perplexity {:.2}", self.val, self.val.exp())?;
        if let Some(bits) = self.bits_per_byte {
            write!(f, ", {bits:.4} bits per byte")?;
        }
        if let Some(floor) = self.entropy_floor {
            write!(f, "\nlowest possible loss on this data: {floor:.4}")?;
        }
        Ok(())
    }
}
