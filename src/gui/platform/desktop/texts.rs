//! The list of texts and models to fetch. A worker fetches them: the window itself connects to nothing.

use eframe::egui::{self, RichText, ScrollArea, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::{DataJob, Shared};
use crate::gui::widgets::{button, dialog, weak_note};
use crate::hub::{CatalogRow, catalog};
use crate::protocol::Request;

const WIDTH: f32 = 560.0;
const HEIGHT: f32 = 440.0;

/// Draws the list while it is open.
pub fn texts(ui: &Ui, shared: &mut Shared) -> Option<Intent> {
    if !shared.dialogs.lists_texts {
        return None;
    }
    let busy = shared.data.job.is_some().then_some("Something else is being fetched or prepared.");
    let mut chosen = None;
    let ended = dialog(ui, "texts to fetch", WIDTH, |ui| {
        chosen = list(ui, busy);
        ui.add_space(6.0);
        (ui.button("Close").clicked() || chosen.is_some()).then_some(false)
    });
    shared.dialogs.lists_texts = ended.is_none();
    let name = chosen?.to_string();
    shared.data.job = Some(DataJob::fetching(name.clone(), 0, None));
    Some(Intent::Ask(Request::Get { name, folder: shared.settings.data_folder() }))
}

/// Draws the list. Returns the name of what is to be fetched.
fn list(ui: &mut Ui, busy: Option<&str>) -> Option<&'static str> {
    ui.heading("Texts and models");
    weak_note(
        ui,
        "Downloads come from huggingface.co, are verified, and go into the folder that other programs use, \
         too. Then a text is prepared for training, and a model can continue a prompt.",
    );
    ui.add_space(6.0);
    let mut chosen = None;
    ScrollArea::vertical().max_height(HEIGHT).show(ui, |ui| {
        ui.set_width(ui.available_width() - 16.0);
        // HellaSwag is no text to train on.
        let rows = catalog().filter(|row| row.name.starts_with("hf:"));
        for CatalogRow { name, language, size, licence, good_for, .. } in rows {
            let left = |ui: &mut Ui| {
                ui.vertical(|ui| {
                    ui.add(egui::Label::new(RichText::new(name).strong()).truncate());
                    weak_note(ui, format!("{language}, {licence}; good for {good_for}"));
                });
            };
            let help = format!("The same as: wgpt get {name}");
            let right = |ui: &mut Ui| button(ui, format!("Download {size}"), busy, &help);
            if egui::Sides::new().shrink_left().show(ui, left, right).1 {
                chosen = Some(name);
            }
            ui.add_space(4.0);
        }
    });
    chosen
}
