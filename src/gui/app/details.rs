//! The part of the help that a bug report needs: the text of `wgpt doctor`.

use eframe::egui;

use super::App;
use crate::gui::platform;
use crate::protocol::Request;

/// The report in the help.
#[derive(Debug, Default)]
pub(super) enum Details {
    /// It was not requested.
    #[default]
    None,
    /// It is being gathered.
    Gathering,
    /// Its text.
    Text(String),
}

/// The most height of the text, in points.
const HEIGHT: f32 = 240.0;

impl App {
    /// Draws the report with a button that copies it, or one that requests it: listing the devices
    /// takes a moment.
    pub(super) fn show_details(&mut self, ui: &mut egui::Ui) {
        let text = match &self.details {
            Details::None => {
                let show = ui.button("Show details of this machine");
                let show = show.on_hover_text(
                    "Version, devices, drivers, limits and folders, as wgpt doctor prints them, for \
                     a bug report",
                );
                if show.clicked() {
                    self.details = Details::Gathering;
                    let front_end = platform::open_front_end(&self.settings.runs);
                    self.client.send(Request::Doctor { front_end });
                }
                return;
            }
            Details::Gathering => {
                ui.horizontal(|ui| {
                    ui.spinner();
                    ui.label("Looking at the devices...");
                });
                return;
            }
            Details::Text(text) => text,
        };
        ui.horizontal(|ui| {
            ui.label("For a bug report:");
            if ui.button("Copy").on_hover_text("Copy the details of this machine").clicked() {
                ui.ctx().copy_text(text.clone());
            }
        });
        egui::ScrollArea::both().id_salt("details").max_height(HEIGHT).show(ui, |ui| {
            ui.add(egui::Label::new(egui::RichText::new(text).monospace().small()).extend());
        });
    }
}
