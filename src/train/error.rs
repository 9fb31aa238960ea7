//! Why a run could not start or go on.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::ConfigError;
use crate::data::DataError;
use crate::gpu::DeviceError;
use crate::model::WeightError;
use crate::plan::PlanError;
use crate::protocol::Cause;

/// Every way in which training, evaluation or a checkpoint fails. The text says what and where;
/// [`hint`](Self::hint) says what to do next, where the text does not.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Weights in a file.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// A checkpoint is not what it was when it was written.
    #[error("{}: {reason}", path.display())]
    Checkpoint {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing to continue from.
    #[error("{}: there is no model and no whole checkpoint", path.display())]
    NoCheckpoint {
        /// The run or its checkpoints folder.
        path: PathBuf,
    },
    /// There is nothing at all where a model was looked for.
    #[error("{}: there is no such file or folder", path.display())]
    NoSuchModel {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The run folder holds another run.
    #[error("{}: there is a run in this folder already", path.display())]
    RunExists {
        /// The run folder.
        path: PathBuf,
    },
    /// Another process trains in the run folder.
    #[error("{}: another process is training here", path.display())]
    Locked {
        /// The run folder.
        path: PathBuf,
    },
    /// The model of the configuration is not the one that is loaded.
    #[error("`{key}` is {asked} in the configuration, but {have} in {}", path.display())]
    OtherModel {
        /// The setting.
        key: &'static str,
        /// Its value in the configuration.
        asked: String,
        /// Its value in what is loaded.
        have: String,
        /// What is loaded.
        path: PathBuf,
    },
    /// The run would not fit its budget, or the device.
    #[error(transparent)]
    Plan(Box<PlanError>),
    /// A weight is larger than what the device can bind to a kernel.
    #[error("`{name}` takes {need} bytes, but {device} binds at most {have} bytes at a time")]
    BindingTooLarge {
        /// The weight.
        name: String,
        /// Its size in bytes.
        need: u64,
        /// The device's limit in bytes.
        have: u64,
        /// The device.
        device: String,
    },
    /// Training diverged.
    #[error("the loss or the gradient norm is {value} at iteration {iter}")]
    NotFinite {
        /// Updates made before.
        iter: u64,
        /// Not a number, or infinite.
        value: f64,
    },
    /// The system refused to read or write.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

impl From<PlanError> for TrainError {
    fn from(error: PlanError) -> Self {
        TrainError::Plan(Box::new(error))
    }
}

impl TrainError {
    /// For `map_err`: "cannot `action` `path`".
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| TrainError::Io { action, path, source }
    }

    pub(crate) fn checkpoint(path: &Path, reason: impl ToString) -> Self {
        TrainError::Checkpoint { path: path.to_path_buf(), reason: reason.to_string() }
    }

    /// What to do next; empty where the text already says it.
    pub fn hint(&self) -> &'static str {
        match self {
            TrainError::Config(_) | TrainError::Data(_) => "",
            TrainError::Device(error) => error.hint(),
            TrainError::Weights(WeightError::Io { .. }) => {
                "check that the path exists and may be read, and that the disk has room"
            }
            TrainError::Weights(_) | TrainError::Checkpoint { .. } => {
                "fetch or export the model again, or name an older checkpoint"
            }
            TrainError::NoCheckpoint { .. } => {
                "give a run folder that has trained past its first checkpoint, a checkpoint, \
                 nanoGPT's ckpt.pt, or a Hugging Face GPT-2 folder"
            }
            TrainError::NoSuchModel { .. } => {
                "give a run, a checkpoint, nanoGPT's ckpt.pt or a GPT-2 folder; `hf download \
                 openai-community/gpt2 --local-dir gpt2` fetches OpenAI's"
            }
            TrainError::RunExists { .. } => {
                "continue it with --resume, or give another folder with --run"
            }
            TrainError::Locked { .. } => "stop that process, or give another folder with --run",
            TrainError::OtherModel { .. } => "leave the setting out, or start from scratch",
            TrainError::BindingTooLarge { .. } => {
                "use another device (`wgpt devices` shows the limits), --device=cpu, or a smaller \
                 n_embd or vocabulary"
            }
            TrainError::Plan(error) => match **error {
                PlanError::TooBig { .. } => {
                    "any one of these changes makes it fit; `wgpt plan` shows what takes the memory"
                }
                PlanError::TensorTooLarge { .. } => {
                    "use another device (`wgpt devices` shows the limits), --device=cpu, or a \
                     smaller n_embd or block_size"
                }
            },
            TrainError::NotFinite { .. } => {
                "lower learning_rate or raise warmup_iters, and resume from the last checkpoint"
            }
            TrainError::Io { .. } => {
                "check that the path exists, that you may use it and that the disk has room"
            }
        }
    }

    /// Returns the failure of the device that caused this error, if it was one.
    pub fn cause(&self) -> Option<Cause> {
        let TrainError::Device(error) = self else { return None };
        match error {
            DeviceError::OutOfMemory { .. } => Some(Cause::OutOfMemory),
            DeviceError::Stopped { .. } => Some(Cause::DeviceLost),
            DeviceError::Missing { .. } | DeviceError::NoCuda { .. } | DeviceError::Open { .. } => {
                Some(Cause::Unavailable)
            }
            DeviceError::Unknown { .. }
            | DeviceError::NotBuilt { .. }
            | DeviceError::Dtype { .. }
            | DeviceError::TooSmall { .. } => None,
        }
    }

    /// The exit code of a process that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            TrainError::Config(_)
            | TrainError::RunExists { .. }
            | TrainError::OtherModel { .. }
            | TrainError::Locked { .. } => 2,
            TrainError::BindingTooLarge { .. } | TrainError::Plan(_) => 3,
            TrainError::Device(DeviceError::Unknown { .. } | DeviceError::Dtype { .. }) => 2,
            TrainError::Device(DeviceError::OutOfMemory { .. } | DeviceError::Stopped { .. }) => 5,
            TrainError::Device(_) => 4,
            TrainError::Data(DataError::Io { source, .. })
                if source.kind() != io::ErrorKind::NotFound =>
            {
                1
            }
            TrainError::Data(
                DataError::BadFraction { .. }
                | DataError::AlreadyPrepared { .. }
                | DataError::UnknownTokenizer { .. }
                | DataError::UnknownBuiltin { .. },
            ) => 2,
            TrainError::NotFinite { .. } => 6,
            // What is not there is a wrong path; everything else is the system's refusal.
            TrainError::Weights(WeightError::Io { source, .. })
                if source.kind() != io::ErrorKind::NotFound =>
            {
                1
            }
            TrainError::Data(_)
            | TrainError::Weights(_)
            | TrainError::Checkpoint { .. }
            | TrainError::NoCheckpoint { .. }
            | TrainError::NoSuchModel { .. } => 7,
            TrainError::Io { .. } => 1,
        }
    }
}
