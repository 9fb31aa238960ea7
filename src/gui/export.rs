//! The menu of everything that a run or a model can be exported as.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Ui};

use super::intent::{FileChoice, Intent};
use super::target::IS_PAGE;
use super::widgets::button;
use crate::protocol::{ExportFormat, Progress, Request, RunPhase};

const FORMATS: [(&str, ExportFormat, &str); 4] = [
    (
        "Hugging Face folder...",
        ExportFormat::HuggingFace,
        "Export for transformers and for training in other programs (Ctrl+E)",
    ),
    ("Ollama and LM Studio...", ExportFormat::Ollama, "Export a GGUF file and Ollama's Modelfile"),
    ("GGUF file...", ExportFormat::Gguf, "Export for llama.cpp and programs that use it"),
    (
        "Web page...",
        ExportFormat::Page,
        "Export a page on which visitors prompt the model on their own GPU",
    ),
];

const ZIP_HELP: &str = "Download it as a zip with a Hugging Face folder";

/// Returns why the shown run cannot be exported, tried or trained further. A model without a run is its own
/// checkpoint.
pub(super) fn no_checkpoint(progress: &Progress) -> Option<&'static str> {
    let is_missing = progress.state != RunPhase::Idle && progress.checkpoints.is_empty();
    is_missing.then_some("It has no checkpoint.")
}

/// Draws the button of the menu for the shown run, whose best checkpoint is exported, or for a model without a
/// run. A page has one format and no menu.
pub(super) fn menu(ui: &mut Ui, progress: &Progress) -> Option<Intent> {
    let path = progress.run.as_deref()?;
    let disabled = no_checkpoint(progress);
    if IS_PAGE {
        return button(ui, "Export", disabled, ZIP_HELP).then(|| hugging_face(path.into()));
    }
    let response = ui.add_enabled(disabled.is_none(), egui::Button::new("Export"));
    let response = response.on_disabled_hover_text(disabled.unwrap_or_default());
    let is_run = progress.state != RunPhase::Idle;
    let shown = egui::Popup::menu(&response).show(|ui| entries(ui, path, is_run));
    shown?.inner
}

/// Draws the entries of the menu.
pub(super) fn entries(ui: &mut Ui, path: &Path, is_run: bool) -> Option<Intent> {
    if IS_PAGE {
        return button(ui, "Export", None, ZIP_HELP).then(|| hugging_face(path.into()));
    }
    let mut intent = None;
    for (text, format, help) in FORMATS {
        if ui.button(text).on_hover_text(help).clicked() {
            intent = Some(Intent::Choose(FileChoice::Export(path.into(), format)));
        }
    }
    if is_run
        && ui.button("Report").on_hover_text("A page with curves, samples and settings").clicked()
    {
        intent = Some(Intent::Ask(Request::Report { run: path.into() }));
    }
    intent
}

/// Returns the intent of an export as a Hugging Face folder.
pub(super) fn hugging_face(path: PathBuf) -> Intent {
    Intent::Choose(FileChoice::Export(path, ExportFormat::HuggingFace))
}
