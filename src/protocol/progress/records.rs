//! The curves and the log of a run.

use std::mem::take;

use serde::{Deserialize, Serialize};

use super::{Cumulative, Series};
use crate::protocol::Step;

/// The curves of a run. x is the number of updates made before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Mean loss over the global batch, in nats per token.
    pub loss: Series,
    pub learning_rate: Series,
    /// The global norm of the gradient before clipping.
    pub grad_norm: Series,
    pub tokens_per_s: Series,
    /// Bytes that the memory pools of the device hold; empty on the CPU.
    pub memory: Series,
    /// The most bytes that the pools have held; empty on the CPU.
    pub memory_peak: Series,
    /// The training loss of evaluations, in nats per token.
    pub eval_train: Series,
    /// The validation loss of evaluations, in nats per token.
    pub eval_val: Series,
    /// The share of right answers to the questions of evaluations; empty without questions.
    pub hellaswag: Series,
    pub tokens: Cumulative,
    /// Seconds spent on updates, in all processes of the run. Evaluations, samples, checkpoints and
    /// pauses do not count, nor do updates that were repeated after a failure.
    pub seconds: Cumulative,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub level: Level,
    /// Updates made before; `None` before the run was set up.
    pub iter: Option<u64>,
    pub text: String,
    /// What to do next, if anything.
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    Info,
    /// The run continues, but something deserves attention.
    Warning,
    Error,
}

impl Curves {
    pub(super) fn step(&mut self, step: &Step) {
        let x = step.iter as f64;
        self.loss.append(x, step.loss);
        self.learning_rate.append(x, step.lr);
        self.grad_norm.append(x, step.grad_norm.unwrap_or(f64::NAN));
        self.tokens_per_s.append(x, step.tokens_per_s);
        for (series, bytes) in
            [(&mut self.memory, step.vram_bytes), (&mut self.memory_peak, step.vram_peak_bytes)]
        {
            series.append(x, bytes.map_or(f64::NAN, |bytes| bytes as f64));
        }
        self.tokens.extend(x + 1.0, step.tokens as f64);
        self.seconds.extend(x + 1.0, step.ms * 1e-3);
    }

    /// Drops the curves of steps, for views that draw none: a long run has millions of points.
    pub fn forget_steps(&mut self) {
        let Self { eval_train, eval_val, hellaswag, .. } = take(self);
        *self = Self { eval_train, eval_val, hellaswag, ..Self::default() };
    }

    /// Drops everything after the first `iter` updates. An evaluation right after them stays: it is
    /// in the checkpoint and not repeated.
    pub(super) fn rewind(&mut self, iter: u64) {
        let Self { loss, learning_rate, grad_norm, tokens_per_s, memory, memory_peak, .. } = self;
        for steps in [loss, learning_rate, grad_norm, tokens_per_s, memory, memory_peak] {
            steps.truncate_from(iter as f64);
        }
        for evals in [&mut self.eval_train, &mut self.eval_val, &mut self.hellaswag] {
            evals.truncate_from(iter as f64 + 1.0);
        }
        for counts in [&mut self.tokens, &mut self.seconds] {
            counts.rewind(iter as f64);
        }
    }

    /// Returns the lowest validation loss, in nats per token.
    pub(super) fn lowest_val_loss(&self) -> Option<f64> {
        self.eval_val.bounds().map(|[lowest, _]| lowest[1])
    }
}
