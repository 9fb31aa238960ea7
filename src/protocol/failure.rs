//! The one error that people see: what failed, what to do, and how the process ends.
//!
//! If code matches on a module's errors, the module has an enum that becomes a [`Failure`] by `From`.

use serde::{Deserialize, Serialize};

use super::{Cause, RunError};
use crate::config::ConfigError;
use crate::plan::PlanError;

/// An error as a value that crosses processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct Failure {
    /// What failed, and where.
    pub text: String,
    /// What to do next; empty if the text says it.
    pub hint: String,
    pub exit: Exit,
    /// The failure of the device, if it was one.
    pub cause: Option<Cause>,
    /// True if every rank of a run finds it independently: then only rank 0 reports it.
    #[serde(skip)]
    pub is_common: bool,
}

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
    DoesNotFit = 3,
    NoDevice = 4,
    /// The device was lost or ran out of memory, and recovery gave up.
    DeviceFailed = 5,
    NotFinite = 6,
    /// The data or the checkpoint is missing or damaged.
    BadData = 7,
    /// A panic, as Rust ends a process.
    Panic = 101,
}

impl Exit {
    /// Returns the end that a process of wgpt had with this exit code.
    pub fn of_code(code: i32) -> Self {
        use Exit::*;
        let known = [Success, Usage, DoesNotFit, NoDevice, DeviceFailed, NotFinite, BadData, Panic];
        known.into_iter().find(|exit| *exit as i32 == code).unwrap_or(Failure)
    }
}

impl Failure {
    /// A failure with exit code 1 that no device has caused.
    pub(crate) fn new(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { text: text.into(), hint: hint.into(), ..Self::default() }
    }

    /// A failure of arguments or settings, which every rank finds.
    pub(crate) fn usage(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { is_common: true, ..Self::new(text, hint).with_exit(Exit::Usage) }
    }

    /// A failure of a file that is missing, damaged or useless.
    pub(crate) fn bad_data(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(text, hint).with_exit(Exit::BadData)
    }

    pub(crate) fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string(), error.hint())
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let hint = error.hint().unwrap_or_default();
        Self::new(error.to_string(), hint).with_exit(Exit::DoesNotFit)
    }
}

impl From<Failure> for RunError {
    fn from(Failure { text, hint, cause, .. }: Failure) -> Self {
        Self { text, hint, cause }
    }
}
