//! The buttons for the selected runs.

use std::path::{Path, PathBuf};

use eframe::egui::{Button, Ui};

use super::{Dialog, Library};
use crate::gui::Intent;
use crate::gui::charts::Overlay;
use crate::gui::platform::{Choice, IS_PAGE};
use crate::gui::widgets::{action, button};
use crate::protocol::Request;
use crate::runs::RunState;

/// Draws the buttons: Overlay for all runs that are selected besides the shown one, the others for
/// the run that was selected last.
pub(super) fn show(ui: &mut Ui, library: &mut Library, shown: Option<&Path>) -> Option<Intent> {
    let Library { runs, selected, overlays, dialog, .. } = library;
    let run = selected.last().and_then(|path| runs.iter().find(|run| run.path == *path));
    let none = run.is_none().then_some("Select a run first.");
    let no_checkpoint = run.filter(|run| !run.has_checkpoint).map(|_| "It has no checkpoint yet.");
    let is_live = run.is_some_and(|run| matches!(run.state, RunState::Running | RunState::Paused));
    let running = is_live.then_some("It is running: stop it first.");
    let with = |ui: &mut Ui, text, disabled, help, intent: fn(PathBuf) -> Intent| {
        let is_clicked = button(ui, text, disabled, help);
        run.filter(|_| is_clicked).map(|run| intent(run.path.clone()))
    };
    ui.horizontal_wrapped(|ui| {
        let show = with(ui, "Show", none, "Show its curves, samples and log", Intent::Show);
        let disabled = none.or(running).or(no_checkpoint);
        let help = "Continue from its newest checkpoint";
        let resume = with(ui, "Continue", disabled, help, Intent::Continue);
        let help = "Set up a new run with its settings that starts with its weights";
        let fork = with(ui, "New run from it", none.or(no_checkpoint), help, |checkpoint| {
            Intent::Ask(Request::Fork { checkpoint })
        });
        let overlay = overlay(ui, selected, overlays, shown);
        if button(ui, "Rename...", none, "Give it another name in this list, and a note") {
            *dialog = run.map(Dialog::describe);
        }
        let files = if IS_PAGE {
            let help = "Download its best checkpoint as a zip with a Hugging Face folder";
            let export = |run| Intent::Choose(Choice::Export(run));
            with(ui, "Export", none.or(no_checkpoint), help, export)
        } else {
            with(ui, "Open folder", none, "Show its files", Intent::OpenFolder)
        };
        let [desktop, page] =
            ["Move it to the trash, with its checkpoints", "Delete it from this browser"];
        if button(ui, "Delete...", none.or(running), if IS_PAGE { page } else { desktop }) {
            *dialog = run.map(Dialog::remove);
        }
        show.or(resume).or(fork).or(overlay).or(files)
    })
    .inner
}

fn overlay(
    ui: &mut Ui,
    selected: &[PathBuf],
    overlays: &[Overlay],
    shown: Option<&Path>,
) -> Option<Intent> {
    let overlaid: Vec<PathBuf> = overlays.iter().map(|known| known.run.clone()).collect();
    // None if no run is shown.
    let is_other = |run: &&PathBuf| shown.is_some_and(|shown| *run != shown);
    let others: Vec<PathBuf> = selected.iter().filter(is_other).cloned().collect();
    let is_on = !others.is_empty() && others.iter().all(|run| overlaid.contains(run));
    let help =
        "Draw the curves of the selected runs with the curves of the shown run, or hide them";
    let reason = match shown {
        None => "Show a run first, then select others (Ctrl+click).",
        Some(_) => "Select runs besides the shown one (Ctrl+click).",
    };
    let disabled = others.is_empty().then_some(reason);
    let is_clicked = action(ui, Button::new("Overlay").selected(is_on), disabled, help);
    is_clicked.then(|| Intent::Overlay(toggled(&overlaid, others)))
}

/// Removes `runs` from the overlaid ones if all of them are, else adds them.
fn toggled(overlaid: &[PathBuf], runs: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut kept: Vec<PathBuf> =
        overlaid.iter().filter(|run| !runs.contains(run)).cloned().collect();
    if !runs.iter().all(|run| overlaid.contains(run)) {
        kept.extend(runs);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_adds_runs_or_removes_them_all() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(toggled(&paths(&["d"]), paths(&["a", "c"])), paths(&["d", "a", "c"]));
        assert_eq!(toggled(&paths(&["a"]), paths(&["a", "c"])), paths(&["a", "c"]));
        assert_eq!(toggled(&paths(&["a", "d", "c"]), paths(&["a", "c"])), paths(&["d"]));
    }
}
