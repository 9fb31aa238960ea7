//! What front ends, workers and trainers say to each other: plain data, no tensors, and pure functions
//! of it.
//!
//! [`Event`]s come out of a run and [`Command`]s go into it. [`Progress`] folds events into the state
//! of a run, for every view, and [`Recovery`] decides what follows a failure. `Request` and `Reply` are
//! everything else that a front end asks for. `ToWorker` and `FromWorker` carry all of it between
//! processes, or between a page and its worker.

mod command;
mod event;
mod progress;
mod recovery;
mod request;
mod scored_token;
mod worker_message;

pub use crate::plan::DeviceLine;
pub use command::{Command, Setting};
pub use event::{
    Cause, Checkpoint, Event, RankLine, RankStep, ReplanReason, RunError, Sample, Step, StopReason,
    Task, Waiting, Working,
};
pub use progress::{
    Cumulative, Curves, Level, LogLine, Progress, RunPhase, Series, Smoothed, automatic_half_life,
};
pub use recovery::{AppliedCommands, Decision, Recovery, TrainerFailure};

pub(crate) use request::{
    DataInfo, Destination, Job, Obstacle, Reply, Request, SampleInput, SampleRequest, StorageUsage,
    StoredData, StoredModel, Texts, Topic, View,
};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use request::{KernelProgress, KernelTests};
pub use scored_token::{LikelyToken, ScoredToken};
pub(crate) use scored_token::{ProbabilityClass, TextLoss, probability_text};
pub use worker_message::{Exit, Failure};
pub(crate) use worker_message::{
    FromWorker, MESSAGES_VERSION, RunEnd, RunSettings, SelfTestOptions, StartRun, ToWorker,
};
