//! The y axis: the positions of ticks and the text of their labels.

use crate::text::{bytes, grouped};
use egui_plot::{GridInput, GridMark, uniform_grid_spacer};

const MIB: f64 = (1u64 << 20) as f64;
const GIB: f64 = (1u64 << 30) as f64;

/// Least distance of labelled ticks, in the smallest grid steps that egui_plot draws: labels of the
/// y axis are only a line high.
const LABEL_STEPS: f64 = 4.0;

/// The unit of a curve's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nats per token.
    Loss,
    /// A learning rate.
    Rate,
    /// The norm of a gradient.
    Norm,
    /// Tokens per second.
    Speed,
    /// Bytes of memory.
    Bytes,
}

/// A y axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub unit: Unit,
    /// Draw the logarithm to base 10.
    pub log: bool,
}

impl Scale {
    /// Returns the plot coordinate of a value; `None` for 0 and below on a logarithmic axis.
    pub fn position(self, value: f64) -> Option<f64> {
        match self.log {
            true => (value > 0.0).then(|| value.log10()),
            false => Some(value),
        }
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
        let (value, step) = match self.log {
            true => {
                let value = 10f64.powf(mark.value);
                (value, value * (10f64.powf(mark.step_size) - 1.0))
            }
            false => (mark.value, mark.step_size),
        };
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
            Unit::Bytes if step < GIB / 16.0 && value < 4.0 * GIB => {
                format!("{} MiB", grouped(value / MIB, decimals(step / MIB)))
            }
            Unit::Bytes => format!("{:.*} GiB", binary_decimals(step / GIB), value / GIB),
            _ => grouped(value, decimals(step)),
        }
    }

    /// Returns the function that places the ticks of the y axis.
    pub fn grid(self) -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
        match (self.unit, self.log) {
            (_, true) => Box::new(log_ticks),
            (Unit::Bytes, _) => Box::new(uniform_grid_spacer(|input| {
                let labelled = 2f64.powf((LABEL_STEPS * input.base_step_size).log2().ceil());
                [labelled / 4.0, labelled, labelled]
            })),
            _ => Box::new(uniform_grid_spacer(|input| {
                decimal_steps(LABEL_STEPS * input.base_step_size)
            })),
        }
    }
}

/// Returns the number of decimals that multiples of `step` need to differ.
pub(super) fn decimals(step: f64) -> usize {
    (-step.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize
}

/// Returns the same for a `step` that is a power of two: 0.25 needs two decimals.
fn binary_decimals(step: f64) -> usize {
    (-step.log2() - 1e-9).ceil().clamp(0.0, 6.0) as usize
}

/// Returns the steps that `uniform_grid_spacer` takes: an unlabelled fine step, then the labelled
/// one, the smallest of 1, 2 and 5 times a power of ten that is at least `least`. The coarsest step
/// repeats it: labels of a coarser one would have fewer decimals than those between them.
pub(super) fn decimal_steps(least: f64) -> [f64; 3] {
    let power = 10f64.powf(least.log10().floor());
    let is_wide_enough = |times: &&f64| **times * power >= least * (1.0 - 1e-9);
    let times = [1.0, 2.0, 5.0].iter().find(is_wide_enough).copied().unwrap_or(10.0);
    let parts = if times == 2.0 { 4.0 } else { 5.0 };
    [times * power / parts, times * power, times * power]
}

/// Places ticks at round values of 10^y, from decades down to the finest that fit.
fn log_ticks(input: GridInput) -> Vec<GridMark> {
    let visible = [input.bounds.0.max(-300.0), input.bounds.1.min(300.0)];
    let mut ticks = Vec::new();
    let mut decade = visible[0].floor();
    while decade <= visible[1] {
        let power = 10f64.powf(decade);
        subdivide(&mut ticks, [power, power, 9.0], visible, input.base_step_size, 0);
        decade += 1.0;
    }
    ticks
}

/// Adds `count` ticks, `step` apart from `start` on, and finer ones between them where a tenth of a
/// step is drawn larger than `least`.
fn subdivide(
    ticks: &mut Vec<GridMark>,
    [start, step, count]: [f64; 3],
    visible: [f64; 2],
    least: f64,
    depth: u32,
) {
    for nth in 0..count as u32 {
        let value = start + f64::from(nth) * step;
        let (position, next) = (value.log10(), (value + step).log10());
        if next < visible[0] || position > visible[1] || next - position < least {
            continue;
        }
        // Below the coarsest level, the first tick already belongs to the level above.
        if depth == 0 || nth > 0 {
            ticks.push(GridMark { value: position, step_size: next - position });
        }
        if next - (value + 0.9 * step).log10() > least && depth < 9 {
            subdivide(ticks, [value, step / 10.0, 10.0], visible, least, depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(memory, ["0", "0.5 GiB", "1.0 GiB", "1.5 GiB", "2.0 GiB"]);
        let little = labels(linear(Unit::Bytes), (-MIB, 40.0 * MIB), 200.0);
        assert_eq!(little, ["0", "8 MiB", "16 MiB", "24 MiB", "32 MiB"]);
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
