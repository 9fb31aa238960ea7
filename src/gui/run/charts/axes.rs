//! The axes: the positions of ticks and the text of their labels. The x axis has iterations, or a
//! count that grows with them.

use std::time::Duration;

use egui_plot::{GridInput, GridMark, uniform_grid_spacer};

use crate::gui::state::XAxis;
use crate::protocol::Curves;
use crate::text::{DAY, HOUR, MINUTE, bytes, duration, grouped};

/// Minimum distance of labelled ticks, in the smallest grid steps that egui_plot draws. Labels of the
/// x axis are wide, those of the y axis are only one line high.
const X_LABEL_STEPS: f64 = 10.0;
const Y_LABEL_STEPS: f64 = 4.0;

impl XAxis {
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

    pub fn grid(self) -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
        uniform_grid_spacer(move |input| {
            let least = X_LABEL_STEPS * input.base_step_size;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nats per token.
    Loss,
    Rate,
    Norm,
    Speed,
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub unit: Unit,
    pub log: bool,
}

impl Scale {
    /// Returns the plot coordinate of a value; `None` for 0 and below on a logarithmic axis.
    pub fn position(self, value: f64) -> Option<f64> {
        if self.log { (value > 0.0).then(|| value.log10()) } else { Some(value) }
    }

    /// Formats a value for hover labels.
    pub fn value(self, value: f64) -> String {
        match self.unit {
            Unit::Loss => format!("{value:.4}"),
            Unit::Rate => format!("{value:.3e}"),
            Unit::Norm => format!("{value:.3}"),
            Unit::Speed => grouped(value, 0),
            Unit::Bytes => bytes(value.max(0.0) as u64),
        }
    }

    /// Formats the label of a tick with just enough digits to differ from the next one.
    pub fn tick_label(self, mark: GridMark) -> String {
        let GridMark { mut value, step_size: mut step } = mark;
        if self.log {
            value = 10f64.powf(value);
            step = value * (10f64.powf(step) - 1.0);
        }
        // Ticks in the margin below 0 have no meaning.
        if value < -0.5 * step {
            return String::new();
        }
        match self.unit {
            _ if value < 0.5 * step => "0".into(),
            Unit::Rate => {
                let digits = (value.log10() + 1e-9).floor() - (step.log10() + 1e-9).floor();
                format!("{value:.*e}", digits.clamp(0.0, 9.0) as usize)
            }
            Unit::Bytes => bytes(value as u64),
            _ => grouped(value, decimals(step)),
        }
    }

    pub fn grid(self) -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
        if self.log {
            return Box::new(log_ticks);
        }
        uniform_grid_spacer(move |input| {
            let least = Y_LABEL_STEPS * input.base_step_size;
            if self.unit == Unit::Bytes {
                let labelled = 2f64.powf(least.log2().ceil());
                return [labelled / 4.0, labelled, labelled];
            }
            decimal_steps(least)
        })
    }
}

/// Returns the number of decimals that multiples of `step` need to differ.
fn decimals(step: f64) -> usize {
    (-step.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize
}

/// Returns the steps that `uniform_grid_spacer` takes: an unlabelled fine step, then the labelled
/// one, the smallest of 1, 2 and 5 times a power of ten that is at least `least`. The coarsest step
/// repeats it, because labels of a coarser step would have fewer decimals than the others.
fn decimal_steps(least: f64) -> [f64; 3] {
    let power = 10f64.powf(least.log10().floor());
    let is_wide_enough = |times: &&f64| **times * power >= least * (1.0 - 1e-9);
    let times = [1.0, 2.0, 5.0].iter().find(is_wide_enough).copied().unwrap_or(10.0);
    let parts = if times == 2.0 { 4.0 } else { 5.0 };
    [times * power / parts, times * power, times * power]
}

/// Places ticks at round values of 10^y: at 1 to 9 times each power of ten or, within less than a
/// decade, as on a linear axis.
fn log_ticks(input: GridInput) -> Vec<GridMark> {
    let from = input.bounds.0.max(-300.0);
    let to = input.bounds.1.min(300.0);
    let [low, high] = [from, to].map(|exponent| 10f64.powf(exponent));
    let tick = |value: f64, step: f64| GridMark {
        value: value.log10(),
        step_size: ((value + step) / value).log10(),
    };
    if to - from < 1.0 {
        let base_step_size = input.base_step_size / (to - from) * (high - low);
        let linear = |input: GridInput| decimal_steps(Y_LABEL_STEPS * input.base_step_size);
        let marks = uniform_grid_spacer(linear)(GridInput { bounds: (low, high), base_step_size });
        let marks = marks.into_iter().filter(|mark| mark.value > 0.0);
        return marks.map(|mark| tick(mark.value, mark.step_size)).collect();
    }
    let decades = from.floor() as i32..=to.ceil() as i32;
    let ticks = decades
        .map(|decade| 10f64.powi(decade))
        .flat_map(|power| (1..10).map(move |nth| tick(f64::from(nth) * power, power)));
    ticks.filter(|mark| mark.step_size > input.base_step_size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{GIB, MIB};

    /// The labels of an axis on a plot of this many points.
    fn labels(
        grid: &dyn Fn(GridInput) -> Vec<GridMark>,
        label: impl Fn(GridMark) -> String,
        bounds: (f64, f64),
        points: f64,
        distance: f64,
    ) -> Vec<String> {
        let scale = points / (bounds.1 - bounds.0);
        let marks = grid(GridInput { bounds, base_step_size: 8.0 / scale });
        let is_labelled = |mark: &GridMark| mark.step_size * scale > distance;
        marks.into_iter().filter(is_labelled).map(label).collect()
    }

    fn x_labels(axis: XAxis, to: f64) -> Vec<String> {
        labels(&axis.grid(), |mark| axis.tick_label(mark), (-0.01 * to, to), 606.0, 70.0)
    }

    fn y_labels(scale: Scale, bounds: (f64, f64), height: f64) -> Vec<String> {
        labels(&scale.grid(), |mark| scale.tick_label(mark), bounds, height, 20.0)
    }

    #[test]
    fn labels_of_the_x_axis_are_round_and_short() {
        assert_eq!(
            x_labels(XAxis::Iterations, 1500.0),
            ["0", "200", "400", "600", "800", "1,000", "1,200", "1,400"]
        );
        assert_eq!(x_labels(XAxis::Tokens, 2.3e6), ["0", "500k", "1.0M", "1.5M", "2.0M"]);
        assert_eq!(x_labels(XAxis::Time, 105.0), ["0", "20s", "40s", "1m", "1m 20s", "1m 40s"]);
        assert_eq!(x_labels(XAxis::Time, 9100.0), ["0", "30m", "1h", "1h 30m", "2h", "2h 30m"]);
        assert!(XAxis::Time.tick_label(GridMark { value: 1e30, step_size: 1e29 }).contains('d'));
        assert_eq!(x_labels(XAxis::Time, 0.42), ["0", "0.1s", "0.2s", "0.3s", "0.4s"]);
        assert_eq!(x_labels(XAxis::Time, 10.5 * DAY), ["0", "2d", "4d", "6d", "8d", "10d"]);
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

    #[test]
    fn labels_of_the_y_axis_are_round_and_short() {
        let linear = |unit| Scale { unit, log: false };
        let loss = y_labels(linear(Unit::Loss), (2.9, 4.1), 240.0);
        assert_eq!(loss, ["3.0", "3.2", "3.4", "3.6", "3.8", "4.0"]);
        let rate = y_labels(linear(Unit::Rate), (-1e-5, 6.3e-4), 240.0);
        assert_eq!(rate, ["0", "1e-4", "2e-4", "3e-4", "4e-4", "5e-4", "6e-4"]);
        let speed = y_labels(linear(Unit::Speed), (-900.0, 16_000.0), 200.0);
        assert_eq!(speed, ["0", "5,000", "10,000", "15,000"]);
        let memory = y_labels(linear(Unit::Bytes), (-0.1 * GIB, 2.1 * GIB), 200.0);
        assert_eq!(memory, ["0", "512.0 MiB", "1.00 GiB", "1.50 GiB", "2.00 GiB"]);
        let little = y_labels(linear(Unit::Bytes), (-MIB, 40.0 * MIB), 200.0);
        assert_eq!(little, ["0", "8.0 MiB", "16.0 MiB", "24.0 MiB", "32.0 MiB"]);
    }

    #[test]
    fn a_logarithmic_axis_has_round_ticks_at_every_zoom() {
        let scale = Scale { unit: Unit::Loss, log: true };
        let wide = y_labels(scale, (0.0, 2.1), 240.0);
        assert!(["1", "2", "10", "20", "100"].iter().all(|tick| wide.contains(&tick.to_string())));
        let near = y_labels(scale, (3.2f64.log10(), 3.4f64.log10()), 480.0);
        assert!(near.contains(&"3.25".into()) || near.contains(&"3.30".into()), "{near:?}");
        for bounds in [(-1.0, 1.0), (0.5, 0.500_001), (-250.0, 250.0)] {
            let base_step_size = (bounds.1 - bounds.0) / 40.0;
            let marks = scale.grid()(GridInput { bounds, base_step_size });
            assert!(marks.len() < 200, "{} for {bounds:?}", marks.len());
        }
        assert_eq!((scale.position(0.0), scale.position(100.0)), (None, Some(2.0)));
    }
}
