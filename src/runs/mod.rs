//! Runs on the disk: their folders, checkpoints and scalar logs, and the list of all runs.

use crate::protocol::Failure;
pub(crate) mod archive;
pub(crate) mod checkpoint;
mod data_path;
mod device_cache;
mod device_profile;
mod failure;
mod folder;
mod index;
mod introduction;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod kernel_verdicts;
mod model_source;
mod no_model;
mod scalars;
mod speeds;
mod thinning;

pub use device_profile::device_profile;
pub use model_source::{AdapterSource, ModelSource, settings};

pub(crate) use crate::protocol::{About, Introduction, RunState, RunSummary, Tail};
pub(crate) use data_path::{absolute_data, absolute_model, find_data};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use device_cache::folder as cache_folder;
pub(crate) use folder::{
    CHECKPOINTS_FOLDER, COMMANDS_FILE, CONFIG_FILE, EVENTS_FILE, LOCK_FILE, RunFolder, record,
};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use folder::{json_line, locked};
pub(crate) use index::*;
pub(crate) use model_source::{NANOGPT_FILE, check_same, has_chat};
pub(crate) use scalars::Continued;
pub(crate) use speeds::{driver_traits, known as known_speed, remember as remember_speed};

/// Returns true if the run in `folder` has a checkpoint to continue from, intact or not.
pub(crate) fn has_checkpoint(folder: &std::path::Path) -> bool {
    has_checkpoints(folder).unwrap_or(false)
}

/// Like [`has_checkpoint`], but returns the error of a folder that cannot be read.
pub(crate) fn has_checkpoints(folder: &std::path::Path) -> Result<bool, Failure> {
    Ok(checkpoint::newest_first(&folder.join(CHECKPOINTS_FOLDER))?.next().is_some())
}
