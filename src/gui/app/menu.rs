//! The menu of the headline: theme, zoom, layout, and the end of the window.

use eframe::egui::Ui;
use egui_tiles::Tree;

use super::WhenClosed;
use crate::gui::layout::{self, Pane};
use crate::gui::theme;
use crate::protocol::Command;

/// Draws the menu. `link` opens the page with the same settings, `seconds` is the time of a frame.
/// Returns a command for the run.
pub(super) fn show(
    ui: &mut Ui,
    tree: &mut Tree<Pane>,
    when_closed: &mut WhenClosed,
    link: Option<String>,
    seconds: Option<f32>,
) -> Option<Command> {
    let menu = ui.menu_button("View", |ui| {
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
            *tree = layout::tree();
            ui.close();
        }
        ui.separator();
        let mut command = None;
        match link {
            Some(link) if ui.button("Copy a link with these settings").clicked() => {
                ui.ctx().copy_text(link);
            }
            Some(_) => {}
            // A page ends its run when it closes.
            None => command = when_closed.choice(ui),
        }
        if let Some(seconds) = seconds {
            ui.separator();
            ui.weak(format!("a frame takes {:.1} ms", 1e3 * seconds));
        }
        command
    });
    menu.inner.flatten()
}
