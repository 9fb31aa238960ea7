//! `wgpt eval`: loss, perplexity and bits per byte of a model, and its share of right answers.

use serde_json::json;

use super::CliError;
use super::activity::Activity;
use super::args::{EvalArgs, Global};
use super::hellaswag::Exam;
use super::model::{find_model, open_device};
use crate::data::{Dataset, Split};
use crate::eval::{Evaluation, mean_loss};
use crate::model::Gpt;
use crate::protocol::{Task, Working};
use crate::runs::ModelSource;

/// Runs `wgpt eval`.
pub(super) fn run(args: EvalArgs, global: &Global) -> Result<(), CliError> {
    let source = find_model(args.model.as_deref(), global.quiet)?;
    let exam = match &args.hellaswag {
        Some(path) => Some(Exam::open(path, &args, &source, global.quiet)?),
        None => None,
    };
    let data = match (args.data, &exam) {
        (None, None) => source.data()?,
        (data, _) => data,
    };
    if data.is_none() && exam.is_none() {
        return Err(CliError::Usage {
            what: "no data to evaluate on".into(),
            hint: "give a data folder with --data",
        });
    }
    let dataset = data.map(|data| open_data(&data, &source)).transpose()?;
    let device = open_device(global)?;
    let mut activity = Activity::new(global.quiet);
    activity.show("loading the model".into());
    let model = source.model(&device.device)?;
    let block_size = source.architecture.block_size;
    let mode = global.ops()?.on(device.info.kind);
    let evaluation = Evaluation { block_size, sequences: 8, chunk: 256, mode };
    let losses = match &dataset {
        Some(dataset) => {
            Some(Losses::of(&model, dataset, &evaluation, args.windows, &mut activity)?)
        }
        None => None,
    };
    activity.clear();
    let score = match exam {
        Some(exam) => Some(exam.take(&model, &evaluation, global.quiet)?),
        None => None,
    };
    if args.json {
        let mut object = losses.map_or_else(|| json!({}), |losses| losses.json());
        if let Some(score) = score {
            object["hellaswag"] = score.json();
        }
        output!("{object}");
        return Ok(());
    }
    if let Some(losses) = losses {
        losses.print();
    }
    if let Some(score) = score {
        output!("{score}");
    }
    Ok(())
}

/// Opens the data, and checks that its tokens are the model's.
fn open_data(data: &str, source: &ModelSource) -> Result<Dataset, CliError> {
    let architecture = &source.architecture;
    let dataset = Dataset::open(data, architecture.block_size as u64)?;
    if dataset.vocab_size as usize > architecture.vocab_size {
        return Err(CliError::Usage {
            what: format!(
                "the data has {} tokens, the model {}",
                dataset.vocab_size, architecture.vocab_size
            ),
            hint: "prepare the data with the model's tokenizer",
        });
    }
    if !source.has_text_of(dataset.tokenizer.as_ref()) {
        return Err(CliError::Usage {
            what: format!(
                "{data}: this data was tokenized in another way than the model {} tokenizes text",
                source.path.display()
            ),
            hint: "prepare the data with the model's tokenizer: --tokenizer=MODEL takes that of a \
                   checkpoint or another folder with a tokenizer.json",
        });
    }
    Ok(dataset)
}

/// The losses of a model on data, in nats per token.
struct Losses {
    /// On the training split, if it was asked for.
    train: Option<f64>,
    val: f64,
    /// Of the validation split, if the tokenizer is known.
    bits_per_byte: Option<f64>,
    entropy_floor: Option<f64>,
}

impl Losses {
    fn of(
        model: &Gpt,
        dataset: &Dataset,
        evaluation: &Evaluation,
        windows: u64,
        activity: &mut Activity,
    ) -> Result<Self, CliError> {
        let wanted = if windows == 0 { u64::MAX } else { windows };
        let mut loss = |split: &Split| {
            let total = evaluation.windows(split, wanted);
            let mut show = |done| {
                activity.show(Working { task: Task::Evaluation, done, total }.to_string());
                false
            };
            let loss = mean_loss(model, dataset, split, wanted, evaluation, &mut show);
            pollster::block_on(loss)
        };
        let train = match windows {
            // All of the training split may take hours.
            0 => None,
            _ => loss(&dataset.train)?,
        };
        let val = loss(&dataset.val)?;
        Ok(Self {
            train: train.map(|loss| loss.per_token),
            val: val.map_or(f64::NAN, |loss| loss.per_token),
            bits_per_byte: val.and_then(|loss| loss.bits_per_byte()),
            entropy_floor: dataset.entropy_floor,
        })
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "train_loss": self.train, "val_loss": self.val, "val_perplexity": self.val.exp(),
            "bits_per_byte": self.bits_per_byte, "entropy_floor": self.entropy_floor,
        })
    }

    fn print(&self) {
        if let Some(train) = self.train {
            output!("train loss {train:.4}, perplexity {:.2}", train.exp());
        }
        let bits = self.bits_per_byte;
        let bits = bits.map_or_else(String::new, |bits| format!(", {bits:.4} bits per byte"));
        output!("val loss {:.4}, perplexity {:.2}{bits}", self.val, self.val.exp());
        if let Some(floor) = self.entropy_floor {
            output!("the entropy of this data is {floor:.4}: no model can get below");
        }
    }
}
