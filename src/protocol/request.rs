//! Requests to the service and its replies: plain serde data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    About, BenchmarkRow, DataInfo, DeviceInfo, Implementation, Introduction, KernelProgress,
    KernelTests, Message, Progress, RunSummary, ScoredToken, Search, StorageUsage, StoredData,
    StoredModel, Tail,
};
use crate::config::Config;
use crate::plan::{DeviceLine, DeviceProfile, OtherUse};
use crate::protocol::Failure;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Lists the devices: [`Reply::Devices`].
    Devices,
    /// Searches for devices in the process that answers, which a driver may crash: [`Reply::Listed`].
    /// `verbose` is the number of `-v`, for the messages of drivers.
    ListDevices { search: Search, verbose: u8 },
    /// Gathers what a bug report needs: [`Reply::Report`].
    Doctor { front_end: FrontEnd },
    /// Reads the limits of a device, a value of `--device`: [`Reply::Device`].
    Device { choice: String },
    /// Reads the beginning of a data set, a value of `--data`: [`Reply::Data`].
    DescribeData { spec: String },
    /// Tokenizes texts into a new folder below `folder`, as `model` does if there is one: [`Reply::Preparing`]
    /// while it runs, then [`Reply::Prepared`].
    Prepare { texts: Texts, folder: PathBuf, model: Option<PathBuf> },
    /// Fetches a model or text, like `wgpt get`, and tokenizes text into a new folder below `folder`:
    /// [`Reply::Fetching`] and [`Reply::Preparing`] meanwhile, then [`Reply::Prepared`] for text and
    /// [`Reply::Fetched`] for a model.
    Get { name: String, folder: PathBuf },
    /// Ends the fetching, which then fails. The same request continues it.
    StopGet,
    /// Lists the runs in a folder: [`Reply::Runs`].
    ListRuns { folder: PathBuf },
    /// Reads the recorded events of a run: [`Reply::Run`].
    ReadRun { run: PathBuf, view: RunView },
    /// Reads the configurations of two runs: [`Reply::Comparison`].
    Compare { runs: [PathBuf; 2] },
    /// Reads the configuration for a new run that begins with existing weights: [`Reply::Config`].
    Fork { checkpoint: PathBuf },
    /// Writes a checkpoint, a run or a model for other programs: [`Reply::Exported`]. A folder is filled if it
    /// is empty, else a new one below it; a page, which has no folders, gets a zip in the reply.
    Export { checkpoint: PathBuf, format: ExportFormat, folder: PathBuf },
    /// Writes the report page of a run into its folder: [`Reply::Reported`].
    Report { run: PathBuf },
    /// Unpacks a GPT-2 folder or a checkpoint into a new one below `folder`: [`Reply::Imported`].
    Import {
        folder: PathBuf,
        name: String,
        #[serde(skip)]
        zip: Vec<u8>,
    },
    /// Sets the display name and the note of a run: [`Reply::Described`].
    Describe { run: PathBuf, about: About },
    /// Moves a run to the trash of the system. In a browser, which has none, deletes a run, data or
    /// a model from its storage: [`Reply::Removed`].
    Remove { path: PathBuf },
    /// Checks if a run or a model was trained on conversations: [`Reply::Model`].
    DescribeModel { path: PathBuf },
    /// Generates or scores text: [`Reply::Sampled`], [`Reply::Answered`] or [`Reply::Scored`], several
    /// times.
    Sample(SampleRequest),
    /// Ends the text that is being generated, with a last reply.
    StopSample,
    /// Measures training steps on a device, a value of `--device`: [`Reply::Measured`].
    Measure { config: Box<Config>, device: String, implementation: Implementation },
    /// Reads what other programs leave of a device, a value of `--device`: [`Reply::DeviceRoom`] until the owner is gone.
    WatchDevice { choice: String },
    /// Compares kernels of a device with the CPU's: [`Reply::Kernels`] many times, unless the driver ends
    /// the process.
    TestKernels(KernelTests),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampleRequest {
    /// The checkpoint, run or model that generates it.
    pub path: PathBuf,
    pub input: SampleInput,
    /// The most tokens to generate.
    pub tokens: u32,
    /// The divisor of the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Draws from this many of the most likely tokens; 0 draws from all.
    pub top_k: u32,
    pub seed: u64,
    /// The value of `--device`. A browser has one device.
    pub device: String,
    /// True to get the probabilities of the tokens that follow a prompt.
    #[serde(default)]
    pub probabilities: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SampleInput {
    Prompt(String),
    /// A conversation. The model answers its last message.
    Conversation(Vec<Message>),
    /// Text to score. Nothing is generated.
    Text(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// What a bug report needs, as text.
    Report {
        text: String,
    },
    /// The devices of this machine. In a browser the one device, once it is open.
    Devices {
        devices: Vec<DeviceLine>,
    },
    /// The devices that a search has found.
    Listed {
        devices: Vec<DeviceInfo>,
    },
    /// The memory and the limits of a device.
    Device {
        device: DeviceProfile,
    },
    /// A device's total and free bytes of memory, and its use by other programs, where known.
    DeviceRoom {
        memory: Option<[u64; 2]>,
        others: Option<OtherUse>,
    },
    /// A data set, or why it cannot be read.
    Data {
        spec: String,
        data: Result<DataInfo, String>,
    },
    /// The share of a new data set that is tokenized, from 0 to 1.
    Preparing {
        name: String,
        share: f32,
    },
    /// The bytes of `name` that have arrived, and their total if the server reports it.
    Fetching {
        name: String,
        done: u64,
        all: Option<u64>,
    },
    /// A model that was fetched, and its folder.
    Fetched {
        name: String,
        folder: PathBuf,
    },
    /// A new data set for `--data`, and warnings about skipped files and the splits.
    Prepared {
        spec: String,
        warnings: Vec<String>,
    },
    /// The runs in a folder, the newest first.
    Runs {
        folder: PathBuf,
        runs: Vec<RunSummary>,
    },
    /// Data and models in the browser's storage. Unasked, after each change.
    Stored {
        data: Vec<StoredData>,
        models: Vec<StoredModel>,
        usage: StorageUsage,
    },
    /// The recorded progress of a run; `tail` reads the events after that.
    Run {
        run: PathBuf,
        view: RunView,
        progress: Box<Progress>,
        tail: Tail,
    },
    /// The configurations of two runs.
    Comparison {
        runs: [PathBuf; 2],
        configs: Box<[Config; 2]>,
    },
    /// The configuration for a new run that begins with existing weights.
    Config {
        checkpoint: PathBuf,
        config: Box<Config>,
    },
    /// A run has another name or note.
    Described,
    /// A run or a model that no longer exists.
    Removed {
        path: PathBuf,
    },
    /// An exported model: its folder, or a name for the zip. `next` has the commands that follow, a line each.
    Exported {
        to: PathBuf,
        next: String,
        #[serde(skip)]
        #[cfg_attr(
            not(target_arch = "wasm32"),
            allow(dead_code, reason = "only a page requests a zip")
        )]
        zip: Vec<u8>,
    },
    /// A page that was written about a run.
    Reported {
        page: PathBuf,
    },
    /// A model that was stored.
    Imported {
        model: StoredModel,
    },
    /// True if a run or a model was trained on conversations, and what it knows then.
    Model {
        path: PathBuf,
        has_chat: bool,
        #[serde(default)]
        introduction: Introduction,
    },
    /// All of the text so far that a model generates, without the prompt.
    /// `tokens` has the tokens since the reply before, if their probabilities were requested.
    Sampled {
        prompt: String,
        text: String,
        done: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<ScoredToken>,
    },
    /// The tokens that were scored since the reply before.
    Scored {
        tokens: Vec<ScoredToken>,
        done: bool,
    },
    /// All of an answer so far. At its end, `forgotten` is the number of the oldest messages that
    /// the context of the model had no room for, besides the system prompt.
    Answered {
        text: String,
        forgotten: usize,
        done: bool,
    },
    /// The speed of training steps.
    Measured {
        row: Box<BenchmarkRow>,
    },
    Kernels {
        progress: KernelProgress,
    },
    /// Something that prevents training, or makes it slow. Unasked.
    Obstacle(Obstacle),
    /// A request failed: what failed and where, and what to do next. The hint is empty where the
    /// text says it.
    Failed {
        job: RequestKind,
        text: String,
        hint: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Texts {
    /// Files and folders.
    Files(Vec<PathBuf>),
    /// A text without a file. `<|endoftext|>` separates documents.
    Text { name: String, text: String },
}

/// The place of a run in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunView {
    /// The run that the window shows.
    Main,
    /// Curves next to another run's.
    Overlay,
}

/// A format that models are exported in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExportFormat {
    /// A folder for transformers.
    HuggingFace,
    /// A file for llama.cpp.
    Gguf,
    /// A folder with such a file, and its chat template for Ollama.
    Ollama,
    /// A web page that generates text.
    Page,
}

/// The kind of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RequestKind {
    Prepare,
    Get,
    Export,
    Import,
    Sample,
    Measure,
    Other,
}

/// Something that prevents training, or makes it slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Obstacle {
    /// A later obstacle of the same topic replaces this one.
    pub topic: Topic,
    pub text: String,
    pub hint: String,
}

impl Obstacle {
    pub fn new(topic: Topic, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { topic, text: text.into(), hint: hint.into() }
    }

    /// Returns true if training works all the same.
    pub fn can_train(&self) -> bool {
        self.topic != Topic::Device
    }
}

/// The part of the browser or the machine that an [`Obstacle`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    /// WebGPU, its adapter and its limits.
    Device,
    /// A driver that crashes while it lists devices.
    Driver,
    /// An adapter that computes in software.
    SoftwareAdapter,
    /// Storage that loses everything when the page closes.
    Storage,
    /// Storage that is too small for the run.
    Quota,
}

/// The result of trying something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FeatureCheck {
    pub works: bool,
    /// The thing that works, or the reason why it does not.
    pub detail: String,
}

/// The part of the report that only a front end can give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FrontEnd {
    /// The display; `None` in a build without the window.
    pub display: Option<FeatureCheck>,
    pub runs: PathBuf,
    pub settings: Option<PathBuf>,
}

impl Request {
    /// The kind of this request, for [`Reply::Failed`].
    pub fn job(&self) -> RequestKind {
        match self {
            Request::Prepare { .. } => RequestKind::Prepare,
            Request::Get { .. } => RequestKind::Get,
            Request::Export { .. } => RequestKind::Export,
            Request::Report { .. } => RequestKind::Export,
            Request::Import { .. } => RequestKind::Import,
            Request::Sample(_) | Request::StopSample => RequestKind::Sample,
            Request::Measure { .. } => RequestKind::Measure,
            _ => RequestKind::Other,
        }
    }
}

impl Reply {
    pub fn failed(job: RequestKind, Failure { text, hint, .. }: Failure) -> Self {
        Reply::Failed { job, text, hint }
    }
}
