//! MPI on systems where wgpt opens no library.

use std::time::Duration;

use super::{Group, Launch, RanksError};

pub(super) fn open(launch: &Launch, _limit: Duration) -> Result<Group, RanksError> {
    Err(RanksError::NotServed { size: launch.size })
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn library() -> Option<Result<String, String>> {
    None
}
