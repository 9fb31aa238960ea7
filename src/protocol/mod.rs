//! The messages between front ends, workers and trainers: plain data and pure functions, no tensors.
//!
//! A run emits [`Event`]s and takes [`Command`]s. [`Progress`] folds events into the state of a run, for
//! every view, and [`Recovery`] decides what follows a failure. A front end asks for everything else with a
//! `Request` and gets `Reply`s. `ToWorker` and `FromWorker` carry these between processes, or between a page
//! and its worker.

mod benchmark_row;
mod command;
mod conversation;
mod device;
mod event;
mod failure;
mod kernels;
mod library;
mod progress;
mod recovery;
mod request;
mod run_summary;
mod scored_token;
mod worker_message;

pub use crate::plan::DeviceLine;
pub(crate) use benchmark_row::BenchmarkRow;
pub use command::{Command, Setting};
pub use conversation::{Message, Role};
pub(crate) use device::Search;
pub use device::{AdapterReport, DeviceId, DeviceInfo};
pub use event::{
    Cause, Event, RankLine, RankStep, ReplanReason, RunError, Sample, SavedCheckpoint, Step,
    StopReason, Task, Waiting, Working,
};
pub use failure::{Exit, Failure};
pub use kernels::{Activation, Implementation, KernelError, KernelShapes};
pub(crate) use kernels::{KernelProgress, KernelTests};
pub use library::TokenizerKind;
pub(crate) use library::{DataInfo, StorageUsage, StoredData, StoredModel};
pub use progress::{
    Cumulative, Curves, Level, LogLine, Progress, RunPhase, Series, Smoothed, automatic_half_life,
};
pub use recovery::{AppliedCommands, Decision, Recovery, TrainerFailure};
pub(crate) use request::{
    ExportFormat, FeatureCheck, FrontEnd, Obstacle, Reply, Request, RequestKind, RunView,
    SampleInput, SampleRequest, Texts, Topic,
};
pub(crate) use run_summary::{About, Introduction, RunState, RunSummary, Tail};
pub use scored_token::{LikelyToken, ScoredToken};
pub(crate) use scored_token::{ProbabilityClass, TextLoss, probability_text};
pub(crate) use worker_message::{
    FromWorker, MESSAGES_VERSION, RunEnd, RunSettings, SelfTestOptions, StartRun, ToWorker,
};
