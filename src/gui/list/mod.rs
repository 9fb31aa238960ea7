//! The list on the left: a new run, the stored runs with a menu for each, models without a run.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Frame, Label, RichText, Ui};

use crate::gui::export;
use crate::gui::intent::{FileChoice, Intent};
use crate::gui::state::{Library, Room, RunDialog, Shared};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::{button, weak_note};
use crate::protocol::StorageUsage;
use crate::text::bytes;

mod dialogs;
mod menu;
mod row;

/// Draws the list: a new run, the runs, models without a run, and their folder.
pub fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { room, settings, shown, library, .. } = shared;
    let folder_of_shown = shown.folder.clone();
    let shown = folder_of_shown.as_deref().filter(|_| *room != Room::Start);
    let mut intent = dialogs::show(ui, &mut library.dialog);
    let is_new = *room == Room::Start;
    if row::line(ui, "New", is_new, if IS_PAGE { "Set up a run" } else { "Set up a run (Ctrl+N)" })
    {
        intent = Some(Intent::New);
    }
    ui.add_space(4.0);
    let bottom = egui::Panel::bottom("folder").frame(Frame::NONE).show_separator_line(false);
    bottom.show(ui, |ui| {
        ui.add_space(4.0);
        let below = if IS_PAGE { storage(ui, library.usage) } else { folder(ui, &settings.runs) };
        intent = intent.take().or(below);
    });
    let area = egui::ScrollArea::vertical().id_salt("runs").auto_shrink(false);
    area.show(ui, |ui| {
        intent = intent.take().or(row::runs(ui, library, shown));
        intent = intent.take().or(models(ui, library, &settings.opened, shown));
        // From another folder, or not listed yet.
        if let Some(folder) = &folder_of_shown
            && !library.runs.iter().any(|run| run.path == *folder)
            && !library.models.iter().any(|model| model.path == *folder)
            && !settings.opened.contains(folder)
            && row::line(ui, library.title(folder), shown.is_some(), &folder.display().to_string())
        {
            intent = Some(Intent::Show(folder.clone()));
        }
        if library.runs.is_empty() && library.models.is_empty() && settings.opened.is_empty() {
            ui.add_space(4.0);
            weak_note(ui, "Your runs and models will appear here.");
        }
    });
    intent
}

/// Draws the models without a run: those in the storage of a page, those that were opened in a window.
fn models(
    ui: &mut Ui,
    library: &mut Library,
    opened: &[PathBuf],
    shown: Option<&Path>,
) -> Option<Intent> {
    let mut intent = None;
    for path in opened {
        let name = library.title(path);
        if row::line(ui, name, shown == Some(path.as_path()), &path.display().to_string()) {
            intent = Some(Intent::Show(path.clone()));
        }
    }
    for model in &library.models {
        let path = || model.path.clone();
        let shape = &model.architecture;
        let tokenizer = if model.has_tokenizer { "" } else { ", tokenizer unknown" };
        let text =
            format!("{}: {} blocks of {}{tokenizer}", model.name, shape.n_layer, shape.n_embd);
        if row::line(ui, &model.name, shown == Some(model.path.as_path()), &text) {
            intent = Some(Intent::Show(path()));
        }
        ui.horizontal_wrapped(|ui| {
            if ui.small_button("Export").on_hover_text("Download it as a zip").clicked() {
                intent = Some(export::hugging_face(path()));
            }
            if ui.small_button("Delete...").on_hover_text("Delete it from this browser").clicked() {
                library.dialog = Some(RunDialog::Remove { path: path(), name: text.clone() });
            }
        });
    }
    intent
}

fn folder(ui: &mut Ui, folder: &Path) -> Option<Intent> {
    let open = ui.horizontal_wrapped(|ui| {
        let help = "Generate text with a Hugging Face folder or a checkpoint";
        let model = button(ui, "Open model...", None, help).then_some(FileChoice::Model);
        let help = format!("The runs of another folder; these are in {}", folder.display());
        let runs = button(ui, "Folder...", None, &help);
        runs.then_some(FileChoice::RunsFolder).or(model).map(Intent::Choose)
    });
    open.inner
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
