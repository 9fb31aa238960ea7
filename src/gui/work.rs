//! What is found out elsewhere, so that no frame waits for it.

use std::path::PathBuf;

use super::fit::Card;
use super::form::DataInfo;
use super::host;
use crate::config::Config;
use crate::data::TokenizerKind;
use crate::gpu::DeviceInfo;
use crate::progress::Progress;
use crate::run_index::RunSummary;

/// An answer to what [`Work`](host::Work) was asked.
pub(super) enum Found {
    /// The devices there are.
    Devices(Vec<DeviceInfo>),
    /// What the chosen device allows.
    Card(Card),
    /// What the data at this place is.
    Data { spec: String, info: Result<DataInfo, String> },
    /// How far the preparation of these texts is, from 0 to 1.
    Preparing { what: String, share: f32 },
    /// What `data` is to be for texts that were prepared.
    Prepared(Result<String, String>),
    /// The runs there are, and the folder that was looked into, where there is more than one.
    Runs { folder: Option<PathBuf>, runs: Vec<RunSummary> },
    /// All that a run has said, to show it, and what gives the events after that.
    Run { path: PathBuf, progress: Box<Progress>, tail: host::Tail },
    /// The same, to draw it beside another.
    Overlay { path: PathBuf, progress: Box<Progress> },
    /// Settings in which two runs differ.
    Difference(Vec<(&'static str, String, String)>),
    /// The configuration of a run, to begin another from its checkpoint.
    Fork { checkpoint: PathBuf, config: Box<Config> },
    /// What was picked in a dialog of the system.
    Chosen(Vec<host::Input>),
    /// A folder with runs was picked.
    Folder(PathBuf),
    /// Something that is worth a line in the log: as it should be, or not.
    Said(Result<String, String>),
    /// What a model writes while nothing trains: all of it so far, and whether that is all.
    #[cfg(target_arch = "wasm32")]
    Sampled { prompt: String, text: String, done: bool },
}

/// What was dropped, chosen or named, by what it is.
pub(super) enum Given {
    /// A run, to be shown.
    Run(PathBuf),
    /// Data that is ready to be trained on.
    Data(PathBuf),
    /// Texts, to be prepared.
    Texts(Vec<host::Input>),
}

/// Below this size a text is small enough that characters teach more than words.
const CHARACTERS: u64 = 5 << 20;

/// How texts of so many bytes are best cut into tokens.
pub(super) fn tokenizer_for(bytes: u64) -> TokenizerKind {
    if bytes < CHARACTERS { TokenizerKind::Char } else { TokenizerKind::default() }
}
