//! The dialogs of the runs: name and note, and removal.

use eframe::egui::{RichText, TextEdit, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::RunDialog;
use crate::gui::target::IS_PAGE;
use crate::gui::theme;
use crate::gui::widgets::{self, decision, dialog_field};
use crate::protocol::Request;
use crate::runs::About;

const WIDTH: f32 = 340.0;

pub(super) fn show(ui: &Ui, open: &mut Option<RunDialog>) -> Option<Intent> {
    let dialog = open.as_mut()?;
    let is_confirmed = widgets::dialog(ui, "runs dialog", WIDTH, |ui| match dialog {
        RunDialog::Describe { name, about, .. } => describe(ui, name, about),
        RunDialog::Remove { name, .. } => remove(ui, name),
    })?;
    Some(Intent::Ask(match open.take().filter(|_| is_confirmed)? {
        RunDialog::Describe { run, about: About { name, note }, .. } => {
            let about = About { name: name.trim().into(), note: note.trim().into() };
            Request::Describe { run, about }
        }
        RunDialog::Remove { path, .. } => Request::Remove { path },
    }))
}

/// Draws the fields for name and note. Returns true to save them, false to close the dialog.
fn describe(ui: &mut Ui, name: &str, about: &mut About) -> Option<bool> {
    ui.heading("Name and note");
    ui.weak(format!("The folder stays {name}: checkpoints and commands refer to it."));
    ui.add_space(6.0);
    let label = ui.label("Name");
    let edit = TextEdit::singleline(&mut about.name).hint_text(name.to_string());
    let edit = ui.add(edit.desired_width(f32::INFINITY)).labelled_by(label.id);
    let entered = dialog_field(ui, &edit);
    let label = ui.label("Note");
    let note = TextEdit::multiline(&mut about.note).desired_rows(3);
    ui.add(note.desired_width(f32::INFINITY)).labelled_by(label.id);
    entered.then_some(true).or(decision(ui, "Save", "Cancel"))
}

/// Draws the question. Returns true to remove the run, false to keep it.
fn remove(ui: &mut Ui, name: &str) -> Option<bool> {
    let (question, help, button) = if IS_PAGE {
        (
            format!("Delete {name}?"),
            "It is deleted from this browser for good, with its checkpoints.",
            "Delete permanently",
        )
    } else {
        (
            format!("Move {name} to the trash?"),
            "Its checkpoints, curves and samples go with it. You can restore them from the trash.",
            "Move to the trash",
        )
    };
    ui.heading(question);
    ui.label(help);
    decision(ui, RichText::new(button).color(theme::error(ui)), "Keep")
}
