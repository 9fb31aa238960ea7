//! What the trainer says and what it is told: plain data, no tensors.
//!
//! Every front end consumes [`Event`]s and differs only after them. As JSON they are one object a
//! line, with `"v": 1` and the name in `"event"`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::plan::{Class, Forecast, Plan};

/// The version of the JSON lines.
pub const VERSION: u32 = 1;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run is set up and about to train.
    Start {
        /// The run folder.
        run: PathBuf,
        /// Where it computes.
        device: DeviceLine,
        /// The resolved configuration.
        config: Box<Config>,
        /// Parameters of the model, positions and padding included.
        params: u64,
        /// The iteration that a resumed run continues from.
        resumed_from: Option<u64>,
        /// The least loss that any model can reach on this data, in nats per token, where known.
        entropy_floor: Option<f64>,
    },
    /// How the step was cut.
    Plan(Box<Forecast>),
    /// One update of the weights, at the log interval.
    Step(Step),
    /// The losses on fixed windows of both splits.
    Eval {
        /// Updates made before.
        iter: u64,
        /// Mean loss on the training split, in nats per token.
        train_loss: f64,
        /// Mean loss on the validation split.
        val_loss: f64,
    },
    /// A text that the model wrote.
    Sample {
        /// Updates made before.
        iter: u64,
        /// What it was given.
        prompt: String,
        /// What it continued with.
        text: String,
    },
    /// A checkpoint is on the disk, whole.
    Checkpoint {
        /// Updates made before.
        iter: u64,
        /// The checkpoint's folder.
        path: PathBuf,
        /// Whether its validation loss is the run's best.
        best: bool,
    },
    /// The run goes on, but something deserves a look.
    Warning {
        /// What, and what to do.
        text: String,
    },
    /// The run failed.
    Error {
        /// What failed, and where.
        text: String,
        /// What to do next.
        hint: String,
        /// What the device did, if it was that.
        #[serde(default)]
        cause: Option<Cause>,
    },
    /// Steps are cut anew: the device failed, and the run goes on from its last checkpoint, or the
    /// budget was crossed, and it goes on as it is.
    Replan {
        /// Why.
        reason: ReplanReason,
        /// What happened.
        text: String,
        /// How its steps were cut, if it came so far.
        from: Option<Plan>,
        /// How they will be.
        to: Option<Plan>,
    },
    /// The run ended as it should.
    Done {
        /// Updates made.
        iter: u64,
        /// The best validation loss, if there was an evaluation.
        best_val_loss: Option<f64>,
        /// Wall time of this process, in seconds.
        seconds: f64,
        /// Why it ended.
        reason: StopReason,
    },
}

/// One update of the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Updates made before this one.
    pub iter: u64,
    /// Mean loss over the global batch, in nats per token, before the update.
    pub loss: f64,
    /// The learning rate of this update.
    pub lr: f64,
    /// The global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// Milliseconds an iteration since the last of these events, evaluation left out.
    pub ms: f64,
    /// Tokens a second over the same time.
    pub tokens_per_s: f64,
    /// Bytes that the device's pools hold; `None` on the processor.
    #[serde(default)]
    pub vram_bytes: Option<u64>,
    /// The most that they held in this run.
    #[serde(default)]
    pub vram_peak_bytes: Option<u64>,
    /// Of what the pools hold, what is known by class: weights and moments. Gradients, activations
    /// and logits share the rest.
    #[serde(default)]
    pub vram_classes: BTreeMap<Class, u64>,
    /// Bytes of the device that other programs take; `None` where nobody tells.
    #[serde(default)]
    pub others_bytes: Option<u64>,
}

/// A failure of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The driver has no more memory.
    OutOfMemory,
    /// The device was reset, or it is gone.
    DeviceLost,
}

/// Why steps are cut anew, or begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplanReason {
    /// The driver had no more memory.
    OutOfMemory,
    /// The device was reset, it is gone, or the process that used it is.
    DeviceLost,
    /// The pools held more than the budget, or the budget was changed.
    Budget,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// `max_iters` updates were made.
    Finished,
    /// `max_time` was over.
    MaxTime,
    /// A command, or a signal.
    Stopped,
    /// `eval_only`.
    EvalOnly,
}

/// The device of a run, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLine {
    /// The name that `--device` takes, such as `vulkan:0`.
    pub id: String,
    /// The adapter's name.
    pub name: String,
    /// The interface: `cpu`, `vulkan`, `dx12`, `gl`, `metal` or `cuda`.
    pub backend: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `cpu`.
    pub kind: String,
}

/// What a front end asks of the trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Hold after the current step.
    Pause,
    /// Go on.
    Resume,
    /// Finish the step, write a checkpoint, end.
    Stop,
    /// Write a checkpoint and go on.
    Checkpoint,
    /// Write a text.
    Sample {
        /// What to continue.
        prompt: String,
    },
    /// Change a setting that may change during a run: `learning_rate` (from here on constant),
    /// `eval_interval`, `log_interval` or `vram_budget` (in bytes).
    Set {
        /// The setting.
        key: String,
        /// Its new value.
        value: f64,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl Event {
    /// The event as one JSON line, without the line break.
    pub fn to_json(&self) -> String {
        // Numbers and strings only: serialising cannot fail.
        serde_json::to_string(&Line { v: VERSION, event: self }).unwrap_or_default()
    }
}

/// One line in nanoGPT's form, or several where the event is a text. Events that only machines
/// read give an empty string.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Start { run, device, params, resumed_from, .. } => {
                let millions = *params as f64 / 1e6;
                write!(f, "{} ({}), {millions:.2}M parameters", device.name, device.id)?;
                if let Some(iter) = resumed_from {
                    write!(f, ", resuming at iteration {iter}")?;
                }
                write!(f, "\nrun folder: {}", run.display())
            }
            Event::Plan(forecast) => write!(f, "{forecast}"),
            Event::Step(step) => write!(
                f,
                "iter {}: loss {:.4}, time {:.2}ms, {:.0} tokens/s, lr {:.3e}, norm {:.2}",
                step.iter, step.loss, step.ms, step.tokens_per_s, step.lr, step.grad_norm
            ),
            Event::Eval { iter, train_loss, val_loss } => {
                write!(f, "step {iter}: train loss {train_loss:.4}, val loss {val_loss:.4}")
            }
            Event::Sample { iter, prompt, text } => {
                write!(f, "--- sample at {iter} ---\n{prompt}{text}\n---")
            }
            Event::Checkpoint { path, best, .. } => {
                let best = if *best { " (best)" } else { "" };
                write!(f, "saved {}{best}", path.display())
            }
            Event::Warning { text } => write!(f, "warning: {text}"),
            Event::Error { text, hint, .. } => write!(f, "error: {text}\n  hint: {hint}"),
            Event::Replan { reason, text, from, to } => {
                write!(f, "warning: {text}")?;
                if *reason != ReplanReason::Budget {
                    write!(f, "; starting again from the last checkpoint")?;
                }
                match (from, to) {
                    (Some(from), Some(to)) if from != to => write!(f, ": {to}"),
                    _ => Ok(()),
                }
            }
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
            StopReason::MaxTime => "time is up",
            StopReason::Stopped => "stopped",
            StopReason::EvalOnly => "evaluated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_version_and_name_and_reads_back() {
        let event = Event::Eval { iter: 250, train_loss: 2.1, val_loss: 2.25 };
        let line = event.to_json();
        assert!(line.starts_with(r#"{"v":1,"event":"eval","iter":250"#), "{line}");
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        assert_eq!(event.to_string(), "step 250: train loss 2.1000, val loss 2.2500");
    }

    #[test]
    fn commands_are_json_lines() {
        let set: Command =
            serde_json::from_str(r#"{"command":"set","key":"learning_rate","value":1e-4}"#)
                .unwrap();
        assert_eq!(set, Command::Set { key: "learning_rate".into(), value: 1e-4 });
        assert!(serde_json::from_str::<Command>(r#"{"command":"explode"}"#).is_err());
    }
}
