//! Requests to the service and its replies: plain serde data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::catalogue::{RunSummary, Tail};
use crate::config::Config;
use crate::data::TokenizerKind;
use crate::model::Architecture;
use crate::plan::DeviceProfile;
use crate::progress::Progress;
use crate::protocol::DeviceLine;

/// A request to the service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Lists the devices: [`Reply::Devices`].
    Devices,
    /// Reads the memory and the limits of a device: [`Reply::Device`].
    Device {
        /// The device as `--device` takes it.
        choice: String,
    },
    /// Reads the size of a data set: [`Reply::Data`].
    DescribeData {
        /// The data set as `--data` takes it.
        spec: String,
    },
    /// Tokenizes texts: [`Reply::Preparing`] while it runs, then [`Reply::Prepared`].
    Prepare {
        /// The texts.
        texts: Texts,
        /// The folder in which a new data folder is created.
        folder: PathBuf,
    },
    /// Lists the runs in a folder: [`Reply::Runs`].
    ListRuns {
        /// The folder.
        folder: PathBuf,
    },
    /// Reads the recorded events of a run: [`Reply::Run`].
    ReadRun {
        /// The run folder.
        run: PathBuf,
        /// How the run is to be drawn.
        view: View,
    },
    /// Reads the configurations of two runs: [`Reply::Comparison`].
    Compare {
        /// The run folders.
        runs: [PathBuf; 2],
    },
    /// Reads the configuration that a new run needs to begin with these weights: [`Reply::Config`].
    Fork {
        /// A checkpoint, a run or a model.
        checkpoint: PathBuf,
    },
    /// Writes a checkpoint as a Hugging Face folder: [`Reply::Exported`].
    Export {
        /// A checkpoint, a run or a model.
        checkpoint: PathBuf,
        /// Where the model is written.
        to: Destination,
    },
    /// Stores the model in a zip: a Hugging Face GPT-2 folder or a checkpoint. [`Reply::Imported`].
    Import {
        /// The folder in which a new model folder is created.
        folder: PathBuf,
        /// The wanted name of the model folder.
        name: String,
        /// The zip.
        #[serde(skip)]
        zip: Vec<u8>,
    },
    /// Deletes a run, data or a model from the browser's storage: [`Reply::Stored`].
    Remove {
        /// Its folder.
        path: PathBuf,
    },
    /// Generates text with a model while no run trains: [`Reply::Sampled`], several times.
    Sample {
        /// A run, a checkpoint or a model.
        path: PathBuf,
        /// The text to continue.
        prompt: String,
        /// Tokens to generate.
        tokens: u32,
        /// Seed of the random draws.
        seed: u64,
    },
}

/// A reply of the service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The devices of this machine. In a browser the one device, once it is open.
    Devices {
        /// The devices.
        devices: Vec<DeviceLine>,
    },
    /// The memory and the limits of a device.
    Device {
        /// The device as the planner sees it.
        device: DeviceProfile,
    },
    /// The size of a data set, or why it cannot be read.
    Data {
        /// The data set as `--data` takes it.
        spec: String,
        /// Its size.
        data: Result<DataInfo, String>,
    },
    /// Texts are being tokenized.
    Preparing {
        /// The name of the new data set.
        name: String,
        /// The finished share, from 0 to 1.
        share: f32,
    },
    /// Texts are tokenized.
    Prepared {
        /// The new data set as `--data` takes it.
        spec: String,
    },
    /// The runs in a folder, the newest first.
    Runs {
        /// The folder.
        folder: PathBuf,
        /// The runs.
        runs: Vec<RunSummary>,
    },
    /// Data and models in the browser's storage. Unasked, after each change.
    Stored {
        /// Data sets.
        data: Vec<StoredData>,
        /// Imported models.
        models: Vec<StoredModel>,
        /// The space that the storage uses.
        usage: StorageUsage,
    },
    /// The recorded progress of a run.
    Run {
        /// The run folder.
        run: PathBuf,
        /// How the run is to be drawn.
        view: View,
        /// Its progress up to the last recorded event.
        progress: Box<Progress>,
        /// Reads the events after that.
        tail: Tail,
    },
    /// The configurations of two runs.
    Comparison {
        /// The run folders.
        runs: [PathBuf; 2],
        /// Their configurations.
        configs: Box<[Config; 2]>,
    },
    /// The configuration for a new run that begins with existing weights.
    Config {
        /// The weights.
        checkpoint: PathBuf,
        /// The configuration.
        config: Box<Config>,
    },
    /// A model is exported.
    Exported {
        /// The folder, or a name for the zip.
        to: PathBuf,
        /// The zip, where one was requested.
        #[serde(skip)]
        #[cfg_attr(
            not(target_arch = "wasm32"),
            allow(dead_code, reason = "only a page requests a zip")
        )]
        zip: Vec<u8>,
    },
    /// A model is stored.
    Imported {
        /// The model.
        model: StoredModel,
    },
    /// Text that a model generates.
    Sampled {
        /// The text it continues.
        prompt: String,
        /// All of the text so far, without the prompt.
        text: String,
        /// Whether the text is complete.
        done: bool,
    },
    /// Something that prevents training, or makes it slow. Unasked.
    Obstacle(Obstacle),
    /// A request failed.
    Failed {
        /// The kind of request.
        job: Job,
        /// What failed, and where.
        text: String,
        /// What to do next; empty where the text says it.
        hint: String,
    },
}

/// Texts to tokenize.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Texts {
    /// Files and folders.
    Files(Vec<PathBuf>),
    /// A text without a file, such as one from the clipboard.
    Text {
        /// The wanted name of the data set.
        name: String,
        /// The text. `<|endoftext|>` separates documents.
        text: String,
    },
}

/// How the progress of a run is to be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum View {
    /// As the run that the window shows.
    Main,
    /// As curves beside those of another run.
    Overlay,
}

/// Where an exported model goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Destination {
    /// Into this folder if it is empty, else into a new one below it.
    Folder(PathBuf),
    /// Into a zip that the reply carries.
    Zip,
}

/// The kind of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    /// [`Request::Prepare`]
    Prepare,
    /// [`Request::Export`]
    Export,
    /// [`Request::Import`]
    Import,
    /// [`Request::Sample`]
    Sample,
    /// Any other request.
    Other,
}

/// Something that prevents training in a browser, or makes it slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Obstacle {
    /// The part that fails: of each there is at most one obstacle.
    pub topic: Topic,
    /// Whether training works all the same.
    pub can_train: bool,
    /// What is wrong.
    pub text: String,
    /// What to do next.
    pub hint: String,
}

/// The part of the browser that an [`Obstacle`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    /// WebGPU, its adapter and its limits.
    Device,
    /// An adapter that computes in software.
    SoftwareAdapter,
    /// Storage that keeps nothing.
    Storage,
    /// Storage that is too small for the run.
    Quota,
}

/// The size of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataInfo {
    /// Different tokens.
    pub vocab_size: u32,
    /// Tokens of the training split.
    pub train_tokens: u64,
    /// Tokens of the validation split.
    pub val_tokens: u64,
}

/// A data set in the browser's storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredData {
    /// The data set as `--data` takes it: `data/NAME`.
    pub spec: String,
    /// Its name for people.
    pub name: String,
}

/// A model in the browser's storage that was imported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredModel {
    /// Its folder, `models/NAME`.
    pub path: PathBuf,
    /// Its name for people.
    pub name: String,
    /// Its shapes. A run that begins with it needs the same.
    pub architecture: Architecture,
    /// Whether its tokenizer is known, so that it can generate text.
    pub has_tokenizer: bool,
}

/// The space that the browser's storage uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StorageUsage {
    /// The most that it may use; 0 where nothing is kept.
    pub quota: u64,
    /// The part in use.
    pub used: u64,
    /// Whether the browser asks before it clears the storage.
    pub persisted: bool,
}

impl Request {
    /// The kind of this request, for [`Reply::Failed`].
    pub fn job(&self) -> Job {
        match self {
            Request::Prepare { .. } => Job::Prepare,
            Request::Export { .. } => Job::Export,
            Request::Import { .. } => Job::Import,
            Request::Sample { .. } => Job::Sample,
            _ => Job::Other,
        }
    }
}
