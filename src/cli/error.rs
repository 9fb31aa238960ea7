//! Errors of the command line.

use std::io::ErrorKind;
use std::path::PathBuf;

use thiserror::Error;

use crate::config::ConfigError;
use crate::data::DataError;
use crate::eval::{ChatError, ExamError};
use crate::gpu::DeviceError;
use crate::protocol::{Cause, Exit, Failure};
use crate::ranks::RanksError;
use crate::report::ReportError;
use crate::train::TrainError;

/// An error of a command.
#[derive(Debug, Error)]
pub enum CliError {
    /// An error of training, its data or its files.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// An invalid argument.
    #[error("{what}")]
    Usage {
        /// The thing that is invalid, and the reason.
        what: String,
        hint: &'static str,
    },
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// Output that cannot be written: its reader is gone, or the disk is full.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    /// An error that came from another process, or from what starts it.
    #[error("{}", .0.text)]
    Failed(Failure),
    /// A launcher of several processes that cannot be started.
    #[error("cannot start {program}: {error}")]
    Launcher { program: String, error: std::io::Error },
    /// A benchmark row without any measurement.
    #[error("{}: not written, because every measurement failed: {dtypes} on {device}", path.display())]
    NotMeasured { path: PathBuf, device: String, dtypes: String },
    /// A window that cannot be opened.
    #[cfg(feature = "gui")]
    #[error(transparent)]
    Window(#[from] crate::gui::GuiError),
    /// Signals that cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
}

impl CliError {
    /// Returns the function that makes the error about a file.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> Exit {
        match self {
            CliError::Train(error) => error.exit_code(),
            CliError::Failed(failure) => failure.exit,
            CliError::Usage { .. } => Exit::Usage,
            // A missing file is a wrong argument; any other error is the system's.
            CliError::File { source, .. } => match source.kind() {
                ErrorKind::NotFound | ErrorKind::IsADirectory => Exit::Usage,
                _ => Exit::Failure,
            },
            // The reader, like `head`, has read enough.
            CliError::Output(error) if error.kind() == ErrorKind::BrokenPipe => Exit::Success,
            CliError::Output(_) | CliError::Signals(_) | CliError::NotMeasured { .. } => {
                Exit::Failure
            }
            CliError::Launcher { .. } => Exit::Usage,
            #[cfg(feature = "gui")]
            CliError::Window(_) => Exit::Failure,
        }
    }

    /// Returns the failure of the device that caused this error, if it was one.
    pub(super) fn cause(&self) -> Option<Cause> {
        match self {
            CliError::Train(error) => error.cause(),
            CliError::Failed(failure) => failure.cause,
            _ => None,
        }
    }

    /// Returns true for an error that every rank of a run finds by itself: rank 0 reports it.
    pub(super) fn is_common(&self) -> bool {
        match self {
            CliError::Train(error) => error.is_common(),
            CliError::Usage { .. } => true,
            _ => false,
        }
    }

    /// Returns what to do next, if the text does not say it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            CliError::Train(error) => return error.hint(),
            CliError::Signals(_) => return None,
            CliError::Failed(failure) => failure.hint.as_str(),
            CliError::Usage { hint, .. } => hint,
            CliError::File { .. } => "check the path and its permissions",
            CliError::NotMeasured { .. } => {
                "the errors above say why; choose another device with --device, or a smaller model \
                 with --preset"
            }
            CliError::Launcher { .. } => {
                "install Open MPI (on Debian and Ubuntu: openmpi-bin) or MPICH, or name its launcher \
                 with --mpirun"
            }
            #[cfg(feature = "gui")]
            CliError::Window(error) => error.hint(),
            CliError::Output(_) => "check that the disk has room",
        };
        (!hint.is_empty()).then(|| hint.into())
    }
}

impl From<&CliError> for Failure {
    fn from(error: &CliError) -> Self {
        Self {
            text: error.to_string(),
            hint: error.hint().unwrap_or_default(),
            exit: error.exit_code(),
            cause: error.cause(),
        }
    }
}

impl From<ChatError> for CliError {
    fn from(error: ChatError) -> Self {
        CliError::Usage { what: error.to_string(), hint: error.hint() }
    }
}

impl From<ExamError> for CliError {
    fn from(error: ExamError) -> Self {
        match error {
            ExamError::File { path, source } => CliError::File { path, source },
            error => CliError::Usage { what: error.to_string(), hint: error.hint() },
        }
    }
}

impl From<ReportError> for CliError {
    fn from(error: ReportError) -> Self {
        let what = error.to_string();
        match error {
            ReportError::NotARun { .. } => {
                let hint = "give run folders; `wgpt runs` lists the runs in out/";
                CliError::Usage { what, hint }
            }
            ReportError::NotOurs { .. } => {
                CliError::Usage { what, hint: "give another file with -o" }
            }
            ReportError::File { path, source } => CliError::File { path, source },
        }
    }
}

/// Errors of training that a command meets by itself.
macro_rules! from_errors_of_training {
    ($($error:ty),*) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> Self {
                CliError::Train(error.into())
            }
        })*
    };
}

from_errors_of_training!(ConfigError, DataError, RanksError, DeviceError);
