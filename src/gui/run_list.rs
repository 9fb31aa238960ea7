//! The stored runs: a table, a menu of actions for each, and a comparison of two.

use std::path::Path;

use eframe::egui::{self, Button, Label, RichText, Ui};

use super::intent::{FileChoice, Intent};
use super::state::{Library, Overlay, RunDialog, Shared};
use super::target::IS_PAGE;
use super::widgets::button;
use super::{export, theme};
use crate::protocol::{Request, StorageUsage};
use crate::runs::{RunState, RunSummary};
use crate::text::bytes;
use table::GAP;

mod dialogs;
mod menu;
mod table;

/// Crashed runs offered for continuation at a time.
const MAX_OFFERS: usize = 3;

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { settings, shown, library, .. } = shared;
    let shown = shown.folder.as_deref();
    let mut intent = if IS_PAGE { storage(ui, library.usage) } else { folder(ui, &settings.runs) };
    intent = intent.or(models(ui, library));
    intent = intent.or(dialogs::show(ui, &mut library.dialog));
    if library.runs.is_empty() {
        let or_choose = if IS_PAGE { "" } else { ", or choose a folder with runs" };
        ui.weak(format!("No runs yet. Start one on the left{or_choose}."));
        return intent;
    }
    intent = intent.or(offers(ui, library));
    intent = intent.or(table::show(ui, library, shown));
    comparison(ui, library, shown);
    intent
}

fn models(ui: &mut Ui, library: &mut Library) -> Option<Intent> {
    let mut intent = None;
    for model in &library.models {
        let path = || model.path.clone();
        let shape = &model.architecture;
        let tokenizer = if model.has_tokenizer { "" } else { ", tokenizer unknown" };
        let text =
            format!("{}: {} blocks of {}{tokenizer}", model.name, shape.n_layer, shape.n_embd);
        ui.horizontal_wrapped(|ui| {
            ui.add(Label::new(&text).truncate());
            let button = |ui: &mut Ui, text: &str, help: &str| {
                ui.small_button(text).on_hover_text(help).clicked()
            };
            if button(ui, "Show", "Generate text with it, under Samples") {
                intent = Some(Intent::Show(path()));
            }
            if button(ui, "New run from it", "Set up a new run that starts with its weights") {
                intent = Some(Intent::Ask(Request::Fork { checkpoint: path() }));
            }
            if button(ui, "Export", "Download it as a zip") {
                intent = Some(export::hugging_face(path()));
            }
            if button(ui, "Delete...", "Delete it from this browser") {
                library.dialog = Some(RunDialog::Remove { path: path(), name: text.clone() });
            }
        });
    }
    if !library.models.is_empty() {
        ui.separator();
    }
    intent
}

fn offers(ui: &mut Ui, library: &mut Library) -> Option<Intent> {
    let Library { runs, dismissed, .. } = library;
    let id = |run: &RunSummary| (run.path.clone(), run.modified);
    let is_offered = |run: &&RunSummary| {
        let is_crashed = run.state == RunState::Crashed && run.has_checkpoint;
        is_crashed && !dismissed.contains(&id(run))
    };
    let offered: Vec<&RunSummary> = runs.iter().filter(is_offered).collect();
    let mut intent = None;
    for run in offered.iter().take(MAX_OFFERS) {
        let question = "was interrupted. Continue from its last checkpoint?";
        ui.colored_label(theme::warning(ui), format!("{} {question}", run.title()));
        if ui.add(Button::new(format!("Continue {}", run.title())).truncate()).clicked() {
            intent = Some(Intent::Continue(run.path.clone()));
        }
    }
    if !offered.is_empty() {
        let help = "Stop asking. The runs and their checkpoints stay in place.";
        if button(ui, "Not now", None, help) {
            dismissed.extend(offered.into_iter().map(id));
        }
        ui.separator();
    }
    intent
}

fn folder(ui: &mut Ui, folder: &Path) -> Option<Intent> {
    let path = folder.display().to_string();
    let left = |ui: &mut Ui| {
        ui.label("Folder");
        ui.add(Label::new(RichText::new(path).weak()).truncate());
    };
    // From right to left.
    let right = |ui: &mut Ui| {
        let help = "Generate text with a Hugging Face folder or a checkpoint";
        let model = button(ui, "Open model...", None, help).then_some(FileChoice::Model);
        let runs = button(ui, "Choose...", None, "Choose a folder with runs");
        runs.then_some(FileChoice::RunsFolder).or(model).map(Intent::Choose)
    };
    egui::Sides::new().shrink_left().truncate().show(ui, left, right).1
}

fn storage(ui: &mut Ui, usage: StorageUsage) -> Option<Intent> {
    let left = |ui: &mut Ui| {
        let label = ui.add(Label::new(RichText::new(usage_in_words(usage)).weak()).truncate());
        label.on_hover_text(
            "Stored on this computer, for this web address. Nothing is sent anywhere.",
        );
    };
    let right = |ui: &mut Ui| {
        let help = "Import a zip with a Hugging Face folder or a wgpt checkpoint";
        button(ui, "Import...", None, help).then_some(Intent::Choose(FileChoice::Model))
    };
    egui::Sides::new().shrink_left().truncate().show(ui, left, right).1
}

fn usage_in_words(usage: StorageUsage) -> String {
    let StorageUsage { quota, used, persisted } = usage;
    if quota == 0 {
        return "Not stored: runs are lost when this page closes".into();
    }
    let until = if persisted { "" } else { ", until it needs the space" };
    format!("Stored in this browser: {} of {}{until}", bytes(used), bytes(quota))
}

/// Draws the settings in which the shown run and the last overlay differ.
fn comparison(ui: &mut Ui, library: &Library, shown: Option<&Path>) {
    let (Some(a), Some(Overlay { run: b, .. })) = (shown, library.overlays.last()) else { return };
    ui.separator();
    ui.add(Label::new(RichText::new("Differences").strong()).truncate());
    match &library.difference {
        None => ui.weak("Reading their settings..."),
        Some(difference) if difference.is_empty() => ui.weak("Both have the same settings."),
        Some(difference) => {
            let column = (ui.available_width() - 2.0 * GAP) / 3.0;
            let grid = egui::Grid::new("difference").num_columns(3).striped(true);
            let grid = grid.min_col_width(column).max_col_width(column).spacing([GAP, 2.0]);
            let cell = |ui: &mut Ui, text: RichText| ui.add(Label::new(text).truncate());
            let area = egui::ScrollArea::vertical().id_salt("difference");
            let rows = |ui: &mut Ui| {
                for heading in ["setting", library.title(a), library.title(b)] {
                    cell(ui, RichText::new(heading).weak());
                }
                ui.end_row();
                for (key, a, b) in difference {
                    cell(ui, RichText::new(*key));
                    for value in [a, b] {
                        let text = if value.is_empty() { "none" } else { value };
                        cell(ui, RichText::new(text).monospace());
                    }
                    ui.end_row();
                }
            };
            area.auto_shrink([false, true]).show(ui, |ui| grid.show(ui, rows).response).inner
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_says_whether_runs_stay() {
        let usage =
            |quota, persisted| usage_in_words(StorageUsage { quota, used: 1 << 20, persisted });
        assert!(usage(0, false).starts_with("Not stored"));
        assert_eq!(usage(1 << 30, true), "Stored in this browser: 1.0 MiB of 1.00 GiB");
        assert!(usage(1 << 30, false).ends_with("until it needs the space"));
    }
}
