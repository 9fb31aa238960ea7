//! The menu of a run in the list.

use std::path::{Path, PathBuf};

use eframe::egui::Ui;

use crate::gui::export;
use crate::gui::intent::Intent;
use crate::gui::state::{Overlay, RunDialog};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::button;
use crate::runs::{RunState, RunSummary};

/// Draws the entries for `run`. `shown` is the run that is shown.
pub(super) fn items(
    ui: &mut Ui,
    run: &RunSummary,
    overlays: &[Overlay],
    shown: Option<&Path>,
    dialog: &mut Option<RunDialog>,
) -> Option<Intent> {
    let path = || run.path.clone();
    let no_checkpoint = (!run.has_checkpoint).then_some("It has no checkpoint.");
    let is_live = matches!(run.state, RunState::Running | RunState::Paused);
    let running = is_live.then_some("It is running: stop it first.");
    let entry = |ui: &mut Ui, text: &str, disabled: Option<&str>, help: &str, intent: Intent| {
        button(ui, text, disabled, help).then_some(intent)
    };
    let help = "Continue from its newest checkpoint";
    let resume = Intent::Continue(path());
    let finished = matches!(run.state, RunState::Finished);
    let finished =
        finished.then_some("It has finished: \"Train it further\" begins with its weights.");
    let mut intent = entry(ui, "Continue", running.or(finished).or(no_checkpoint), help, resume);
    let help = "Set up a new run that begins with its weights";
    let further = Intent::FineTune(path());
    intent = intent.or(entry(ui, "Train it further...", no_checkpoint, help, further));
    let is_overlaid = overlays.iter().any(|known| known.run == run.path);
    let is_shown = shown == Some(run.path.as_path());
    let (text, help) = if is_overlaid {
        ("Hide its curves", "Take its curves away again")
    } else {
        ("Compare", "Draw its curves with the curves of the shown run")
    };
    let disabled = match shown {
        None => Some("Show another run first."),
        Some(_) => is_shown.then_some("This run is shown."),
    };
    let overlay = Intent::Overlay(toggled(overlays, &run.path));
    intent = intent.or(entry(ui, text, disabled, help, overlay));
    ui.separator();
    if run.has_checkpoint {
        intent = intent.or(export::entries(ui, &run.path, true));
        ui.separator();
    }
    if button(ui, "Rename...", None, "Give it another name in this list, and a note") {
        let name = run.name.clone();
        *dialog = Some(RunDialog::Describe { run: path(), name, about: run.about.clone() });
        ui.close();
    }
    if !IS_PAGE {
        let open = Intent::OpenFolder(path());
        intent = intent.or(entry(ui, "Open folder", None, "Show its files", open));
    }
    let help = if IS_PAGE {
        "Delete it from this browser"
    } else {
        "Move it to the trash, with its checkpoints"
    };
    if button(ui, "Delete...", running, help) {
        *dialog = Some(RunDialog::Remove { path: path(), name: run.title().into() });
        ui.close();
    }
    if intent.is_some() {
        ui.close();
    }
    intent
}

/// Removes `run` from the overlaid runs if it is among them, else adds it.
pub(super) fn toggled(overlays: &[Overlay], run: &Path) -> Vec<PathBuf> {
    let others = overlays.iter().map(|known| known.run.clone()).filter(|known| known != run);
    let mut runs: Vec<PathBuf> = others.collect();
    if runs.len() == overlays.len() {
        runs.push(run.into());
    }
    runs
}
