//! The y axis: the positions of ticks and the text of their labels.

use egui_plot::{GridInput, GridMark, uniform_grid_spacer};

use crate::text::{bytes, grouped};

/// Minimum distance of labelled ticks, in the smallest grid steps that egui_plot draws. Labels of the
/// y axis are only one line high.
const LABEL_STEPS: f64 = 4.0;

/// The unit of a curve's values.
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
    /// Draw the logarithm to base 10.
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
        let (mut value, mut step) = (mark.value, mark.step_size);
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

    /// Returns the function that places the ticks of the y axis.
    pub fn grid(self) -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
        if self.log {
            return Box::new(log_ticks);
        }
        uniform_grid_spacer(move |input| {
            let least = LABEL_STEPS * input.base_step_size;
            if self.unit == Unit::Bytes {
                let labelled = 2f64.powf(least.log2().ceil());
                return [labelled / 4.0, labelled, labelled];
            }
            decimal_steps(least)
        })
    }
}

/// Returns the number of decimals that multiples of `step` need to differ.
pub(super) fn decimals(step: f64) -> usize {
    (-step.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize
}

/// Returns the steps that `uniform_grid_spacer` takes: an unlabelled fine step, then the labelled
/// one, the smallest of 1, 2 and 5 times a power of ten that is at least `least`. The coarsest step
/// repeats it, because labels of a coarser step would have fewer decimals than the others.
pub(super) fn decimal_steps(least: f64) -> [f64; 3] {
    let power = 10f64.powf(least.log10().floor());
    let is_wide_enough = |times: &&f64| **times * power >= least * (1.0 - 1e-9);
    let times = [1.0, 2.0, 5.0].iter().find(is_wide_enough).copied().unwrap_or(10.0);
    let parts = if times == 2.0 { 4.0 } else { 5.0 };
    [times * power / parts, times * power, times * power]
}

/// Places ticks at round values of 10^y: at 1 to 9 times each power of ten or, within less than a
/// decade, as on a linear axis.
fn log_ticks(input: GridInput) -> Vec<GridMark> {
    let (from, to) = (input.bounds.0.max(-300.0), input.bounds.1.min(300.0));
    let [low, high] = [from, to].map(|exponent| 10f64.powf(exponent));
    let tick = |value: f64, step: f64| GridMark {
        value: value.log10(),
        step_size: ((value + step) / value).log10(),
    };
    if to - from < 1.0 {
        let base_step_size = input.base_step_size / (to - from) * (high - low);
        let linear = |input: GridInput| decimal_steps(LABEL_STEPS * input.base_step_size);
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

    const MIB: f64 = (1u64 << 20) as f64;
    const GIB: f64 = (1u64 << 30) as f64;

    fn labels(scale: Scale, bounds: (f64, f64), height: f64) -> Vec<String> {
        let base_step_size = (bounds.1 - bounds.0) / height * 8.0;
        let marks = scale.grid()(GridInput { bounds, base_step_size });
        let is_labelled = |mark: &&GridMark| mark.step_size * height / (bounds.1 - bounds.0) > 20.0;
        marks.iter().filter(is_labelled).map(|mark| scale.tick_label(*mark)).collect()
    }

    #[test]
    fn tick_labels_are_round_and_short() {
        let linear = |unit| Scale { unit, log: false };
        let loss = labels(linear(Unit::Loss), (2.9, 4.1), 240.0);
        assert_eq!(loss, ["3.0", "3.2", "3.4", "3.6", "3.8", "4.0"]);
        let rate = labels(linear(Unit::Rate), (-1e-5, 6.3e-4), 240.0);
        assert_eq!(rate, ["0", "1e-4", "2e-4", "3e-4", "4e-4", "5e-4", "6e-4"]);
        let speed = labels(linear(Unit::Speed), (-900.0, 16_000.0), 200.0);
        assert_eq!(speed, ["0", "5,000", "10,000", "15,000"]);
        let memory = labels(linear(Unit::Bytes), (-0.1 * GIB, 2.1 * GIB), 200.0);
        assert_eq!(memory, ["0", "512.0 MiB", "1.00 GiB", "1.50 GiB", "2.00 GiB"]);
        let little = labels(linear(Unit::Bytes), (-MIB, 40.0 * MIB), 200.0);
        assert_eq!(little, ["0", "8.0 MiB", "16.0 MiB", "24.0 MiB", "32.0 MiB"]);
    }

    #[test]
    fn a_logarithmic_axis_has_round_ticks_at_every_zoom() {
        let scale = Scale { unit: Unit::Loss, log: true };
        let wide = labels(scale, (0.0, 2.1), 240.0);
        assert!(["1", "2", "10", "20", "100"].iter().all(|tick| wide.contains(&tick.to_string())));
        let near = labels(scale, (3.2f64.log10(), 3.4f64.log10()), 480.0);
        assert!(near.contains(&"3.25".into()) || near.contains(&"3.30".into()), "{near:?}");
        for bounds in [(-1.0, 1.0), (0.5, 0.500_001), (-250.0, 250.0)] {
            let base_step_size = (bounds.1 - bounds.0) / 40.0;
            let marks = scale.grid()(GridInput { bounds, base_step_size });
            assert!(marks.len() < 200, "{} for {bounds:?}", marks.len());
        }
        assert_eq!((scale.position(0.0), scale.position(100.0)), (None, Some(2.0)));
    }
}
