//! The stored runs: a table, actions on the selected ones, and a comparison of two.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Button, Label, RichText};
use web_time::SystemTime;

use super::{Intent, platform, theme};
use crate::runs::{RunState, RunSummary};
use dialogs::Dialog;

mod actions;
mod dialogs;
mod table;

/// Crashed runs offered for continuation at a time.
const MAX_OFFERS: usize = 3;

/// Space between columns, in points.
const GAP: f32 = 8.0;

/// State of the panel between frames.
#[derive(Debug, Default)]
pub(super) struct RunsState {
    /// The folder with the runs.
    pub(super) folder: PathBuf,
    /// The selected runs, in the order of selection. Actions on one run apply to the last.
    pub(super) selected: Vec<PathBuf>,
    /// Runs whose curves are drawn with those of the displayed run, in the order of their colours.
    pub(super) overlaid: Vec<PathBuf>,
    /// Settings in which two selected runs differ, as key and both values; `None` until loaded.
    pub(super) difference: Option<Vec<(&'static str, String, String)>>,
    /// Crashed runs that are no longer offered, with their time of change: a new crash is offered
    /// again.
    dismissed: Vec<(PathBuf, SystemTime)>,
    /// The dialog that is open.
    dialog: Option<Dialog>,
}

/// Browser storage: its use, and the models stored besides the runs.
pub(super) struct BrowserStorage<'a> {
    /// The used and available space, as a sentence.
    pub usage: &'a str,
    /// Imported models, as folder and description.
    pub models: &'a [(PathBuf, String)],
}

/// Draws the panel. `shown` is the run that the other panels display.
pub(super) fn show(
    ui: &mut egui::Ui,
    runs: &[RunSummary],
    storage: &BrowserStorage<'_>,
    state: &mut RunsState,
    shown: Option<&Path>,
) -> Option<Intent> {
    let mut intent =
        if platform::IS_PAGE { usage(ui, storage.usage) } else { folder(ui, &state.folder) };
    intent = intent.or(models(ui, storage.models, state));
    intent = intent.or(dialogs::show(ui, &mut state.dialog));
    if runs.is_empty() {
        ui.weak(match platform::IS_PAGE {
            true => "No runs yet. Start one on the left.",
            false => "No runs yet. Start one on the left, or choose a folder with runs.",
        });
        return intent;
    }
    state.selected.retain(|path| runs.iter().any(|run| run.path == *path));
    intent = intent.or(offers(ui, runs, state));
    intent = intent.or(actions::show(ui, runs, state, shown));
    ui.separator();
    let before = state.selected.clone();
    intent = intent.or(table::show(ui, runs, state, shown));
    // After a change of selection, `difference` still belongs to the previous two.
    if before == state.selected {
        comparison(ui, runs, state);
    }
    intent
}

fn folder(ui: &mut egui::Ui, folder: &Path) -> Option<Intent> {
    let path = folder.display().to_string();
    let left = |ui: &mut egui::Ui| {
        ui.label("Folder");
        ui.add(Label::new(RichText::new(path).weak()).truncate());
    };
    // From right to left.
    let right = |ui: &mut egui::Ui| {
        let help = "Generate text with a Hugging Face GPT-2 folder or a checkpoint";
        let model = ui.button("Open model...").on_hover_text(help).clicked();
        let choose = ui.button("Choose...").on_hover_text("Choose a folder with runs").clicked();
        let model = model.then_some(Intent::ChooseModel);
        choose.then_some(Intent::ChooseRuns).or(model)
    };
    egui::Sides::new().shrink_left().truncate().show(ui, left, right).1
}

/// Draws the storage used in the browser, and the import button.
fn usage(ui: &mut egui::Ui, text: &str) -> Option<Intent> {
    let left = |ui: &mut egui::Ui| {
        let label = ui.add(Label::new(RichText::new(text).weak()).truncate());
        label.on_hover_text(
            "Stored on this computer, for this web address. Nothing is sent anywhere.",
        );
    };
    let right = |ui: &mut egui::Ui| {
        let help = "Import a zip with a Hugging Face GPT-2 folder or a wgpt checkpoint";
        ui.button("Import...").on_hover_text(help).clicked().then_some(Intent::ChooseRuns)
    };
    egui::Sides::new().shrink_left().truncate().show(ui, left, right).1
}

/// Draws the imported models with their actions.
fn models(
    ui: &mut egui::Ui,
    models: &[(PathBuf, String)],
    state: &mut RunsState,
) -> Option<Intent> {
    let mut intent = None;
    for (path, description) in models {
        ui.horizontal_wrapped(|ui| {
            ui.add(Label::new(description).truncate());
            let button = |ui: &mut egui::Ui, text: &str, help: &str| {
                ui.small_button(text).on_hover_text(help).clicked()
            };
            if button(ui, "Show", "Generate text with it, under Samples") {
                intent = Some(Intent::Show(path.clone()));
            }
            if button(ui, "New run from it", "Set up a new run that starts with its weights") {
                intent = Some(Intent::Fork(path.clone()));
            }
            if button(ui, "Export", "Download it as a zip") {
                intent = Some(Intent::Export(path.clone()));
            }
            if button(ui, "Delete...", "Delete it from this browser") {
                let name = description.clone();
                state.dialog = Some(Dialog::Remove { path: path.clone(), name });
            }
        });
    }
    if !models.is_empty() {
        ui.separator();
    }
    intent
}

/// Offers to continue crashed runs that have a checkpoint.
fn offers(ui: &mut egui::Ui, runs: &[RunSummary], state: &mut RunsState) -> Option<Intent> {
    let id = |run: &RunSummary| (run.path.clone(), run.modified);
    let is_crashed = |run: &&RunSummary| run.state == RunState::Crashed && run.has_checkpoint;
    let is_open = |run: &&RunSummary| !state.dismissed.contains(&id(run));
    let offered: Vec<&RunSummary> = runs.iter().filter(is_crashed).filter(is_open).collect();
    let mut intent = None;
    for run in offered.iter().take(MAX_OFFERS) {
        let question = "was interrupted. Continue from its last checkpoint?";
        ui.colored_label(theme::warning(ui), format!("{} {question}", run.title()));
        if ui.add(Button::new(format!("Continue {}", run.title())).truncate()).clicked() {
            intent = Some(Intent::Continue(run.path.clone()));
        }
    }
    if !offered.is_empty() {
        let hint = "Stop asking. The runs and their checkpoints stay in place.";
        if ui.button("Not now").on_hover_text(hint).clicked() {
            state.dismissed.extend(offered.into_iter().map(id));
        }
        ui.separator();
    }
    intent
}

/// Draws the settings in which the two selected runs differ.
fn comparison(ui: &mut egui::Ui, runs: &[RunSummary], state: &RunsState) {
    let [a, b] = &state.selected[..] else { return };
    let name = |path: &Path| {
        let run = runs.iter().find(|run| run.path == path);
        run.map_or_else(String::new, |run| run.title().to_string())
    };
    ui.separator();
    ui.add(Label::new(RichText::new("Differences").strong()).truncate());
    match &state.difference {
        None => ui.weak("Reading their settings..."),
        Some(difference) if difference.is_empty() => ui.weak("Both have the same settings."),
        Some(difference) => {
            let column = (ui.available_width() - 2.0 * GAP) / 3.0;
            let grid = egui::Grid::new("difference").num_columns(3).striped(true);
            let grid = grid.min_col_width(column).max_col_width(column).spacing([GAP, 2.0]);
            let cell = |ui: &mut egui::Ui, text: RichText| ui.add(Label::new(text).truncate());
            let area = egui::ScrollArea::vertical().id_salt("difference");
            let drawn = area.auto_shrink([false, true]).show(ui, |ui| {
                grid.show(ui, |ui| {
                    for heading in ["setting".to_string(), name(a), name(b)] {
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
                })
                .response
            });
            drawn.inner
        }
    };
}
