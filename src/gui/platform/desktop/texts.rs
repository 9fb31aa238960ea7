//! The list of texts and models to fetch. A worker fetches them: the window itself connects to nothing.

use eframe::egui::{RichText, ScrollArea, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::{Catalog, DataJob, Shared, What};
use crate::gui::widgets::{button, dialog, weak_note};
use crate::hub::{CatalogRow, catalog};
use crate::protocol::Request;

const WIDTH: f32 = 560.0;
const HEIGHT: f32 = 440.0;

/// Draws the list while it is open.
pub fn texts(ui: &Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { dialogs, start, settings, .. } = shared;
    let of_models = dialogs.list? == Catalog::Models;
    let job = &mut start.data.job;
    let busy = job.as_ref().map(|_| "Something else is being fetched or prepared.");
    let mut fetched = None;
    let ended = dialog(ui, "texts to fetch", WIDTH, |ui| {
        list(ui, of_models, &mut dialogs.listed);
        ui.add_space(6.0);
        ui.horizontal(|ui| {
            let chosen = dialogs.listed.and_then(|name| catalog().find(|row| row.name == name));
            let label =
                chosen.as_ref().map_or("Download".into(), |row| format!("Download {}", row.size));
            let nothing = chosen.is_none().then_some("Choose one first.");
            let help = chosen
                .as_ref()
                .map_or(String::new(), |row| format!("The same as: wgpt get {}", row.name));
            if button(ui, label, busy.or(nothing), &help) {
                fetched = dialogs.listed;
            }
            (ui.button("Close").clicked() || fetched.is_some()).then_some(false)
        })
        .inner
    });
    if ended.is_some() {
        (dialogs.list, dialogs.listed) = (None, None);
    }
    let name = fetched?.to_string();
    *job = Some(DataJob::fetching(name.clone(), 0, None));
    let folder = settings.data_folder();
    if !of_models {
        shared.set_up(What::Text);
    }
    Some(Intent::Ask(Request::Get { name, folder }))
}

/// Draws the list, in which a click chooses and fetches nothing yet.
fn list(ui: &mut Ui, of_models: bool, chosen: &mut Option<&'static str>) {
    ui.heading(if of_models { "Models to fine-tune" } else { "Texts to train on" });
    weak_note(
        ui,
        "Downloads come from huggingface.co, are verified, and go into the folder that other programs use, \
         too.",
    );
    ui.add_space(6.0);
    ScrollArea::vertical().min_scrolled_height(HEIGHT).max_height(HEIGHT).show(ui, |ui| {
        ui.set_width(ui.available_width() - 16.0);
        // HellaSwag is no text to train on.
        let is_listed = |row: &CatalogRow| row.is_model == of_models && row.name.starts_with("hf:");
        for row in catalog().filter(is_listed) {
            let CatalogRow { name, language, size, licence, good_for, .. } = row;
            let label = ui.radio(*chosen == Some(name), RichText::new(name).strong());
            if label.clicked() {
                *chosen = Some(name);
            }
            ui.horizontal(|ui| {
                // Below the name.
                ui.add_space(20.0);
                weak_note(ui, format!("{size}, {language}, {licence}; good for {good_for}"));
            });
            ui.add_space(4.0);
        }
    });
}
