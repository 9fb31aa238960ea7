//! The exit codes of wgpt.

use serde::{Deserialize, Serialize};

/// The end of a process of wgpt. Its number is the exit code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Exit {
    Success = 0,
    #[default]
    Failure = 1,
    /// The arguments or the settings are invalid.
    Usage = 2,
    /// The run does not fit its budget.
    DoesNotFit = 3,
    /// No device can be used.
    NoDevice = 4,
    /// The device was lost or ran out of memory, and recovery gave up.
    DeviceFailed = 5,
    /// The loss is not finite.
    NotFinite = 6,
    /// The data or the checkpoint is missing or damaged.
    BadData = 7,
    /// A panic, as Rust ends a process.
    Panic = 101,
}

#[cfg(not(target_arch = "wasm32"))]
impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
