//! The x axis: iterations, or a count that grows with them.

use std::time::Duration;

use egui_plot::{GridInput, GridMark, uniform_grid_spacer};
use serde::{Deserialize, Serialize};

use super::y_axis::{decimal_steps, decimals};
use crate::protocol::{Cumulative, Curves};
use crate::text::{duration, grouped};

/// Minimum distance of labelled ticks, in the smallest grid steps that egui_plot draws. Labels of the
/// x axis are wide.
const LABEL_STEPS: f64 = 10.0;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86400.0;

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
    pub const ALL: [Self; 3] = [Self::Iterations, Self::Tokens, Self::Time];

    pub fn name(self) -> &'static str {
        match self {
            Self::Iterations => "iterations",
            Self::Tokens => "tokens",
            Self::Time => "training time",
        }
    }

    /// Returns what this axis counts; `None` for iterations.
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
            Self::Time => {
                // A damaged record may have any number.
                let time = Duration::try_from_secs_f64(place).unwrap_or_default();
                format!("{iteration}, {}", duration(time))
            }
        }
    }

    /// Returns the function that places the ticks.
    pub fn grid(self) -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
        uniform_grid_spacer(move |input| {
            let least = LABEL_STEPS * input.base_step_size;
            let unit = match self {
                // Half an hour and half a day are round, 50 minutes and 10 hours are not.
                Self::Time if least > 5.0 * HOUR => DAY,
                Self::Time if least > 20.0 * MINUTE => HOUR,
                Self::Time if least > 20.0 => MINUTE,
                _ => 1.0,
            };
            decimal_steps(least / unit).map(|step| step * unit)
        })
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
            Self::Time if step < 1.0 => format!("{value:.*}s", decimals(step)),
            // A chart can be zoomed out beyond any time that fits a duration.
            Self::Time => duration(Duration::from_secs_f64(value.min(1e18))),
        }
    }
}

/// Formats a large number with just enough digits to differ from one that is `step` away: `1.5M`.
fn short(value: f64, step: f64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    let unit = units.into_iter().find(|(unit, _)| value >= *unit);
    let (unit, name) = unit.unwrap_or((1.0, ""));
    format!("{:.*}{name}", decimals(step / unit), value / unit)
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
        assert_eq!(labels(XAxis::Time, 105.0), ["0", "20s", "40s", "1m", "1m 20s", "1m 40s"]);
        assert_eq!(labels(XAxis::Time, 9100.0), ["0", "30m", "1h", "1h 30m", "2h", "2h 30m"]);
        assert!(XAxis::Time.tick_label(GridMark { value: 1e30, step_size: 1e29 }).contains('d'));
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
