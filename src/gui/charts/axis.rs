//! The x axis: iterations, or a count that grows with them.

use eframe::egui;
use egui_plot::{GridInput, GridMark, uniform_grid_spacer};
use serde::{Deserialize, Serialize};

use super::scale::{decimal_steps, decimals};
use crate::protocol::{Cumulative, Curves};
use crate::text::grouped;

/// Least distance of labelled ticks, in the smallest grid steps that egui_plot draws: labels of the
/// x axis are wide.
const LABEL_STEPS: f64 = 10.0;

const DAY: f64 = 86400.0;

/// Distances of ticks on a time axis, in seconds, and the parts into which fine ticks divide them.
const TIME_STEPS: [(f64, f64); 16] = [
    (1.0, 5.0),
    (2.0, 4.0),
    (5.0, 5.0),
    (10.0, 5.0),
    (15.0, 3.0),
    (30.0, 3.0),
    (60.0, 4.0),
    (120.0, 4.0),
    (300.0, 5.0),
    (600.0, 5.0),
    (900.0, 3.0),
    (1800.0, 3.0),
    (3600.0, 4.0),
    (7200.0, 4.0),
    (21600.0, 3.0),
    (43200.0, 4.0),
];

/// The x axis of all charts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum XAxis {
    /// Updates made before.
    #[default]
    Iterations,
    /// Tokens trained on.
    Tokens,
    /// Seconds spent on updates.
    Time,
}

impl XAxis {
    const ALL: [Self; 3] = [Self::Iterations, Self::Tokens, Self::Time];

    fn name(self) -> &'static str {
        match self {
            Self::Iterations => "iterations",
            Self::Tokens => "tokens",
            Self::Time => "training time",
        }
    }

    /// Returns the count of a run that this axis shows; `None` for iterations.
    pub fn count(self, curves: &Curves) -> Option<&Cumulative> {
        match self {
            Self::Iterations => None,
            Self::Tokens => Some(&curves.tokens),
            Self::Time => Some(&curves.seconds),
        }
    }

    /// Returns the place of an iteration of a run.
    pub fn place(self, curves: &Curves, iter: f64) -> f64 {
        self.count(curves).map_or(iter, |count| count.at(iter))
    }

    /// Describes an iteration of a run, for hover labels.
    pub fn describe(self, curves: &Curves, iter: f64) -> String {
        let iteration = format!("iteration {}", grouped(iter, 0));
        let place = self.place(curves, iter);
        match self {
            Self::Iterations => iteration,
            Self::Tokens => format!("{iteration}, {} tokens", grouped(place, 0)),
            Self::Time => format!("{iteration}, {}", duration(place, 1.0)),
        }
    }

    /// Draws the selector. Returns true if another axis was chosen.
    pub fn select(&mut self, ui: &mut egui::Ui) -> bool {
        let before = *self;
        let label = ui.weak("over");
        let combo = egui::ComboBox::from_id_salt("x axis").selected_text(self.name()).width(60.0);
        let shown = combo.show_ui(ui, |ui| {
            for axis in Self::ALL {
                ui.selectable_value(self, axis, axis.name());
            }
        });
        shown.response.labelled_by(label.id).on_hover_text(
            "The x axis of all charts. Training time is the time of updates in all processes of the \
             run, without evaluations, samples, checkpoints and pauses.",
        );
        *self != before
    }

    /// Returns the function that places the ticks.
    pub fn grid(self) -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
        Box::new(uniform_grid_spacer(move |input| {
            let least = LABEL_STEPS * input.base_step_size;
            match self {
                Self::Iterations | Self::Tokens => decimal_steps(least),
                Self::Time => time_steps(least),
            }
        }))
    }

    /// Formats the label of a tick; empty in the margin below 0 and between two iterations.
    pub fn tick_label(self, mark: GridMark) -> String {
        let GridMark { value, step_size: step } = mark;
        match self {
            _ if value < -0.5 * step => String::new(),
            _ if value < 0.5 * step => "0".into(),
            Self::Iterations if value.fract() != 0.0 => String::new(),
            Self::Iterations => grouped(value, 0),
            Self::Tokens => short(value, step),
            Self::Time => duration(value, step),
        }
    }
}

/// Returns the steps of a time axis, as [`decimal_steps`] does.
fn time_steps(least: f64) -> [f64; 3] {
    let is_wide_enough = |(step, _): &&(f64, f64)| *step >= least * (1.0 - 1e-9);
    match TIME_STEPS.iter().find(is_wide_enough) {
        _ if least <= 0.5 => decimal_steps(least),
        Some((step, parts)) => [step / parts, *step, *step],
        None => decimal_steps((least / DAY).max(1.0)).map(|days| days * DAY),
    }
}

/// Formats a large number with just enough digits to differ from one that is `step` away: `1.5M`.
fn short(value: f64, step: f64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{:.*}{name}", decimals(step / unit), value / unit),
        None => format!("{value:.*}", decimals(step)),
    }
}

/// Formats a time on an axis with ticks `step` seconds apart: `1h 30m`.
fn duration(seconds: f64, step: f64) -> String {
    if step < 1.0 {
        return format!("{seconds:.*}s", decimals(step));
    }
    if step >= DAY {
        return format!("{}d", grouped(seconds / DAY, decimals(step / DAY)));
    }
    let whole = seconds.round() as u64;
    let parts = [(whole / 3600, "h"), (whole / 60 % 60, "m"), (whole % 60, "s")];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let text = parts.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().join(" ");
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: XAxis, to: f64) -> Vec<String> {
        let bounds = (-0.01 * to, to);
        let marks = axis.grid()(GridInput { bounds, base_step_size: to / 600.0 * 8.0 });
        let is_labelled = |mark: &&GridMark| mark.step_size * 600.0 / to > 70.0;
        marks.iter().filter(is_labelled).map(|mark| axis.tick_label(*mark)).collect()
    }

    #[test]
    fn tick_labels_are_round_and_short() {
        assert_eq!(
            labels(XAxis::Iterations, 1500.0),
            ["0", "200", "400", "600", "800", "1,000", "1,200", "1,400"]
        );
        assert_eq!(labels(XAxis::Tokens, 2.3e6), ["0", "500k", "1.0M", "1.5M", "2.0M"]);
        assert_eq!(
            labels(XAxis::Time, 100.0),
            ["0", "15s", "30s", "45s", "1m", "1m 15s", "1m 30s"]
        );
        assert_eq!(labels(XAxis::Time, 9100.0), ["0", "30m", "1h", "1h 30m", "2h", "2h 30m"]);
        assert_eq!(labels(XAxis::Time, 0.42), ["0", "0.1s", "0.2s", "0.3s", "0.4s"]);
        assert_eq!(labels(XAxis::Time, 10.5 * DAY), ["0", "2d", "4d", "6d", "8d", "10d"]);
    }

    #[test]
    fn an_iteration_is_described_by_its_place() {
        let mut curves = Curves::default();
        curves.tokens.extend(100.0, 1536.0);
        curves.seconds.extend(100.0, 0.9);
        assert_eq!(XAxis::Iterations.describe(&curves, 1000.0), "iteration 1,000");
        assert_eq!(XAxis::Tokens.describe(&curves, 1000.0), "iteration 1,000, 1,536,000 tokens");
        assert_eq!(XAxis::Time.describe(&curves, 100.0), "iteration 100, 1m 30s");
    }
}
