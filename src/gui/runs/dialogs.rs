//! The dialogs of the runs: name and note, and removal.

use std::path::PathBuf;

use eframe::egui::{self, Button, RichText, TextEdit};

use crate::gui::{Intent, platform, theme};
use crate::runs::About;

/// A dialog that is open.
#[derive(Debug)]
pub(super) enum Dialog {
    /// The display name and the note of a run.
    Describe {
        /// The run.
        run: PathBuf,
        /// The name of its folder.
        name: String,
        /// The texts being typed.
        about: About,
    },
    /// The confirmation of a removal.
    Remove {
        /// The run or the model.
        path: PathBuf,
        /// Its display name.
        name: String,
    },
}

/// Width of the dialogs, in points.
const WIDTH: f32 = 340.0;

/// Draws the dialog, if one is open. Escape and a click beside it close it.
pub(super) fn show(ui: &egui::Ui, dialog: &mut Option<Dialog>) -> Option<Intent> {
    let open = dialog.as_mut()?;
    let modal = egui::Modal::new(egui::Id::unique("runs dialog")).show(ui.ctx(), |ui| {
        ui.set_width(WIDTH);
        match open {
            Dialog::Describe { run, name, about } => {
                let saved = describe(ui, name, about);
                saved.map(|save| {
                    save.then(|| Intent::Describe { run: run.clone(), about: trimmed(about) })
                })
            }
            Dialog::Remove { path, name } => {
                let confirmed = remove(ui, name);
                confirmed.map(|confirmed| confirmed.then(|| Intent::Remove(path.clone())))
            }
        }
    });
    if modal.inner.is_some() || modal.should_close() {
        *dialog = None;
    }
    modal.inner.flatten()
}

/// Draws the fields for name and note. Returns true to save them, false to close the dialog.
fn describe(ui: &mut egui::Ui, name: &str, about: &mut About) -> Option<bool> {
    ui.heading("Name and note");
    ui.weak(format!("The folder stays {name}: checkpoints and commands refer to it."));
    ui.add_space(6.0);
    let label = ui.label("Name");
    let edit = TextEdit::singleline(&mut about.name).hint_text(name.to_string());
    let edit = ui.add(edit.desired_width(f32::INFINITY)).labelled_by(label.id);
    let entered = edit.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
    if !entered && ui.memory(|memory| memory.focused().is_none()) {
        edit.request_focus();
    }
    let label = ui.label("Note");
    let note = TextEdit::multiline(&mut about.note).desired_rows(3);
    ui.add(note.desired_width(f32::INFINITY)).labelled_by(label.id);
    ui.add_space(6.0);
    let (save, cancel) =
        ui.horizontal(|ui| (ui.button("Save").clicked(), ui.button("Cancel").clicked())).inner;
    match (save || entered, cancel) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

fn trimmed(about: &About) -> About {
    About { name: about.name.trim().into(), note: about.note.trim().into() }
}

/// Draws the question. Returns true to remove the run, false to keep it.
fn remove(ui: &mut egui::Ui, name: &str) -> Option<bool> {
    let (question, help, button) = match platform::IS_PAGE {
        true => (
            format!("Delete {name}?"),
            "It is deleted from this browser for good, with its checkpoints.",
            "Delete permanently",
        ),
        false => (
            format!("Move {name} to the trash?"),
            "Its checkpoints, curves and samples go with it. The trash of the system can restore \
             them.",
            "Move to the trash",
        ),
    };
    ui.heading(question);
    ui.label(help);
    ui.add_space(6.0);
    let remove = Button::new(RichText::new(button).color(theme::error(ui)));
    let (remove, keep) =
        ui.horizontal(|ui| (ui.add(remove).clicked(), ui.button("Keep").clicked())).inner;
    match (remove, keep) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}
