//! Training: commands in, events out. Knows no front end.

pub mod archive;
mod batches;
pub mod checkpoint;
mod commands;
mod error;
mod evaluate;
mod limits;
mod optimizer;
mod run;
mod session;
mod setup;
mod source;

pub use commands::{Commands, Next};
pub use error::TrainError;
pub use evaluate::{Evaluation, mean_loss};
pub use limits::{device_profile, limits};
pub use optimizer::Optimizer;
pub use run::{
    CHECKPOINTS_FOLDER, COMMANDS_FILE, CONFIG_FILE, EVENTS_FILE, LOCK_FILE, RunFolder, record,
};
pub use session::Session;
pub use setup::{Request, Setup};
pub use source::{ModelSource, NANOGPT_FILE, settings};

/// Whether the run in `folder` has anything to continue from.
pub fn has_checkpoint(folder: &std::path::Path) -> bool {
    checkpoint::exists(&folder.join(CHECKPOINTS_FOLDER))
}
