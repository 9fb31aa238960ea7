//! Training: commands in, events out, no front end, no files and no talk between ranks.

mod commands;
mod job;
mod journal;
mod learner;
mod micro_batches;
mod optimizer;
mod position;
mod rank_part;
mod session;
mod setup;

pub use crate::model::LossScale;
pub use optimizer::{Masters, Optimizer};

pub(crate) use commands::Commands;
pub(crate) use session::Session;
pub(crate) use setup::{Request, Setup};
