//! The actions on the selected runs.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Button};

use super::{Dialog, RunsState};
use crate::gui::{Intent, platform};
use crate::runs::{RunState, RunSummary};

/// Draws the actions: on the run that was selected last, and Overlay on all that are selected
/// besides the displayed one.
pub(super) fn show(
    ui: &mut egui::Ui,
    runs: &[RunSummary],
    state: &mut RunsState,
    shown: Option<&Path>,
) -> Option<Intent> {
    let run = state.selected.last().and_then(|path| runs.iter().find(|run| run.path == *path));
    let none = run.is_none().then_some("Select a run first.");
    let no_checkpoint = run.filter(|run| !run.has_checkpoint).map(|_| "It has no checkpoint yet.");
    let is_live = |run: &&RunSummary| matches!(run.state, RunState::Running | RunState::Paused);
    let running = run.filter(is_live).map(|_| "It is running: stop it first.");
    let mut clicked = None;
    ui.horizontal_wrapped(|ui| {
        let intent = |make: fn(PathBuf) -> Intent| run.map(|run| make(run.path.clone()));
        if button(ui, "Show", none, "Show its curves, samples and log") {
            clicked = intent(Intent::Show);
        }
        let disabled = none.or(running).or(no_checkpoint);
        if button(ui, "Continue", disabled, "Continue from its newest checkpoint") {
            clicked = intent(Intent::Continue);
        }
        let help = "Set up a new run with its settings that starts with its weights";
        if button(ui, "New run from it", none.or(no_checkpoint), help) {
            clicked = intent(Intent::Fork);
        }
        clicked = clicked.take().or(overlay(ui, state, shown));
        let help = "Give it another name in this list, and a note";
        if button(ui, "Rename...", none, help)
            && let Some(run) = run
        {
            let name = run.name.clone();
            let about = run.about.clone();
            state.dialog = Some(Dialog::Describe { run: run.path.clone(), name, about });
        }
        if platform::IS_PAGE {
            let help = "Download its best checkpoint as a zip with a Hugging Face folder";
            if button(ui, "Export", none.or(no_checkpoint), help) {
                clicked = intent(Intent::Export);
            }
        } else if button(ui, "Open folder", none, "Show its files") {
            clicked = intent(Intent::OpenFolder);
        }
        let help = match platform::IS_PAGE {
            true => "Delete it from this browser",
            false => "Move it to the trash, with its checkpoints",
        };
        if button(ui, "Delete...", none.or(running), help)
            && let Some(run) = run
        {
            let name = run.title().to_string();
            state.dialog = Some(Dialog::Remove { path: run.path.clone(), name });
        }
    });
    clicked
}

/// Draws a button; `disabled` is the reason if it is.
fn button(ui: &mut egui::Ui, text: &str, disabled: Option<&str>, help: &str) -> bool {
    let response = ui.add_enabled(disabled.is_none(), Button::new(text)).on_hover_text(help);
    response.on_disabled_hover_text(disabled.unwrap_or_default()).clicked()
}

fn overlay(ui: &mut egui::Ui, state: &RunsState, shown: Option<&Path>) -> Option<Intent> {
    let others = others(&state.selected, shown);
    let is_on = !others.is_empty() && others.iter().all(|run| state.overlaid.contains(run));
    let button = ui.add_enabled(!others.is_empty(), Button::new("Overlay").selected(is_on));
    let help = "Draw the curves of the selected runs with those of the displayed run, or hide them";
    let reason = match shown {
        None => "Show a run first, then select others (Ctrl+click).",
        Some(_) => "Select runs besides the displayed one (Ctrl+click).",
    };
    let response = button.on_hover_text(help).on_disabled_hover_text(reason);
    response.clicked().then(|| Intent::Overlay(toggled(&state.overlaid, others)))
}

/// Returns the selected runs besides the displayed one; none if no run is displayed.
fn others(selected: &[PathBuf], shown: Option<&Path>) -> Vec<PathBuf> {
    let Some(shown) = shown else { return Vec::new() };
    selected.iter().filter(|run| *run != shown).cloned().collect()
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
    fn overlay_draws_the_other_selected_runs() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let selected = paths(&["a", "b", "c"]);
        assert_eq!(others(&selected, Some(Path::new("b"))), paths(&["a", "c"]));
        assert_eq!(others(&selected, None), paths(&[]));
        assert_eq!(toggled(&paths(&["d"]), paths(&["a", "c"])), paths(&["d", "a", "c"]));
        assert_eq!(toggled(&paths(&["a"]), paths(&["a", "c"])), paths(&["a", "c"]));
        assert_eq!(toggled(&paths(&["a", "d", "c"]), paths(&["a", "c"])), paths(&["d"]));
    }
}
