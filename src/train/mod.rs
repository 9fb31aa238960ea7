//! Training: commands in, events out, no front end.

mod agreement;
pub(crate) mod archive;
mod batches;
pub(crate) mod checkpoint;
mod commands;
mod data_path;
mod division;
mod error;
mod limits;
mod loss_scale;
mod optimizer;
mod own_states;
mod plan_limit;
mod run;
mod scalars;
mod session;
mod setup;
mod source;
mod speed;
mod states;

pub(crate) use agreement::OWN_SETTINGS;
pub use error::TrainError;
pub use limits::device_profile;
pub use loss_scale::LossScale;
pub use optimizer::{Masters, Optimizer, Shard};
pub use source::ModelSource;

pub(crate) use commands::{Commands, Next};
pub(crate) use plan_limit::PlanLimit;
#[cfg(test)]
pub(crate) use run::RunFolder;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use run::json_line;
pub(crate) use run::{
    CHECKPOINTS_FOLDER, COMMANDS_FILE, CONFIG_FILE, EVENTS_FILE, LOCK_FILE, record,
};
pub(crate) use session::Session;
pub(crate) use setup::{Request, Setup};
pub(crate) use source::{NANOGPT_FILE, has_chat, settings};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use speed::{folder as speeds_folder, remember as remember_speed};

/// Returns true if the run in `folder` has a checkpoint to continue from.
pub(crate) fn has_checkpoint(folder: &std::path::Path) -> bool {
    checkpoint::exists(&folder.join(CHECKPOINTS_FOLDER))
}
