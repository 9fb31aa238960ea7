//! What the page and the worker that trains say to each other: JSON texts, beside some of them bytes.
//!
//! A message is an array: the JSON text, and behind it a `Uint8Array` where bytes go with it. The
//! worker speaks first: [`Reply::Ready`] or [`Reply::Obstacle`]. Paths are those of its storage:
//! `runs/NAME`, `data/NAME` and `models/NAME`.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::data::TokenizerKind;
use crate::model::Architecture;
use crate::plan::{Limits, Plan};
use crate::protocol::{Command, DeviceLine, Event};
use crate::run_index::RunSummary;

/// Where runs lie.
pub const RUNS: &str = "runs";
/// Where data lies that was prepared here.
pub const DATA: &str = "data";
/// Where models lie that came from elsewhere.
pub const MODELS: &str = "models";
/// The data that is always there.
pub const STORIES: &str = "builtin:stories";

/// What a run may take of a device where nothing else is asked, in bytes: no browser says what the
/// device has.
pub const DEFAULT_BUDGET: u64 = 1 << 30;

/// What the page asks of the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Turns a text into `data/NAME`: [`Reply::Preparing`], then [`Reply::Prepared`].
    Prepare {
        /// The name; what is there of that name is replaced.
        name: String,
        /// The text. Documents may be parted by `<|endoftext|>`.
        text: String,
        /// How it is cut into tokens.
        tokenizer: TokenizerKind,
    },
    /// Trains: [`Reply::Event`] many times, then [`Reply::Ended`].
    Start {
        /// The run's folder, `runs/NAME`.
        run: String,
        /// What is meant. `data` is `builtin:stories` or `data/NAME`, `init_from` may be a model or
        /// a run, a budget of `auto` is [`DEFAULT_BUDGET`]. `None` continues a run as it was set.
        config: Option<Box<Config>>,
        /// Whether to continue from the run's newest checkpoint.
        resume: bool,
        /// How to cut steps at the most, after a failure for want of memory.
        #[serde(default)]
        less: Option<Plan>,
    },
    /// Tells the run that is going on.
    Tell {
        /// What.
        command: Command,
    },
    /// Lists everything that is stored: [`Reply::Stored`].
    List,
    /// All that a run has said: [`Reply::Run`].
    Show {
        /// The run's folder.
        run: String,
    },
    /// Removes a run, data or a model: [`Reply::Stored`].
    Remove {
        /// Its folder.
        path: String,
    },
    /// Makes a zip of the best checkpoint of a run, or of a model: [`Reply::Exported`], with bytes.
    Export {
        /// Its folder.
        path: String,
    },
    /// Keeps the model in a zip, which goes with this message as bytes: a Hugging Face GPT-2 folder
    /// or a checkpoint. [`Reply::Imported`].
    Import {
        /// The name that it gets below `models/`.
        name: String,
    },
    /// Keeps an event of a run whose worker has ended, such as why another one begins.
    Record {
        /// The run's folder.
        run: String,
        /// What happened.
        event: Box<Event>,
    },
    /// Lets a model write while nothing trains: [`Reply::Sampled`] many times.
    Sample {
        /// A run, data or model folder.
        path: String,
        /// What to continue.
        prompt: String,
        /// Tokens to write.
        tokens: u32,
        /// What the logits are divided by; 0 takes the most likely token.
        temperature: f64,
        /// Only this many of the most likely tokens are drawn from; 0 = all.
        top_k: usize,
        /// Seed of the draws.
        seed: u64,
    },
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The device is there. Unasked, first, and again after a worker was replaced.
    Ready {
        /// The device.
        device: DeviceLine,
        /// What it allows; the budget is the run's to set.
        limits: Limits,
        /// Whether it computes in software, which is slow.
        software: bool,
        /// The storage.
        storage: Storage,
    },
    /// There is something that keeps training from working, or from working well.
    Obstacle {
        /// What it is.
        kind: ObstacleKind,
        /// What, for people.
        text: String,
        /// What to do.
        hint: String,
    },
    /// How far a text is turned into tokens, from 0 to 1.
    Preparing {
        /// The share that is done.
        share: f64,
    },
    /// Data is stored.
    Prepared {
        /// It.
        data: DataInfo,
    },
    /// Everything that is stored, the newest run first, the built-in data first.
    Stored {
        /// Runs; their paths are `runs/NAME`.
        runs: Vec<RunSummary>,
        /// Data.
        data: Vec<DataInfo>,
        /// Models that came from elsewhere.
        models: Vec<ModelInfo>,
        /// The storage.
        storage: Storage,
    },
    /// A run that is going on says something.
    Event {
        /// The run's folder.
        run: String,
        /// What it says.
        event: Box<Event>,
    },
    /// All that a run has said.
    Run {
        /// The run's folder.
        run: String,
        /// Its configuration, if this version can read it.
        config: Option<Box<Config>>,
        /// What it said.
        events: Vec<Event>,
    },
    /// A run does not go on. Its last event says why.
    Ended {
        /// The run's folder.
        run: String,
    },
    /// A zip is made; its bytes go with this message.
    Exported {
        /// What it was made of.
        path: String,
        /// A name for the file.
        file: String,
    },
    /// A model is stored.
    Imported {
        /// It.
        model: ModelInfo,
    },
    /// What a model wrote so far.
    Sampled {
        /// The model's folder.
        path: String,
        /// All of it, without the prompt.
        text: String,
        /// Whether that is all.
        done: bool,
    },
    /// The worker is there: about once a second while nothing holds it up.
    Pulse,
    /// What was asked for did not work.
    Failed {
        /// What failed, and where.
        text: String,
        /// What to do; empty where the text says it.
        hint: String,
    },
}

/// What is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObstacleKind {
    /// The page did not come by HTTPS or from this machine: browsers give such pages no device.
    InsecureOrigin,
    /// The browser has no WebGPU.
    NoWebGpu,
    /// It has, but gives no adapter.
    NoAdapter,
    /// The adapter computes in software. Training works, slowly.
    SoftwareAdapter,
    /// The adapter allows less than the kernels need.
    LimitsTooSmall,
    /// The device ran out of memory, again and again.
    OutOfMemory,
    /// The device was lost, again and again.
    DeviceLost,
    /// The browser stores nothing for this page, or another tab uses the storage. Training works,
    /// nothing is kept.
    NoStorage,
    /// The browser gives this page no more room.
    Quota,
}

impl ObstacleKind {
    /// Whether training works all the same.
    pub fn is_passable(self) -> bool {
        matches!(
            self,
            ObstacleKind::SoftwareAdapter | ObstacleKind::NoStorage | ObstacleKind::Quota
        )
    }
}

/// The room that the browser gives this page, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// All of it; 0 where nothing is kept.
    pub quota: u64,
    /// What is taken.
    pub used: u64,
    /// Whether the browser asks before it clears it.
    pub persisted: bool,
}

/// Data to train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataInfo {
    /// What `data` of a configuration is to be: `builtin:stories` or `data/NAME`.
    pub spec: String,
    /// A name for people.
    pub name: String,
    /// How it is cut into tokens.
    pub tokenizer: TokenizerKind,
    /// Tokens in the vocabulary.
    pub vocab_size: u32,
    /// Tokens to train on.
    pub train_tokens: u64,
    /// Tokens to measure with.
    pub val_tokens: u64,
}

/// A model that came from elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its folder, `models/NAME`.
    pub path: String,
    /// A name for people.
    pub name: String,
    /// Its shapes. A run that begins with it needs the same.
    pub architecture: Architecture,
    /// Whether it is known which tokens it uses, so that it can be sampled.
    pub has_tokenizer: bool,
}

/// Where the worker's script lies beside the page, which names it in an attribute of `<body>`.
pub const WORKER_ATTRIBUTE: &str = "data-worker";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_json_that_reads_back() {
        let start = Ask::Start {
            run: "runs/first".into(),
            config: Some(Box::default()),
            resume: false,
            less: None,
        };
        let tell = Ask::Tell { command: Command::Sample { prompt: "Once".into() } };
        for ask in [start, tell, Ask::List] {
            let text = serde_json::to_string(&ask).unwrap();
            assert_eq!(serde_json::from_str::<Ask>(&text).unwrap(), ask, "{text}");
        }
        let event = Event::Eval { iter: 250, train_loss: 2.5, val_loss: 2.25 };
        let reply = Reply::Event { run: "runs/first".into(), event: Box::new(event) };
        let text = serde_json::to_string(&reply).unwrap();
        assert!(text.starts_with(r#"{"reply":"event","run":"runs/first""#), "{text}");
        assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), reply);
    }
}
