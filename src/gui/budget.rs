//! The slider for the budget of a run.

use eframe::egui::{self, Ui};

use super::state::AUTO;
use super::target::IS_PAGE;
use super::widgets::button;
use crate::text::GIB;

/// The range of the budget slider, in GiB. The upper end holds where the memory of the device is
/// unknown.
const MIN_BUDGET: f64 = 0.5;
const MAX_BUDGET: f64 = 24.0;

const AUTO_HELP: &str = if IS_PAGE {
    "Use the default budget for browsers"
} else {
    "Use the free memory of the device, less a reserve for other programs"
};

/// Draws a budget in bytes, within the `memory` of the device. Returns a new one, as it would be typed, and true
/// while the slider is dragged.
pub fn show(
    ui: &mut Ui,
    is_auto: bool,
    budget: Option<u64>,
    memory: Option<u64>,
) -> (Option<String>, bool) {
    let max = memory.map_or(MAX_BUDGET, |total| total as f64 / GIB).max(MIN_BUDGET + 0.1);
    let mut gib = budget.map_or(max, |budget| budget as f64 / GIB);
    let label = ui.label("Budget").on_hover_text("The most memory that the run may use");
    let row = ui.horizontal(|ui| {
        ui.spacing_mut().slider_width = (ui.available_width() - 180.0).clamp(60.0, 320.0);
        let slider = egui::Slider::new(&mut gib, MIN_BUDGET..=max).step_by(0.1);
        // `Always` would round an untouched budget to a step, and that counts as an edit.
        let slider = slider.clamping(egui::SliderClamping::Edits);
        let slider = slider.fixed_decimals(1).update_while_editing(false);
        let slider = match budget {
            Some(_) => slider.suffix(" GiB"),
            None => slider.custom_formatter(|_, _| "none".into()),
        };
        let response = ui.add(slider).labelled_by(label.id);
        let typed = response.changed().then(|| budget_text(gib));
        let disabled = is_auto.then_some("The budget is chosen automatically.");
        let is_reset = button(ui, "Automatic", disabled, AUTO_HELP);
        (if is_reset { Some(AUTO.into()) } else { typed }, response.dragged())
    });
    row.inner
}

/// Formats a budget as it would be typed: `6.5GiB`.
fn budget_text(gib: f64) -> String {
    let text = format!("{gib:.1}");
    format!("{}GiB", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_written_as_it_would_be_typed() {
        assert_eq!([6.5, 8.0].map(budget_text), ["6.5GiB", "8GiB"]);
    }
}
