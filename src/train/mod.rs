//! Training: commands in, events out, no front end.

mod batches;
mod commands;
mod error;
mod loss_scale;
mod optimizer;
mod session;
mod setup;

pub use error::TrainError;
pub use loss_scale::LossScale;
pub(crate) use optimizer::OUTER;
pub use optimizer::{Masters, Optimizer};

pub(crate) use commands::{Commands, Next};
pub(crate) use session::Session;
pub(crate) use setup::{Request, Setup};
