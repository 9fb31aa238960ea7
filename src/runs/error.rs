//! Errors of a run, from its configuration to its end.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::ConfigError;
use crate::data::{DataError, DataErrorKind};
use crate::disk;
use crate::gpu::DeviceError;
use crate::model::{LossScale, WeightError};
use crate::plan::PlanError;
use crate::protocol::{Cause, Exit};
use crate::ranks::RanksError;
use crate::text::{bytes, excerpt};

/// An error of training, evaluation or a checkpoint. The text says what failed, and where;
/// [`hint`](Self::hint) says what to do next.
#[derive(Debug, Error)]
pub enum TrainError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[cfg(not(target_arch = "wasm32"))]
    #[error(transparent)]
    Hub(#[from] crate::hub::HubError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("this run cannot continue in its precision: {0}")]
    OtherPrecision(DeviceError),
    #[error(transparent)]
    Weights(WeightError),
    #[error("{}: {reason}", path.display())]
    Checkpoint { path: PathBuf, reason: String },
    #[error("{}: no model and no intact checkpoint in this folder", path.display())]
    NoCheckpoint { path: PathBuf },
    #[error("{}: does not exist", path.display())]
    NoSuchModel { path: PathBuf },
    #[error("{}: this folder already has a run", path.display())]
    RunExists { path: PathBuf },
    #[error("{}: another process is training this run", path.display())]
    Locked { path: PathBuf },
    /// The folder of a run that trains is not at its path any more.
    #[error("{}: this folder was deleted or moved during the run{}", path.display(), rescued(saved))]
    FolderLost {
        path: PathBuf,
        /// The folder with a checkpoint from now, or the reason why it could not be written.
        saved: Result<PathBuf, Box<TrainError>>,
    },
    /// A setting that differs from the loaded model or checkpoint.
    #[error("`{key}` is {configured} in the configuration, but {loaded} in {}", path.display())]
    OtherModel { key: &'static str, configured: String, loaded: String, path: PathBuf },
    #[error("{}: this model and the data use different tokenizers", path.display())]
    OtherTokenizer { path: PathBuf },
    #[error(transparent)]
    Ranks(#[from] RanksError),
    #[error(transparent)]
    Plan(Box<PlanError>),
    #[error("the weight `{name}` takes {}, but {device} allows at most {} per tensor", bytes(*need), bytes(*have))]
    BindingTooLarge { name: String, need: u64, have: u64, device: String },
    #[error("{}", not_finite(*iter, scaling.as_ref()))]
    NotFinite {
        iter: u64,
        /// The state of loss scaling, if it has skipped too many updates in a row.
        scaling: Option<LossScale>,
        /// True if the run has a checkpoint from before.
        has_checkpoint: bool,
    },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

fn rescued(saved: &Result<PathBuf, Box<TrainError>>) -> String {
    match saved {
        Ok(path) => format!("; the run is saved in {}", path.display()),
        Err(error) => format!(", and the run could not be saved elsewhere: {error}"),
    }
}

fn not_finite(iter: u64, scaling: Option<&LossScale>) -> String {
    match scaling {
        None => format!("the loss or the gradient is not finite at iteration {iter}"),
        Some(LossScale { scale, skipped_in_a_row, .. }) => format!(
            "loss scaling has skipped {skipped_in_a_row} updates in a row, up to iteration {iter}: \
             their gradients are not finite in float16, even with a scale of {scale}"
        ),
    }
}

impl From<WeightError> for TrainError {
    /// Weights come from a file or from another rank. An error of the ranks is none of the weights.
    fn from(error: WeightError) -> Self {
        match error {
            WeightError::Source(source) => match source.downcast() {
                Ok(error) => TrainError::Ranks(*error),
                Err(source) => TrainError::Weights(WeightError::Source(source)),
            },
            error => TrainError::Weights(error),
        }
    }
}

impl From<PlanError> for TrainError {
    fn from(error: PlanError) -> Self {
        TrainError::Plan(Box::new(error))
    }
}

impl TrainError {
    /// Returns a function for `map_err`: "cannot `action` `path`".
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| TrainError::Io { action, path, source }
    }

    /// Returns the error of a setting that is not the one in `path`.
    pub(crate) fn other_model(
        key: &'static str,
        [configured, loaded]: [impl ToString; 2],
        path: &Path,
    ) -> Self {
        let [configured, loaded] = [configured.to_string(), loaded.to_string()];
        TrainError::OtherModel { key, configured, loaded, path: path.to_path_buf() }
    }

    pub(crate) fn checkpoint(path: &Path, reason: impl Display) -> Self {
        TrainError::Checkpoint { path: path.to_path_buf(), reason: excerpt(reason) }
    }

    /// Returns what to do next, if the text does not say it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            TrainError::Config(error) => return error.hint(),
            TrainError::Plan(error) => return error.hint(),
            TrainError::Data(error) => error.hint(),
            #[cfg(not(target_arch = "wasm32"))]
            TrainError::Hub(error) => error.hint(),
            TrainError::Device(error) => error.hint(),
            TrainError::OtherPrecision(_) => {
                "add --dtype=float32 or --dtype=auto to continue in another precision; its losses will \
                 differ slightly"
            }
            TrainError::Ranks(error) => error.hint(),
            TrainError::Weights(error) => error.hint(),
            TrainError::Checkpoint { .. } => {
                "download or export the model again, or give another checkpoint if there is one"
            }
            TrainError::NoCheckpoint { .. } => {
                "give a run that has a checkpoint, a checkpoint, nanoGPT's ckpt.pt, or a Hugging Face \
                 folder"
            }
            TrainError::NoSuchModel { .. } => {
                "give a run, a checkpoint, nanoGPT's ckpt.pt or a Hugging Face folder; for OpenAI's GPT-2, \
                 run `wgpt get hf:openai-community/gpt2` and give hf:openai-community/gpt2"
            }
            TrainError::RunExists { .. } => {
                "continue it with --resume, or give another folder with --run"
            }
            TrainError::Locked { .. } => "stop that process, or give another folder with --run",
            TrainError::FolderLost { saved: Ok(_), .. } => {
                "continue it there with --resume and --run; if you moved the old folder, you can \
                 also continue its last checkpoint"
            }
            TrainError::FolderLost { .. } => {
                "if you moved the folder, continue its last checkpoint with --resume and --run; if it is gone, \
                 start a new run"
            }
            TrainError::OtherTokenizer { .. } => {
                "prepare the data again, with --tokenizer=gpt2 for GPT-2, or --tokenizer=MODEL for a \
                 model folder with a tokenizer.json, like a checkpoint"
            }
            TrainError::OtherModel { .. } => "leave the setting out, or start a new run",
            TrainError::BindingTooLarge { .. } => {
                "use another device (`wgpt devices` shows the limits), --device=cpu, or a smaller \
                 n_embd or vocabulary"
            }
            TrainError::NotFinite { scaling, has_checkpoint, .. } => {
                let (first, or) = if *has_checkpoint {
                    ("continue from the last checkpoint with --resume and", "start again with")
                } else {
                    ("start again with", "with")
                };
                let mut hint = format!("{first} a lower learning_rate or a higher warmup_iters");
                if scaling.is_some() {
                    hint += &format!(", or {or} --dtype=float32, which has a larger range");
                }
                return Some(hint);
            }
            TrainError::Io { source, .. } => disk::hint(source)
                .unwrap_or("check the path, its permissions and the free space of the disk"),
        };
        (!hint.is_empty()).then(|| hint.into())
    }

    /// Returns the failure of the device that caused this error, if it was one.
    pub fn cause(&self) -> Option<Cause> {
        let error = match self {
            TrainError::Device(error) => error,
            // A rank that does not answer may have lost its device, and can be started again.
            TrainError::Ranks(error) => {
                return (!error.is_usage()).then_some(Cause::DeviceLost);
            }
            _ => return None,
        };
        match error {
            DeviceError::OutOfMemory { .. } => Some(Cause::OutOfMemory),
            DeviceError::Stopped { .. } => Some(Cause::DeviceLost),
            DeviceError::Missing { .. }
            | DeviceError::TooFew { .. }
            | DeviceError::NoCuda { .. }
            | DeviceError::Crashed { .. }
            | DeviceError::Open { .. } => Some(Cause::Unavailable),
            DeviceError::Unknown { .. }
            | DeviceError::NotBuilt { .. }
            | DeviceError::Dtype { .. }
            | DeviceError::Untrusted { .. }
            | DeviceError::TooSmall { .. } => None,
        }
    }

    /// Returns true for an error that every rank of a run finds by itself: rank 0 reports it.
    pub(crate) fn is_common(&self) -> bool {
        match self {
            TrainError::NotFinite { .. } | TrainError::Config(_) => true,
            TrainError::Ranks(error) => error.is_common(),
            _ => false,
        }
    }

    /// Returns the exit code of a process that ends with this error.
    pub fn exit_code(&self) -> Exit {
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            TrainError::Hub(error) => error.exit,
            TrainError::Config(_)
            | TrainError::OtherPrecision(_)
            | TrainError::RunExists { .. }
            | TrainError::OtherModel { .. }
            | TrainError::OtherTokenizer { .. }
            | TrainError::Locked { .. } => Exit::Usage,
            TrainError::BindingTooLarge { .. } | TrainError::Plan(_) => Exit::DoesNotFit,
            TrainError::Device(DeviceError::Unknown { .. } | DeviceError::Dtype { .. }) => {
                Exit::Usage
            }
            TrainError::Ranks(error) if error.is_usage() => Exit::Usage,
            TrainError::Device(DeviceError::OutOfMemory { .. } | DeviceError::Stopped { .. })
            | TrainError::Ranks(_) => Exit::DeviceFailed,
            TrainError::Device(_) => Exit::NoDevice,
            TrainError::Data(error) => match error.kind {
                DataErrorKind::Usage => Exit::Usage,
                DataErrorKind::System => Exit::Failure,
                DataErrorKind::Missing | DataErrorKind::BadData => Exit::BadData,
            },
            TrainError::NotFinite { .. } => Exit::NotFinite,
            // A missing file is bad input; any other error is the system's.
            TrainError::Weights(WeightError::Io { source, .. })
                if source.kind() != io::ErrorKind::NotFound =>
            {
                Exit::Failure
            }
            TrainError::Weights(_)
            | TrainError::Checkpoint { .. }
            | TrainError::NoCheckpoint { .. }
            | TrainError::NoSuchModel { .. } => Exit::BadData,
            TrainError::Io { .. } | TrainError::FolderLost { .. } => Exit::Failure,
        }
    }
}
