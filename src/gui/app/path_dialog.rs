//! A dialog for typing a path, on systems that have no file dialog.

use std::path::PathBuf;

use eframe::egui::{self, Ui};

use crate::gui::platform::{self, Choice};
use crate::gui::widgets::{decision, dialog, dialog_field};
use crate::gui::{Intent, theme};

pub(super) struct PathDialog {
    choice: Choice,
    text: String,
    /// Why the path was not taken.
    error: Option<String>,
}

const WIDTH: f32 = 420.0;

impl PathDialog {
    pub fn new(choice: Choice) -> Self {
        Self { choice, text: String::new(), error: None }
    }

    /// Draws the dialog, if one is open. Escape and a click next to it close it. Returns the
    /// intent of the path that was chosen.
    pub fn show(open: &mut Option<Self>, ui: &Ui) -> Option<Intent> {
        let this = open.as_mut()?;
        if !dialog(ui, "path", WIDTH, |ui| this.fields(ui))? {
            *open = None;
            return None;
        }
        match typed_path(&this.text, &this.choice) {
            Ok(path) => platform::chosen(open.take()?.choice, vec![path]),
            Err(error) => {
                this.error = Some(error);
                None
            }
        }
    }

    /// Draws the field and its buttons. Returns true to take the path, false to close the dialog.
    fn fields(&mut self, ui: &mut Ui) -> Option<bool> {
        ui.heading(self.choice.title());
        ui.label(
            "This system has no file dialog: install xdg-desktop-portal or zenity, or type a path.",
        );
        ui.add_space(6.0);
        let edit = egui::TextEdit::singleline(&mut self.text).hint_text("/home/me/texts/book.txt");
        let edit = ui.add(edit.desired_width(f32::INFINITY)).accessible_name("Path");
        if edit.changed() {
            self.error = None;
        }
        let entered = dialog_field(ui, &edit);
        if let Some(error) = &self.error {
            ui.colored_label(theme::error(ui), error);
        }
        entered.then_some(true).or(decision(ui, "OK", "Cancel"))
    }
}

/// Reads a path as it was typed: `~` is the home folder. The error says why it cannot be chosen.
fn typed_path(text: &str, choice: &Choice) -> Result<PathBuf, String> {
    let text = text.trim();
    let in_home = |rest: &&str| rest.is_empty() || rest.starts_with(std::path::is_separator);
    let path = match text.strip_prefix('~').filter(in_home) {
        Some(rest) => {
            let home = std::env::home_dir().unwrap_or_default();
            home.join(rest.trim_start_matches(std::path::is_separator))
        }
        None => PathBuf::from(text),
    };
    let exists = crate::disk::exists(&path);
    match choice {
        _ if text.is_empty() => Err("Type a path.".into()),
        // An export creates its folder.
        Choice::Export(..) if !exists => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            if parent.is_none_or(crate::disk::is_dir) {
                return Ok(path);
            }
            Err(format!("{text}: its parent folder does not exist."))
        }
        _ if !exists => Err(format!("{text} does not exist.")),
        Choice::Texts | Choice::DataFolder => Ok(path),
        _ if !crate::disk::is_dir(&path) => Err(format!("{text} is not a folder.")),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::gui::platform::ExportFormat;

    #[test]
    fn a_typed_path_has_to_exist_unless_it_is_an_export() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.txt");
        std::fs::write(&file, "Once").unwrap();
        let text = |path: &Path| path.display().to_string();
        let export = || Choice::Export("out/a".into(), ExportFormat::HuggingFace);
        let new = folder.path().join("new");
        for (path, choice, is_taken) in [
            (text(&file), Choice::Texts, true),
            (format!("  {}  ", text(&file)), Choice::Texts, true),
            (text(&new), Choice::Texts, false),
            (text(folder.path()), Choice::RunsFolder, true),
            (text(&file), Choice::RunsFolder, false),
            (text(&file), Choice::Model, false),
            (text(&new), export(), true),
            (text(&new.join("deep/er")), export(), false),
            (String::new(), export(), false),
        ] {
            let taken = typed_path(&path, &choice);
            assert_eq!(taken.is_ok(), is_taken, "{path} {choice:?}: {taken:?}");
        }
        assert_eq!(typed_path("~", &Choice::Texts).ok(), std::env::home_dir());
    }
}
