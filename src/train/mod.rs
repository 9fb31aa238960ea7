//! Training: commands in, events out, no front end, no files and no talk between ranks.

mod checkpoint_writer;
mod clock;
mod commands;
mod cooling;
mod evaluation;
mod inputs;
mod journal;
mod learner;
mod measurement;
mod memory;
mod optimizer;
mod pace;
mod position;
mod rank_part;
mod room;
mod sampling;
mod session;
mod setup;
mod training;
mod warnings;

use crate::protocol::Failure;

pub use crate::model::LossScale;
pub(crate) use commands::Commands;
pub use optimizer::{Masters, Optimizer};
pub(crate) use room::BUSY;
pub(crate) use session::Session;
pub(crate) use setup::{Setup, TrainRequest};

/// The result of a part of a run.
type Result<T, E = Failure> = std::result::Result<T, E>;
