//! Runs on the disk, as lists and views show them.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::DeviceLine;

/// The display name and the note that a person has given a run; empty if none. The folder keeps its name:
/// checkpoints, configurations and command lines refer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    pub name: String,
    pub note: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub path: PathBuf,
    pub name: String,
    #[serde(default)]
    pub about: About,
    pub state: RunState,
    pub iteration: u64,
    /// Updates that it is to make, where known.
    pub max_iters: Option<u64>,
    pub loss: Option<f64>,
    pub val_loss: Option<f64>,
    pub best_val_loss: Option<f64>,
    pub device: Option<DeviceLine>,
    /// The time of its last change, counted from 1970.
    pub modified: Duration,
    /// True if it can be resumed from a checkpoint.
    pub has_checkpoint: bool,
}

impl RunSummary {
    /// Returns the display name of the run, else the folder's.
    pub fn title(&self) -> &str {
        if self.about.name.is_empty() { &self.name } else { &self.about.name }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// A process trains it, or a supervisor is about to start one.
    Running,
    Paused,
    Finished,
    /// It was stopped, or reached its `max_time`.
    Stopped,
    /// It ended with an error, or its record cannot be read.
    Failed {
        /// The message: what failed, and where.
        text: String,
    },
    Crashed,
    Empty,
}

impl RunState {
    /// Returns the state in a word, as lists show it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed { .. } => "failed",
            Self::Crashed => "crashed",
            Self::Empty => "empty",
        }
    }
}

/// A reader of the JSON lines of a growing file, like the events of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tail {
    pub path: PathBuf,
    pub offset: u64,
    /// The line that ends at `offset`. If it is another one, the file was replaced.
    pub before: Vec<u8>,
}

/// What a model knows, and messages that it can answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    pub text: String,
    pub examples: Vec<String>,
}
