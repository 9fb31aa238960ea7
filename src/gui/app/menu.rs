//! The menu of the headline: theme, zoom, layout, and the end of the window.

use eframe::egui;

use super::App;
use crate::gui::{layout, theme};

impl App {
    /// Draws the menu of the headline.
    pub(super) fn menu(&mut self, ui: &mut egui::Ui) {
        ui.menu_button("View", |ui| {
            theme::choice(ui);
            ui.separator();
            ui.label("Size of everything");
            ui.horizontal(|ui| {
                for percent in [80, 100, 125, 150, 200] {
                    let factor = percent as f32 / 100.0;
                    let is_set = (ui.ctx().zoom_factor() - factor).abs() < 0.01;
                    if ui.selectable_label(is_set, format!("{percent}%")).clicked() {
                        ui.ctx().set_zoom_factor(factor);
                    }
                }
            });
            ui.separator();
            if ui.button("Reset layout").clicked() {
                self.tree = layout::tree();
                ui.close();
            }
            ui.separator();
            match self.platform.link() {
                Some(link) if ui.button("Copy a link with these settings").clicked() => {
                    ui.ctx().copy_text(link);
                }
                Some(_) => {}
                // A page ends its run when it closes.
                None => self.when_closed_menu(ui),
            }
            if let Some(seconds) = self.frames.average() {
                ui.separator();
                ui.weak(format!("a frame takes {:.1} ms", 1e3 * seconds));
            }
        });
        if ui.button("Help").on_hover_text("F1").clicked() {
            self.help.is_open = !self.help.is_open;
        }
    }
}
