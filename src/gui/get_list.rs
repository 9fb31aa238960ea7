//! The list of texts and models that `wgpt get` fetches. The window itself connects to nothing.

use eframe::egui::{self, RichText, ScrollArea, Ui};

use super::widgets::{button, dialog, weak_note};
use crate::hub::{CATALOG, CatalogRow};

const WIDTH: f32 = 520.0;
const HEIGHT: f32 = 420.0;

pub(super) fn show(ui: &Ui, is_open: &mut bool) {
    if *is_open && dialog(ui, "texts to fetch", WIDTH, list).is_some() {
        *is_open = false;
    }
}

/// Draws the list. Returns false to close the dialog.
fn list(ui: &mut Ui) -> Option<bool> {
    ui.heading("Texts and models");
    weak_note(
        ui,
        "Copy a command and run it in a terminal: it fetches the files, with their hashes checked, and \
         prints what to do next.",
    );
    ui.add_space(6.0);
    ScrollArea::vertical().max_height(HEIGHT).show(ui, |ui| {
        ui.set_width(ui.available_width() - 12.0);
        for CatalogRow { name, language, size, licence, good_for, .. } in CATALOG {
            let command = format!("wgpt get {name}");
            let left = |ui: &mut Ui| {
                ui.vertical(|ui| {
                    ui.add(egui::Label::new(RichText::new(*name).strong()).truncate());
                    weak_note(ui, format!("{language}, {size}, {licence}; good for {good_for}"));
                });
            };
            let right = |ui: &mut Ui| button(ui, "Copy command", None, &command);
            if egui::Sides::new().shrink_left().show(ui, left, right).1 {
                ui.ctx().copy_text(command);
            }
            ui.add_space(4.0);
        }
    });
    ui.add_space(6.0);
    ui.button("Close").clicked().then_some(false)
}
