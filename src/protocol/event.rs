//! The events of a trainer: plain data, no tensors.
//!
//! All front ends consume the same [`Event`]s. As JSON, an event is one object
//! a line, with `"v": 1`, its name in `"event"`, and in `"time"` when the line was written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize};

use super::ScoredToken;
use crate::config::Config;
use crate::plan::{Class, DeviceHealth, DeviceLine, Forecast, Plan};
use crate::text::{escape_terminal, millions, percent};

/// An update about a run. An `iter` counts the updates made before, losses are in nats per token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run is set up: its data is open, its model on the device.
    Start {
        run: PathBuf,
        device: DeviceLine,
        config: Box<Config>,
        /// Parameters of the model, including positions and padding.
        params: u64,
        /// The iteration that a resumed run continues from.
        resumed_from: Option<u64>,
        /// The entropy of the data in nats per token, a lower bound of any loss, where known.
        entropy_floor: Option<f64>,
        /// The library that computes matrix products, with its version; `None` for wgpt's own kernels.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        products: Option<String>,
        /// The processes that train the run together; empty for a run in one process.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ranks: Vec<RankLine>,
    },
    /// The plan of a step and its memory.
    Plan(Box<Forecast>),
    /// An update of the weights, every `log_interval` iterations.
    Step(Step),
    /// An evaluation: the mean losses on fixed windows of both splits.
    Eval {
        iter: u64,
        train_loss: f64,
        val_loss: f64,
        /// The validation loss in bits per byte of text, if the tokenizer is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        bits_per_byte: Option<f64>,
        /// The share of right answers, with questions of `hellaswag`.
        #[serde(skip_serializing_if = "Option::is_none")]
        hellaswag: Option<f64>,
    },
    /// Text that the model generated.
    Sample(Sample),
    /// A checkpoint that was written.
    Checkpoint(SavedCheckpoint),
    /// A decision of the run.
    Note { text: String },
    /// The run continues, but something deserves attention: what happened, and what to do.
    Warning { text: String },
    /// The run failed.
    Error(RunError),
    /// The run is paused after `iter` updates.
    Paused { iter: u64 },
    /// The run trains again after a pause.
    Resumed { iter: u64 },
    /// The learning rate decays from here on, and the run ends then: its configuration has a new schedule.
    Finishing { iter: u64, config: Box<Config> },
    /// The run has become faster or slower than planned, and its schedule follows: it ends with its time.
    Retimed { iter: u64, config: Box<Config> },
    /// A new plan. After a failure of the device the run restarts from its last checkpoint; after a
    /// change of the budget it continues where it is.
    Replan {
        reason: ReplanReason,
        text: String,
        /// The plan before, if the run got as far as planning.
        from: Option<Plan>,
        to: Option<Plan>,
    },
    /// The run waits, for its device to return or for its hours, then starts again.
    Waiting(Waiting),
    /// Work that takes a while. It is transient: neither recorded nor logged.
    Working(Working),
    /// The run ended without an error.
    Done {
        iter: u64,
        best_val_loss: Option<f64>,
        /// Wall time of this process.
        seconds: f64,
        reason: StopReason,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub iter: u64,
    pub prompt: String,
    /// The continuation, without the prompt.
    pub text: String,
    /// The tokens of the text with their probabilities, if they were requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<ScoredToken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    pub iter: u64,
    pub path: PathBuf,
    /// True if its validation loss was the best of the run then.
    pub best: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    /// What failed, and where.
    pub text: String,
    /// What to do next; empty if the text says it.
    pub hint: String,
    /// The failure of the device, if it was one.
    pub cause: Option<Cause>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// The reason, and what follows the wait: `{text} in 5 s` is a sentence. Without attempts it is one by itself.
    pub text: String,
    /// The number of the attempt that follows the wait, from 1.
    pub attempt: u32,
    /// Attempts before the run gives up; 0 if nothing has failed.
    pub attempts: u32,
    /// 0 if nobody knows how long.
    pub seconds: u64,
    /// The bytes of the device's memory that must be free for the run's `quiet_time`, if it stopped to make room for
    /// other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub iter: u64,
    /// Mean loss over the global batch before the update. Null in JSON if it is not finite, which
    /// ends a run unless the update is skipped.
    #[serde(deserialize_with = "nan_if_null")]
    pub loss: f64,
    pub lr: f64,
    /// The global norm of the gradient before clipping, without loss scale; `None` if it is not
    /// finite, and the update was skipped.
    pub grad_norm: Option<f64>,
    /// The loss scale after this update; `None` if the precision does not scale the loss.
    pub loss_scale: Option<f64>,
    /// Updates skipped in the run so far, because their gradients were not finite.
    #[serde(default)]
    pub skipped: u64,
    pub tokens: u64,
    /// Milliseconds per iteration since the previous step event, without evaluations.
    pub ms: f64,
    /// The part of `ms` for copying gradients to the host, updating the weights there, and copying them
    /// back; `None` if the device makes the updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer_ms: Option<f64>,
    /// The part of `ms` in which this rank communicated with the others of its run, or waited for them;
    /// `None` for a run in one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_ms: Option<f64>,
    pub tokens_per_s: f64,
    /// Bytes that the memory pools of the device hold; `None` on the CPU.
    pub vram_bytes: Option<u64>,
    /// The most that the pools held in this process.
    pub vram_peak_bytes: Option<u64>,
    /// The part of the pools that is known by class. Gradients, activations and logits share the rest.
    #[serde(default)]
    pub vram_classes: BTreeMap<Class, u64>,
    /// Bytes of the device that other programs use, where the system reports it.
    pub others_bytes: Option<u64>,
    /// Absent where the system reports nothing of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<DeviceHealth>,
    /// Empty for a run in one process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankStep>,
}

/// One of the processes that train a run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLine {
    pub device: String,
    /// The name of its machine, where known.
    pub machine: Option<String>,
    /// The sequences of the global batch that it computes in an update.
    pub sequences: u64,
}

impl fmt::Display for RankLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        if let Some(machine) = &self.machine {
            write!(f, " on {machine}")?;
        }
        write!(f, ", {} sequences", self.sequences)
    }
}

/// A rank's milliseconds per iteration in a [`Step`]: computing, and communicating or waiting for others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStep {
    pub compute_ms: f64,
    pub network_ms: f64,
    /// `None` on the CPU.
    pub vram_bytes: Option<u64>,
}

/// JSON has null for a number that is not finite.
fn nan_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Step {
    /// Returns a line in nanoGPT's form, with the number of skipped updates unless it is `skipped`.
    pub fn line(&self, skipped: u64) -> String {
        let Self { iter, loss, ms, tokens_per_s, lr, .. } = self;
        let mut line = format!(
            "iter {iter}: loss {loss:.4}, time {ms:.2}ms, {tokens_per_s:.0} tokens/s, lr {lr:.3e}"
        );
        if let Some(norm) = self.grad_norm {
            line.push_str(&format!(", norm {norm:.2}"));
        }
        if let Some(optimizer_ms) = self.optimizer_ms {
            line.push_str(&format!(", optimizer {}", percent(optimizer_ms / ms, 0)));
        }
        if let Some(network_ms) = self.network_ms {
            line.push_str(&format!(", network {}", percent(network_ms / ms, 0)));
        }
        if self.skipped != skipped {
            line.push_str(&format!(", skipped {}", self.skipped));
        }
        line
    }
}

/// Work other than finished updates, reported a few times a second once it has lasted a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Working {
    pub task: Task,
    pub done: u64,
    /// All parts; 0 if unknown.
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Opens the data, the device and the model.
    Data,
    /// The first update of a process, which compiles the kernels; its parts are micro-batches.
    Compile,
    /// A long update; its parts are micro-batches.
    Step,
    /// An evaluation; its parts are windows.
    Evaluation,
    Checkpoint,
    /// Generates text; its parts are tokens.
    Sample,
}

impl fmt::Display for Working {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.task {
            Task::Data => "opening data and model",
            Task::Compile => "first update, compiling kernels",
            Task::Step => "update",
            Task::Evaluation => "evaluating",
            Task::Checkpoint => "writing a checkpoint",
            Task::Sample => "sampling",
        })?;
        match self.total {
            0 => Ok(()),
            total => write!(f, " {}/{total}", self.done),
        }
    }
}

/// A failure of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The driver refused an allocation.
    OutOfMemory,
    /// The device was reset or disconnected, or it stopped answering.
    DeviceLost,
    /// The device could not be opened.
    Unavailable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplanReason {
    OutOfMemory,
    /// The device was lost, or the process that used it was killed.
    DeviceLost,
    /// The memory pools exceeded the budget, or the budget changed.
    Budget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// `max_iters` updates were made.
    Finished,
    MaxTime,
    /// A command or a signal stopped it.
    Stopped,
    /// It continues in another process later. No event reports it.
    StandBy,
    /// The run was an evaluation only (`eval_only`).
    EvalOnly,
}

/// An event as a JSON line. Readers ignore `v` and `time`, which old records do not have.
#[derive(Serialize)]
struct JsonLine<'a> {
    v: u32,
    #[serde(flatten)]
    event: &'a Event,
    /// RFC 3339, in UTC.
    time: String,
}

impl Event {
    /// Returns the event as one JSON line, without the line break. `time` counts from 1970.
    pub fn to_json(&self, time: Duration) -> String {
        let time = humantime::format_rfc3339_millis(UNIX_EPOCH + time).to_string();
        // Numbers and strings: serializing cannot fail.
        serde_json::to_string(&JsonLine { v: 1, event: self, time }).unwrap_or_default()
    }

    /// Returns the event as the terminal and the log show it, with its level in front and without control
    /// characters.
    pub fn labelled(&self) -> String {
        escape_terminal(&match self {
            Event::Warning { .. } | Event::Replan { .. } => format!("warning: {self}"),
            Event::Error(_) => format!("error: {self}"),
            _ => self.to_string(),
        })
    }
}

/// Writes a line in nanoGPT's form, or several lines for a plan or a sample.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A line break in a name must not begin a line like one of wgpt's. Quotes of files are indented.
        let safe = |text: &str| text.replace('\n', "\\n").replace("\\n    ", "\n    ");
        match self {
            Event::Start { run, device, params, resumed_from, ranks, .. } => {
                let params = millions(*params);
                write!(f, "{} ({}), {params} parameters", device.name, device.id)?;
                if let Some(iter) = resumed_from {
                    write!(f, ", resuming at iteration {iter}")?;
                }
                write!(f, "\nrun folder: {}", run.display())?;
                for (rank, line) in ranks.iter().enumerate() {
                    write!(f, "\nrank {rank}: {line}")?;
                }
                Ok(())
            }
            Event::Plan(forecast) => write!(f, "{forecast}"),
            Event::Step(step) => f.write_str(&step.line(step.skipped)),
            Event::Eval { iter, train_loss, val_loss, hellaswag, .. } => {
                write!(f, "step {iter}: train loss {train_loss:.4}, val loss {val_loss:.4}")?;
                match hellaswag {
                    Some(share) => write!(f, ", HellaSwag {}", percent(*share, 1)),
                    None => Ok(()),
                }
            }
            Event::Sample(Sample { iter, prompt, text, .. }) => {
                write!(f, "--- sample at {iter} ---\n{prompt}{text}\n---")
            }
            Event::Checkpoint(SavedCheckpoint { path, best, .. }) => {
                let best = if *best { " (best)" } else { "" };
                write!(f, "saved {}{best}", path.display())
            }
            Event::Note { text } | Event::Warning { text } => f.write_str(&safe(text)),
            Event::Error(error) if error.hint.is_empty() => f.write_str(&safe(&error.text)),
            Event::Error(error) => write!(f, "{}\n  hint: {}", safe(&error.text), error.hint),
            Event::Replan { reason, text, from, to } => {
                f.write_str(text)?;
                // After a lost device, the `waiting` event has the delay.
                if *reason == ReplanReason::OutOfMemory {
                    write!(f, "; restarting")?;
                }
                match (from, to) {
                    (Some(from), Some(to)) if from != to => write!(f, ": {to}"),
                    _ => Ok(()),
                }
            }
            Event::Paused { iter } => write!(f, "paused at iteration {iter}"),
            Event::Resumed { iter } => write!(f, "resumed at iteration {iter}"),
            Event::Finishing { iter, config } => {
                let end = config.max_iters;
                write!(
                    f,
                    "the learning rate decays from iteration {iter} on; the run ends at {end}"
                )
            }
            Event::Retimed { config, .. } => {
                let (start, end) = (config.decay_start(), config.max_iters);
                write!(
                    f,
                    "the time is enough for {end} updates; the learning rate decays from {start} on"
                )
            }
            Event::Waiting(Waiting { text, attempts: 0, .. }) => f.write_str(text),
            Event::Waiting(Waiting { text, attempt, attempts, seconds, .. }) => {
                write!(f, "{text} in {seconds} s (attempt {attempt} of {attempts})")
            }
            Event::Working(working) => write!(f, "{working}"),
            Event::Done { iter, best_val_loss, seconds, reason } => {
                write!(f, "{} after {iter} iterations, {seconds:.1} s", reason.phrase())?;
                match best_val_loss {
                    Some(loss) => write!(f, ", best val loss {loss:.4}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl StopReason {
    fn phrase(self) -> &'static str {
        match self {
            StopReason::Finished => "done",
            StopReason::MaxTime => "time limit reached",
            StopReason::Stopped | StopReason::StandBy => "stopped",
            StopReason::EvalOnly => "evaluated",
        }
    }
}

#[cfg(test)]
mod tests;
