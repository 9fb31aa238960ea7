use std::io::ErrorKind;
use std::path::PathBuf;

use thiserror::Error;

use crate::config::ConfigError;
use crate::data::DataError;
use crate::gpu::DeviceError;
use crate::protocol::Cause;
use crate::train::TrainError;

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    /// Training, or what it reads and writes.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The command was given something that it cannot use.
    #[error("{what}")]
    Usage {
        /// What, and why.
        what: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// Nobody reads stdout any more, or its disk is full.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    /// The trainer's process could not be started or waited for.
    #[error("cannot run the trainer: {0}")]
    Process(std::io::Error),
    /// There is no window.
    #[cfg(feature = "gui")]
    #[error(transparent)]
    Window(#[from] crate::gui::GuiError),
    /// The system refused to tell of signals.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
}

impl CliError {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Train(error) => error.exit_code(),
            CliError::Usage { .. } => 2,
            // What is not there is a wrong path; everything else is the system's refusal.
            CliError::File { source, .. } => match source.kind() {
                ErrorKind::NotFound | ErrorKind::IsADirectory => 2,
                _ => 1,
            },
            // Whoever reads has seen enough.
            CliError::Output(error) if error.kind() == ErrorKind::BrokenPipe => 0,
            CliError::Output(_) | CliError::Signals(_) | CliError::Process(_) => 1,
            #[cfg(feature = "gui")]
            CliError::Window(_) => 1,
        }
    }

    /// Returns the failure of the device that caused this error, if it was one.
    pub(super) fn cause(&self) -> Option<Cause> {
        match self {
            CliError::Train(error) => error.cause(),
            _ => None,
        }
    }

    /// What to do next; empty where the text already says it.
    pub fn hint(&self) -> &'static str {
        match self {
            CliError::Train(error) => error.hint(),
            CliError::Usage { hint, .. } => hint,
            CliError::File { .. } => "check that the path exists and that you may use it",
            CliError::Process(_) => "--no-supervise trains in one process",
            #[cfg(feature = "gui")]
            CliError::Window(error) => error.hint(),
            CliError::Output(_) => "check that the disk has room",
            CliError::Signals(_) => "",
        }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        CliError::Train(error.into())
    }
}

impl From<DataError> for CliError {
    fn from(error: DataError) -> Self {
        CliError::Train(error.into())
    }
}

impl From<DeviceError> for CliError {
    fn from(error: DeviceError) -> Self {
        CliError::Train(error.into())
    }
}
