//! Dialogs, dropped files, URLs and screenshots, on the desktop and in a browser. Both platforms
//! have the same functions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eframe::egui;

use super::form::Form;
use crate::protocol::{Destination, Progress, Texts};
use crate::{disk, runs};

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod desktop;

#[cfg(target_arch = "wasm32")]
pub(super) use browser::{
    AUTO_BUDGET_HINT, IS_PAGE, Platform, RUNS, TEXTS_HINT, drop_hint, home, open_front_end,
    overrides,
};
#[cfg(not(target_arch = "wasm32"))]
pub(super) use desktop::{
    AUTO_BUDGET_HINT, IS_PAGE, Platform, RUNS, TEXTS_HINT, drop_hint, home, open_front_end,
    overrides,
};

/// Opening the window.
pub mod entry {
    #[cfg(target_arch = "wasm32")]
    pub use super::browser::open;
    #[cfg(windows)]
    pub(crate) use super::desktop::explorer;
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) use super::desktop::front_end;
    #[cfg(not(target_arch = "wasm32"))]
    pub use super::desktop::{GuiError, open};
}

/// Input to the window besides keys and clicks, from a person or the system.
#[allow(dead_code, reason = "each platform gives some of these")]
pub(super) enum Input {
    /// A run or a model to show.
    Run(PathBuf),
    /// A folder with tokens.
    Data(PathBuf),
    /// A text that is being read.
    Reading(String),
    /// Texts to tokenize.
    Texts(Texts),
    /// A model to store.
    Model {
        /// The wanted name.
        name: String,
        /// Its folder as a zip.
        zip: Vec<u8>,
    },
    /// A folder with runs.
    RunsFolder(PathBuf),
    /// The system has no dialog for this.
    NoDialog(Choice),
    /// A checkpoint to export.
    Export {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The destination.
        to: Destination,
    },
    /// Settings from the page's URL.
    Overrides(Overrides),
    /// A file could not be read, for this reason.
    Unreadable(String),
    /// The window is about to close without a question.
    Close,
}

/// The subject of a dialog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Texts to tokenize.
    Texts,
    /// A folder with tokens or texts. On a page, the zip of a model.
    DataFolder,
    /// A folder with runs. On a page, the zip of a model.
    RunsFolder,
    /// The folder of a model. On a page, its zip.
    Model,
    /// A folder for this checkpoint. On a page, a zip among the browser's downloads.
    Export(PathBuf),
}

impl Choice {
    /// Returns the title of the dialog.
    pub fn title(&self) -> &'static str {
        match self {
            Choice::Texts | Choice::DataFolder => "Data to train on",
            Choice::RunsFolder => "Folder with runs",
            Choice::Model => "Folder of a model",
            Choice::Export(_) => "Empty folder for the model",
        }
    }
}

/// Settings from environment variables, or from the page's URL.
#[derive(Default)]
pub(super) struct Overrides {
    /// The preset.
    pub preset: Option<String>,
    /// The device as `--device` takes it.
    pub device: Option<String>,
    /// Settings by their keys.
    pub settings: Vec<(String, String)>,
    /// True if they replace everything that was typed before.
    pub replace_all: bool,
    /// Errors of the parts that could not be read.
    pub problems: Vec<String>,
}

/// The state of the window that a platform shows elsewhere, once a frame.
#[allow(dead_code, reason = "each platform reports some of it")]
pub(super) struct Frame<'a> {
    pub ctx: &'a egui::Context,
    pub form: &'a Form,
    pub progress: &'a Progress,
    /// The least time between two reports.
    pub pace: Duration,
}

/// Returns the input of a dialog in which these paths were chosen; `None` if it was cancelled.
pub(super) fn chosen(choice: Choice, paths: Vec<PathBuf>) -> Option<Input> {
    let first = paths.first()?.clone();
    match choice {
        Choice::Texts | Choice::DataFolder => recognize(paths),
        Choice::RunsFolder => Some(Input::RunsFolder(first)),
        Choice::Model if is_run_or_model(&first) => Some(Input::Run(first)),
        Choice::Model => {
            let text =
                format!("{} has no model: no model.safetensors, no ckpt.pt", first.display());
            Some(Input::Unreadable(text))
        }
        Choice::Export(checkpoint) => {
            Some(Input::Export { checkpoint, to: Destination::Folder(first) })
        }
    }
}

/// Recognizes paths that were dropped, chosen or named: a run or a model, a folder with tokens, else
/// texts.
pub(super) fn recognize(paths: Vec<PathBuf>) -> Option<Input> {
    let first = paths.first()?;
    // Tokens of wgpt, nanoGPT or llm.c.
    let is_tokens = |path: PathBuf| path.extension().is_some_and(|extension| extension == "bin");
    let has_tokens = || {
        let mut entries = disk::read_dir(first).into_iter().flatten().flatten();
        entries.any(|entry| is_tokens(entry.path()))
    };
    Some(if is_run_or_model(first) {
        Input::Run(first.clone())
    } else if has_tokens() {
        Input::Data(first.clone())
    } else {
        Input::Texts(Texts::Files(paths))
    })
}

/// Returns true if a folder holds a run, a checkpoint, a Hugging Face model or one of nanoGPT.
fn is_run_or_model(folder: &Path) -> bool {
    let is_model = |name: &&str| disk::is_file(&folder.join(name));
    runs::is_run(folder) || ["model.safetensors", "ckpt.pt"].iter().any(is_model)
}
