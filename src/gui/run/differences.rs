//! The settings in which the shown run and the run that was compared with it last differ.

use eframe::egui::{self, Label, RichText, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::{Overlay, Shared};

/// The space between two columns, in points.
const GAP: f32 = 8.0;

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { library, shown, .. } = shared;
    let (a, Overlay { run: b, .. }) = shown.folder.as_deref().zip(library.overlays.last())?;
    match &library.difference {
        None => ui.weak("Reading their settings..."),
        Some(difference) if difference.is_empty() => ui.weak("Both have the same settings."),
        Some(difference) => {
            let column = (ui.available_width() - 2.0 * GAP) / 3.0;
            let grid = egui::Grid::new("difference").num_columns(3).striped(true);
            let grid = grid.min_col_width(column).max_col_width(column).spacing([GAP, 2.0]);
            let cell = |ui: &mut Ui, text: RichText| ui.add(Label::new(text).truncate());
            let rows = |ui: &mut Ui| {
                for heading in ["setting", library.title(a), library.title(b)] {
                    cell(ui, RichText::new(heading).weak());
                }
                ui.end_row();
                for (key, a, b) in difference {
                    cell(ui, RichText::new(*key));
                    for value in [a, b] {
                        let text = if value.is_empty() { "none" } else { value };
                        cell(ui, RichText::new(text).monospace());
                    }
                    ui.end_row();
                }
            };
            grid.show(ui, rows).response
        }
    };
    None
}
