//! The state of a run, reduced from its events. Every view reads it.

mod curves;

use std::f64::consts::LN_2;
use std::mem::take;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use curves::{Cumulative, Series, Smoothed, automatic_half_life};

use crate::config::{Config, words};
use crate::plan::Forecast;
use crate::protocol::{
    DeviceLine, Event, RankLine, ReplanReason, RunError, Sample, SavedCheckpoint, Step, StopReason,
    Waiting, Working,
};

/// The most samples, checkpoints and log lines that are kept: more than anyone scrolls through, and
/// a few MiB for samples of some hundred tokens. Beyond it, the oldest quarter is dropped.
const MAX_ITEMS: usize = 4096;

/// The state of a run, from the events of all processes that have trained it. Losses are in nats per
/// token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub state: RunPhase,
    pub run: Option<PathBuf>,
    /// The work at present, until the next other event.
    pub working: Option<Working>,
    pub device: Option<DeviceLine>,
    pub config: Option<Box<Config>>,
    /// 0 until known.
    pub params: u64,
    pub entropy_floor: Option<f64>,
    pub ranks: Vec<RankLine>,
    pub forecast: Option<Forecast>,
    /// 0 until known.
    pub max_iters: u64,
    pub iteration: u64,
    pub last_step: Option<Step>,
    pub best_val_loss: Option<f64>,
    pub curves: Curves,
    /// Samples, checkpoints and lines of the log, the newest last. The run has removed all checkpoints
    /// but the best and the newest `keep_checkpoints`.
    pub samples: Vec<Sample>,
    pub checkpoints: Vec<SavedCheckpoint>,
    pub log: Vec<LogLine>,
    /// The last loss, validation loss and speed.
    pub loss: Option<f64>,
    pub val_loss: Option<f64>,
    pub tokens_per_s: Option<f64>,
    /// The mean number of bytes that a token of the validation split stands for, if the tokenizer is
    /// known.
    pub bytes_per_token: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum RunPhase {
    #[default]
    Idle,
    /// It reads its data and opens its device.
    Starting,
    /// It trains, evaluates or saves.
    Running,
    Paused,
    /// Its device failed, and it is about to restart from the last checkpoint.
    Recovering,
    /// Its device failed, and it waits for the device to return. Views count the seconds down from
    /// when this state began.
    Waiting(Waiting),
    /// It ended without an error.
    Finished(StopReason),
    /// Its record ends in the middle: the process was killed, or the page was closed.
    Interrupted,
    Failed(RunError),
}

impl Progress {
    pub fn apply(&mut self, event: &Event) {
        if self.state == RunPhase::Idle && !matches!(event, Event::Warning { .. }) {
            self.state = RunPhase::Starting;
        }
        self.working = None;
        match event {
            Event::Working(working) => self.working = Some(*working),
            Event::Start {
                run,
                device,
                config,
                params,
                resumed_from,
                entropy_floor,
                ranks,
                ..
            } => {
                self.begin(*resumed_from);
                self.run = Some(run.clone());
                self.device = Some(device.clone());
                self.max_iters = config.max_iters.get();
                self.config = Some(config.clone());
                self.params = *params;
                self.entropy_floor = *entropy_floor;
                self.ranks.clone_from(ranks);
            }
            Event::Plan(forecast) => self.forecast = Some(Forecast::clone(forecast)),
            Event::Step(step) => self.step(step),
            Event::Eval { iter, train_loss, val_loss, bits_per_byte, hellaswag } => {
                self.reach(*iter);
                let bits = bits_per_byte.filter(|bits| *bits > 0.0);
                self.bytes_per_token = bits.map(|bits| val_loss / LN_2 / bits);
                self.curves.eval_train.append(*iter as f64, *train_loss);
                self.curves.eval_val.append(*iter as f64, *val_loss);
                self.curves.hellaswag.append(*iter as f64, hellaswag.unwrap_or(f64::NAN));
                self.val_loss = Some(*val_loss);
                self.best_val_loss = self.curves.lowest_val_loss();
            }
            Event::Sample(sample) => {
                self.reach(sample.iter);
                // A resumed run repeats the sample of its first iteration.
                if !self.samples.contains(sample) {
                    push(&mut self.samples, sample.clone());
                }
            }
            Event::Checkpoint(checkpoint) => {
                self.reach(checkpoint.iter);
                self.checkpoints.retain(|known| known.iter < checkpoint.iter);
                push(&mut self.checkpoints, checkpoint.clone());
                self.note(Level::Info, event.to_string(), None);
            }
            Event::Note { text } => self.note(Level::Info, text.clone(), None),
            Event::Warning { text } => self.note(Level::Warning, text.clone(), None),
            Event::Error(error) => {
                self.note(Level::Error, error.text.clone(), Some(error.hint.clone()));
                self.state = RunPhase::Failed(error.clone());
            }
            Event::Replan { reason, .. } => {
                self.note(Level::Warning, event.to_string(), None);
                if matches!(reason, ReplanReason::OutOfMemory | ReplanReason::DeviceLost) {
                    self.state = RunPhase::Recovering;
                }
            }
            Event::Paused { iter } => (self.iteration, self.state) = (*iter, RunPhase::Paused),
            Event::Resumed { iter } => (self.iteration, self.state) = (*iter, RunPhase::Running),
            Event::Finishing { iter, config } | Event::Retimed { iter, config } => {
                self.reach(*iter);
                self.max_iters = config.max_iters.get();
                self.config = Some(config.clone());
                self.note(Level::Info, event.to_string(), None);
            }
            Event::Waiting(waiting) => {
                // The replan before it is the warning.
                self.note(Level::Info, event.to_string(), None);
                self.state = RunPhase::Waiting(waiting.clone());
            }
            Event::Done { iter, best_val_loss, reason, .. } => {
                self.iteration = *iter;
                self.best_val_loss = best_val_loss.or(self.best_val_loss);
                self.note(Level::Info, event.to_string(), None);
                self.state = RunPhase::Finished(*reason);
            }
        }
    }

    /// Marks the run as starting: a process emits no event until it is set up.
    pub fn starting(&mut self) {
        (self.state, self.working) = (RunPhase::Starting, None);
    }

    /// Marks the run as interrupted: its record ends in the middle, and no process trains it.
    pub fn interrupted(&mut self) {
        (self.state, self.working) = (RunPhase::Interrupted, None);
        let text = "the run was interrupted: its process was killed, or its page was closed";
        let hint = if self.checkpoints.is_empty() {
            "it has no checkpoint to continue from: start it again"
        } else {
            "Continue resumes it from its last checkpoint"
        };
        self.note(Level::Warning, text.into(), Some(hint.into()));
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.state, RunPhase::Finished(_) | RunPhase::Interrupted | RunPhase::Failed(_))
    }

    /// Returns the share of the run that is done, from 0 to 1; 0 while its length is unknown.
    pub fn fraction(&self) -> f32 {
        match self.max_iters {
            0 => 0.0,
            all => (self.iteration as f64 / all as f64).min(1.0) as f32,
        }
    }

    /// Returns the time until the last iteration at the present speed, without evaluations;
    /// `max_time` may end the run sooner. `None` before the first step, and once the run has ended.
    pub fn remaining(&self) -> Option<Duration> {
        if self.max_iters == 0 || self.has_ended() {
            return None;
        }
        let left = self.max_iters.saturating_sub(self.iteration);
        Duration::try_from_secs_f64(self.last_step.as_ref()?.ms * 1e-3 * left as f64).ok()
    }

    /// Returns the time spent on updates, in all processes of the run; `None` before the first step.
    pub fn trained(&self) -> Option<Duration> {
        let [iter, _] = self.curves.loss.last()?;
        Duration::try_from_secs_f64(self.curves.seconds.at(iter)).ok()
    }

    /// Applies the start of a process. It repeats what a former one did after its last checkpoint.
    fn begin(&mut self, resumed_from: Option<u64>) {
        match resumed_from {
            Some(iter) => self.rewind(iter),
            None => (self.curves, self.samples, self.checkpoints) = Default::default(),
        }
        self.state = RunPhase::Running;
        self.iteration = resumed_from.unwrap_or(0);
        self.best_val_loss = self.curves.lowest_val_loss();
        (self.last_step, self.loss, self.tokens_per_s) = (None, None, None);
        self.val_loss = self.curves.eval_val.last().map(|[_, loss]| loss);
    }

    fn step(&mut self, step: &Step) {
        if self.last_step.as_ref().is_some_and(|last| step.iter <= last.iter) {
            self.rewind(step.iter);
        }
        self.reach(step.iter + 1);
        self.curves.step(step);
        self.loss = Some(step.loss);
        self.tokens_per_s = Some(step.tokens_per_s);
        self.last_step = Some(step.clone());
    }

    /// Drops everything after the first `iter` updates.
    fn rewind(&mut self, iter: u64) {
        self.curves.rewind(iter);
        self.samples.retain(|sample| sample.iter <= iter);
        self.checkpoints.retain(|checkpoint| checkpoint.iter <= iter);
        self.best_val_loss = self.curves.lowest_val_loss();
    }

    /// Sets the number of updates made. A paused run still writes checkpoints and samples.
    fn reach(&mut self, iter: u64) {
        self.iteration = iter;
        if self.state != RunPhase::Paused {
            self.state = RunPhase::Running;
        }
    }

    fn note(&mut self, level: Level, text: String, hint: Option<String>) {
        let iter = self.run.is_some().then_some(self.iteration);
        push(&mut self.log, LogLine { level, iter, text, hint });
    }
}

/// The curves of a run. x is the number of updates made before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    pub loss: Series,
    pub learning_rate: Series,
    /// The global norm of the gradient before clipping.
    pub grad_norm: Series,
    pub tokens_per_s: Series,
    /// Bytes that the memory pools of the device hold; empty on the CPU.
    pub memory: Series,
    /// The most bytes that the pools have held; empty on the CPU.
    pub memory_peak: Series,
    pub eval_train: Series,
    pub eval_val: Series,
    /// The share of right answers to the questions of evaluations.
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

words! {
    pub enum Level {
        Info = "info",
        /// The run continues, but something deserves attention.
        Warning = "warning",
        Error = "error",
    }
}

impl Curves {
    fn step(&mut self, step: &Step) {
        let x = step.iter as f64;
        self.loss.append(x, step.loss);
        self.learning_rate.append(x, step.lr);
        self.grad_norm.append(x, step.grad_norm.unwrap_or(f64::NAN));
        self.tokens_per_s.append(x, step.tokens_per_s);
        let bytes = |count: Option<u64>| count.map_or(f64::NAN, |count| count as f64);
        self.memory.append(x, bytes(step.vram_bytes));
        self.memory_peak.append(x, bytes(step.vram_peak_bytes));
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
    fn rewind(&mut self, iter: u64) {
        let Self { loss, learning_rate, grad_norm, tokens_per_s, memory, memory_peak, .. } = self;
        for steps in [loss, learning_rate, grad_norm, tokens_per_s, memory, memory_peak] {
            steps.truncate_from(iter as f64);
        }
        for evals in [&mut self.eval_train, &mut self.eval_val, &mut self.hellaswag] {
            evals.truncate_from(iter as f64 + 1.0);
        }
        self.tokens.rewind(iter as f64);
        self.seconds.rewind(iter as f64);
    }

    fn lowest_val_loss(&self) -> Option<f64> {
        self.eval_val.iter().map(|[_, loss]| loss).reduce(f64::min)
    }
}

/// Appends to a list of at most [`MAX_ITEMS`], in amortized constant time.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() >= MAX_ITEMS {
        list.drain(..MAX_ITEMS / 4);
    }
    list.push(item);
}

#[cfg(test)]
mod tests;
