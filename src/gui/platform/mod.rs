//! Dialogs, dropped files, URLs and screenshots, on the desktop and in a browser. Both platforms
//! have the same functions.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use eframe::egui;

use super::Intent;
use crate::protocol::{Destination, Request, Texts};
use crate::{disk, runs};

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod desktop;

#[cfg(target_arch = "wasm32")]
use browser as system;
#[cfg(not(target_arch = "wasm32"))]
use desktop as system;

pub use system::*;

pub(super) const IS_PAGE: bool = cfg!(target_arch = "wasm32");

/// Takes intents for the next frame, from any thread.
#[derive(Clone)]
pub(super) struct Outbox {
    pub ctx: egui::Context,
    pub sender: Sender<Intent>,
}

impl Outbox {
    fn send(&self, intent: Intent) {
        // The window may have closed meanwhile.
        let _ = self.sender.send(intent);
        self.ctx.request_repaint();
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Texts,
    /// A folder with tokens or texts. On a page, the zip of a model.
    DataFolder,
    /// A folder with runs. On a page, the zip of a model.
    RunsFolder,
    /// The folder of a model. On a page, its zip.
    Model,
    /// A folder for this checkpoint. On a page, a zip among the browser's downloads.
    Export(PathBuf, ExportFormat),
}

/// The form in which a model is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExportFormat {
    HuggingFace,
    Gguf,
    Page,
}

impl Choice {
    pub fn title(&self) -> &'static str {
        match self {
            Choice::Texts | Choice::DataFolder => "Data to train on",
            Choice::RunsFolder => "Folder with runs",
            Choice::Model => "Folder of a model",
            Choice::Export(_, ExportFormat::Gguf) => "Folder for the file",
            Choice::Export(..) => "Empty folder for the model",
        }
    }
}

/// Settings from environment variables, or from the page's URL.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Overrides {
    pub preset: Option<String>,
    /// The device as `--device` takes it.
    pub device: Option<String>,
    pub settings: Vec<(String, String)>,
    /// True if they replace everything that was typed before.
    pub replace_all: bool,
    /// Errors of the parts that could not be read.
    pub problems: Vec<String>,
}

/// Returns the intent of a dialog in which these paths were chosen; `None` if it was cancelled.
pub(super) fn chosen(choice: Choice, paths: Vec<PathBuf>) -> Option<Intent> {
    let first = paths.first()?.clone();
    match choice {
        Choice::Texts | Choice::DataFolder => recognize(paths),
        Choice::RunsFolder => Some(Intent::ListRuns(first)),
        Choice::Model if is_run_or_model(&first) => Some(Intent::Show(first)),
        Choice::Model => {
            let text =
                format!("{} has no model: no model.safetensors, no ckpt.pt", first.display());
            Some(Intent::Unreadable(text))
        }
        Choice::Export(checkpoint, format) => {
            let to = match format {
                ExportFormat::HuggingFace => Destination::Folder,
                ExportFormat::Gguf => Destination::Gguf,
                ExportFormat::Page => Destination::Page,
            };
            Some(Intent::Ask(Request::Export { checkpoint, to: to(first) }))
        }
    }
}

/// Recognizes paths that were dropped, chosen or named: a run or a model, a folder with tokens, else
/// texts.
pub(super) fn recognize(paths: Vec<PathBuf>) -> Option<Intent> {
    let first = paths.first()?;
    // Tokens of wgpt, nanoGPT or llm.c.
    let is_tokens = |path: PathBuf| path.extension().is_some_and(|extension| extension == "bin");
    let has_tokens = || {
        let mut entries = disk::read_dir(first).into_iter().flatten().flatten();
        entries.any(|entry| is_tokens(entry.path()))
    };
    Some(if is_run_or_model(first) {
        Intent::Show(first.clone())
    } else if has_tokens() {
        Intent::UseData(first.clone())
    } else {
        Intent::Prepare(Texts::Files(paths))
    })
}

/// Returns true if a folder holds a run, a checkpoint, a Hugging Face model or one of nanoGPT.
fn is_run_or_model(folder: &Path) -> bool {
    let is_model = |name: &&str| disk::is_file(&folder.join(name));
    runs::is_run(folder) || ["model.safetensors", "ckpt.pt"].iter().any(is_model)
}
