//! What a run leaves behind: curves, texts, checkpoints, a log.

use std::mem::take;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Series;
use crate::protocol::Step;

/// What changes from iteration to iteration: x is the updates made before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Mean loss over the global batch, in nats per token.
    pub loss: Series,
    /// The learning rate.
    pub learning_rate: Series,
    /// The global norm of the gradient before clipping.
    pub grad_norm: Series,
    /// Tokens a second.
    pub tokens_per_s: Series,
    /// Bytes that the device's pools hold; empty on the processor.
    pub memory: Series,
    /// The most bytes that they held so far; empty on the processor.
    pub memory_peak: Series,
    /// The training loss of evaluations, in nats per token.
    pub eval_train: Series,
    /// The validation loss of evaluations, in nats per token.
    pub eval_val: Series,
}

/// A text that the model wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Updates made before.
    pub iter: u64,
    /// What it was given.
    pub prompt: String,
    /// What it continued with.
    pub text: String,
}

/// A checkpoint that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Updates made before.
    pub iter: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Whether its validation loss was the run's best then.
    pub best: bool,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// How much it matters.
    pub level: Level,
    /// Updates made before; `None` where the run had not begun.
    pub iter: Option<u64>,
    /// What happened.
    pub text: String,
    /// What to do next, if there is something.
    pub hint: Option<String>,
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// As it should be.
    Info,
    /// The run goes on, but it deserves a look.
    Warning,
    /// The run failed.
    Error,
}

impl Curves {
    /// Takes in a step.
    pub(super) fn step(&mut self, step: &Step) {
        let x = step.iter as f64;
        self.loss.append(x, step.loss);
        self.learning_rate.append(x, step.lr);
        self.grad_norm.append(x, step.grad_norm);
        self.tokens_per_s.append(x, step.tokens_per_s);
        for (series, bytes) in
            [(&mut self.memory, step.vram_bytes), (&mut self.memory_peak, step.vram_peak_bytes)]
        {
            series.append(x, bytes.map_or(f64::NAN, |bytes| bytes as f64));
        }
    }

    /// Leaves the curves of evaluations alone.
    pub(super) fn forget_steps(&mut self) {
        let (eval_train, eval_val) = (take(&mut self.eval_train), take(&mut self.eval_val));
        *self = Self { eval_train, eval_val, ..Self::default() };
    }

    /// Forgets what came after the first `iter` updates. An evaluation after just these stays: it
    /// is in the checkpoint, and not repeated.
    pub(super) fn rewind(&mut self, iter: u64) {
        let Self { loss, learning_rate, grad_norm, tokens_per_s, memory, memory_peak, .. } = self;
        for steps in [loss, learning_rate, grad_norm, tokens_per_s, memory, memory_peak] {
            steps.truncate_from(iter as f64);
        }
        for evals in [&mut self.eval_train, &mut self.eval_val] {
            evals.truncate_from(iter as f64 + 1.0);
        }
    }

    /// The least validation loss, in nats per token.
    pub(super) fn least_val_loss(&self) -> Option<f64> {
        self.eval_val.bounds().map(|[least, _]| least[1])
    }
}
