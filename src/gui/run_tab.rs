//! The plan and the settings of the shown run.

use eframe::egui::{self, RichText, Ui};

use super::intent::Intent;
use super::state::{Shared, is_same, values};
use super::{fit, theme};
use crate::config::KEYS;

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let progress = &shared.shown.progress;
    let Some(config) = &progress.config else {
        ui.weak("The plan and the settings of a run appear here once it has started.");
        return None;
    };
    if let Some(forecast) = &progress.forecast {
        ui.label(RichText::new(forecast.verdict()).strong().color(theme::good(ui)));
        fit::bar::show(ui, forecast, None, None, progress.last_step.as_ref());
        ui.weak(forecast.plan.to_string());
    }
    ui.separator();
    let values = values(config);
    for group in KEYS.chunk_by(|a, b| a.group == b.group) {
        ui.weak(group[0].group);
        let grid = egui::Grid::new(group[0].group).num_columns(4).spacing([12.0, 2.0]);
        grid.show(ui, |ui| {
            for row in group.chunks(2) {
                for key in row {
                    let value = values.get(key.name).map_or("", String::as_str);
                    let is_default = is_same(key, value, key.default);
                    let text = RichText::new(value).monospace();
                    ui.label(key.name).on_hover_text(key.help);
                    ui.label(if is_default { text.weak() } else { text.strong() });
                }
                ui.end_row();
            }
        });
        ui.add_space(4.0);
    }
    None
}
