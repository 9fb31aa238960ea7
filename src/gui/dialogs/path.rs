//! A dialog for typing a path, on systems that have no file dialog.

use std::path::{Path, PathBuf, is_separator};

use eframe::egui::{self, Ui};

use crate::gui::intent::{FileChoice, Intent};
use crate::gui::state::PathEntry;
use crate::gui::widgets::{decision, dialog, dialog_field};
use crate::gui::{platform, theme};

const WIDTH: f32 = 420.0;

/// Draws the dialog, if one is open. Escape and a click next to it close it. Returns the intent of the
/// path that was chosen.
pub fn show(ui: &Ui, open: &mut Option<PathEntry>) -> Option<Intent> {
    let entry = open.as_mut()?;
    if !dialog(ui, "path", WIDTH, |ui| fields(ui, entry))? {
        *open = None;
        return None;
    }
    match typed_path(&entry.text, &entry.choice, std::env::home_dir().as_deref()) {
        Ok(path) => platform::chosen(open.take()?.choice, vec![path]),
        Err(error) => {
            entry.error = Some(error);
            None
        }
    }
}

/// Draws the field and its buttons. Returns true to take the path, false to close the dialog.
fn fields(ui: &mut Ui, entry: &mut PathEntry) -> Option<bool> {
    ui.heading(entry.choice.title());
    ui.label(
        "This system has no file dialog: install xdg-desktop-portal or zenity, or type a path.",
    );
    ui.add_space(6.0);
    let edit = egui::TextEdit::singleline(&mut entry.text).hint_text("/home/me/texts/book.txt");
    let edit = ui.add(edit.desired_width(f32::INFINITY)).accessible_name("Path");
    if edit.changed() {
        entry.error = None;
    }
    let entered = dialog_field(ui, &edit);
    if let Some(error) = &entry.error {
        ui.colored_label(theme::error(ui), error);
    }
    entered.then_some(true).or(decision(ui, "OK", "Cancel"))
}

/// Reads a path as it was typed: `~` is the folder `home`. The error says why it cannot be chosen.
fn typed_path(text: &str, choice: &FileChoice, home: Option<&Path>) -> Result<PathBuf, String> {
    let text = text.trim();
    let in_home = |rest: &&str| rest.is_empty() || rest.starts_with(is_separator);
    let path = match text.strip_prefix('~').filter(in_home) {
        Some(rest) => home.unwrap_or(Path::new("")).join(rest.trim_start_matches(is_separator)),
        None => PathBuf::from(text),
    };
    let exists = crate::disk::exists(&path);
    match choice {
        _ if text.is_empty() => Err("Type a path.".into()),
        // An export creates its folder.
        FileChoice::Export(..) if !exists => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            if parent.is_none_or(crate::disk::is_dir) {
                return Ok(path);
            }
            Err(format!("{text}: its parent folder does not exist."))
        }
        _ if !exists => Err(format!("{text} does not exist.")),
        FileChoice::Texts | FileChoice::DataFolder => Ok(path),
        _ if !crate::disk::is_dir(&path) => Err(format!("{text} is not a folder.")),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ExportFormat;

    #[test]
    fn a_typed_path_has_to_exist_unless_it_is_an_export() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.txt");
        std::fs::write(&file, "Once").unwrap();
        let text = |path: &Path| path.display().to_string();
        let export = || FileChoice::Export("out/a".into(), ExportFormat::HuggingFace);
        let new = folder.path().join("new");
        for (path, choice, is_taken) in [
            (text(&file), FileChoice::Texts, true),
            (format!("  {}  ", text(&file)), FileChoice::Texts, true),
            (text(&new), FileChoice::Texts, false),
            (text(folder.path()), FileChoice::RunsFolder, true),
            (text(&file), FileChoice::RunsFolder, false),
            (text(&file), FileChoice::Model, false),
            (text(&new), export(), true),
            (text(&new.join("deep/er")), export(), false),
            (String::new(), export(), false),
        ] {
            let taken = typed_path(&path, &choice, None);
            assert_eq!(taken.is_ok(), is_taken, "{path} {choice:?}: {taken:?}");
        }
        let home = Some(folder.path());
        assert_eq!(typed_path("~/a.txt", &FileChoice::Texts, home), Ok(file));
        assert!(typed_path("~other", &FileChoice::Texts, home).is_err());
    }
}
