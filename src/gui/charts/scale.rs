//! What the numbers on an axis are: where its marks lie, and how they are written.

use egui_plot::{GridInput, GridMark, uniform_grid_spacer};

use crate::config::bytes;

const MIB: f64 = (1u64 << 20) as f64;
const GIB: f64 = (1u64 << 30) as f64;

/// Marks with a number are so many times further apart than the closest lines of a grid: numbers
/// of iterations are wide, those beside the y axis are not high.
const WIDE: f64 = 10.0;
const HIGH: f64 = 4.0;

/// What the values of a curve are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nats per token.
    Loss,
    /// A learning rate.
    Rate,
    /// The norm of a gradient.
    Norm,
    /// Tokens a second.
    Speed,
    /// Bytes of memory.
    Bytes,
}

/// A y axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub unit: Unit,
    /// Whether the logarithm to base 10 is drawn.
    pub log: bool,
}

impl Scale {
    /// Where a value is drawn; `None` where a logarithmic axis has no place for it.
    pub fn place(self, value: f64) -> Option<f64> {
        match self.log {
            true => (value > 0.0).then(|| value.log10()),
            false => Some(value),
        }
    }

    /// A value in full.
    pub fn value(self, value: f64) -> String {
        match self.unit {
            Unit::Loss => format!("{value:.4}"),
            Unit::Rate => format!("{value:.3e}"),
            Unit::Norm => format!("{value:.3}"),
            Unit::Speed => grouped(value, 0),
            Unit::Bytes => bytes(value.max(0.0) as u64),
        }
    }

    /// What is written beside a mark, in as few digits as tell it from the next one.
    pub fn mark(self, mark: GridMark) -> String {
        let (value, step) = match self.log {
            true => {
                let value = 10f64.powf(mark.value);
                (value, value * (10f64.powf(mark.step_size) - 1.0))
            }
            false => (mark.value, mark.step_size),
        };
        // The margin below a curve that starts at 0 means nothing.
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

    /// The marks of the visible part.
    pub fn grid(self) -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
        match (self.unit, self.log) {
            (_, true) => Box::new(log_marks),
            (Unit::Bytes, _) => Box::new(uniform_grid_spacer(|input| {
                let named = 2f64.powf((HIGH * input.base_step_size).log2().ceil());
                [named / 4.0, named, named]
            })),
            _ => Box::new(uniform_grid_spacer(|input| steps(HIGH * input.base_step_size))),
        }
    }
}

/// The marks of an axis with iterations.
pub(super) fn iterations() -> Box<dyn Fn(GridInput) -> Vec<GridMark>> {
    Box::new(uniform_grid_spacer(|input| steps(WIDE * input.base_step_size)))
}

/// The number of an iteration; empty between two of them.
pub(super) fn iteration(value: f64) -> String {
    if value < 0.0 || value.fract() != 0.0 { String::new() } else { grouped(value, 0) }
}

/// With a comma between thousands.
pub(in crate::gui) fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::with_capacity(text.len() + text.len() / 3);
    for (at, digit) in text.char_indices() {
        let left = whole.saturating_sub(at);
        if at > 0 && left > 0 && left.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Decimals that tell multiples of `step` apart.
fn decimals(step: f64) -> usize {
    (-step.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize
}

/// The same where `step` is a power of two: 0.25 takes two decimals.
fn binary_decimals(step: f64) -> usize {
    (-step.log2() - 1e-9).ceil().clamp(0.0, 6.0) as usize
}

/// The least of 1, 2 and 5 times a power of ten that is `least` or more, with a finer step below it
/// and none above: larger marks would be written with fewer decimals than those between them.
fn steps(least: f64) -> [f64; 3] {
    let power = 10f64.powf(least.log10().floor());
    let is_enough = |times: &&f64| **times * power >= least * (1.0 - 1e-9);
    let times = [1.0, 2.0, 5.0].iter().find(is_enough).copied().unwrap_or(10.0);
    let parts = if times == 2.0 { 4.0 } else { 5.0 };
    [times * power / parts, times * power, times * power]
}

/// Marks at round values of 10^y, from decades down to as fine as there is room for.
fn log_marks(input: GridInput) -> Vec<GridMark> {
    let visible = [input.bounds.0.max(-300.0), input.bounds.1.min(300.0)];
    let mut marks = Vec::new();
    let mut decade = visible[0].floor();
    while decade <= visible[1] {
        let power = 10f64.powf(decade);
        divide(&mut marks, [power, power, 9.0], visible, input.base_step_size, 0);
        decade += 1.0;
    }
    marks
}

/// Adds a mark at `start` and after each `step` up to `count` of them, and between these where a
/// tenth of a step is more than `least`.
fn divide(
    marks: &mut Vec<GridMark>,
    [start, step, count]: [f64; 3],
    visible: [f64; 2],
    least: f64,
    depth: u32,
) {
    for nth in 0..count as u32 {
        let value = start + f64::from(nth) * step;
        let (place, next) = (value.log10(), (value + step).log10());
        if next < visible[0] || place > visible[1] || next - place < least {
            continue;
        }
        // Below the coarsest level the first mark is one of the level above.
        if depth == 0 || nth > 0 {
            marks.push(GridMark { value: place, step_size: next - place });
        }
        if next - (value + 0.9 * step).log10() > least && depth < 9 {
            divide(marks, [value, step / 10.0, 10.0], visible, least, depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(scale: Scale, bounds: (f64, f64), height: f64) -> Vec<String> {
        let base_step_size = (bounds.1 - bounds.0) / height * 8.0;
        let marks = scale.grid()(GridInput { bounds, base_step_size });
        let is_named = |mark: &&GridMark| mark.step_size * height / (bounds.1 - bounds.0) > 20.0;
        marks.iter().filter(is_named).map(|mark| scale.mark(*mark)).collect()
    }

    #[test]
    fn marks_are_round_and_written_short() {
        let linear = |unit| Scale { unit, log: false };
        let loss = written(linear(Unit::Loss), (2.9, 4.1), 240.0);
        assert_eq!(loss, ["3.0", "3.2", "3.4", "3.6", "3.8", "4.0"]);
        let rate = written(linear(Unit::Rate), (-1e-5, 6.3e-4), 240.0);
        assert_eq!(rate, ["0", "1e-4", "2e-4", "3e-4", "4e-4", "5e-4", "6e-4"]);
        let speed = written(linear(Unit::Speed), (-900.0, 16_000.0), 200.0);
        assert_eq!(speed, ["0", "5,000", "10,000", "15,000"]);
        let memory = written(linear(Unit::Bytes), (-0.1 * GIB, 2.1 * GIB), 200.0);
        assert_eq!(memory, ["0", "0.5 GiB", "1.0 GiB", "1.5 GiB", "2.0 GiB"]);
        let little = written(linear(Unit::Bytes), (-MIB, 40.0 * MIB), 200.0);
        assert_eq!(little, ["0", "8 MiB", "16 MiB", "24 MiB", "32 MiB"]);
    }

    #[test]
    fn a_logarithmic_axis_has_round_numbers_however_far_it_is_zoomed() {
        let scale = Scale { unit: Unit::Loss, log: true };
        let wide = written(scale, (0.0, 2.1), 240.0);
        assert!(["1", "2", "10", "20", "100"].iter().all(|mark| wide.contains(&mark.to_string())));
        let near = written(scale, (3.2f64.log10(), 3.4f64.log10()), 480.0);
        assert!(near.contains(&"3.25".into()) || near.contains(&"3.30".into()), "{near:?}");
        for bounds in [(-1.0, 1.0), (0.5, 0.500_001), (-250.0, 250.0)] {
            let base_step_size = (bounds.1 - bounds.0) / 40.0;
            let marks = scale.grid()(GridInput { bounds, base_step_size });
            assert!(marks.len() < 200, "{} for {bounds:?}", marks.len());
        }
        assert_eq!((scale.place(0.0), scale.place(100.0)), (None, Some(2.0)));
    }

    #[test]
    fn thousands_are_grouped() {
        for (value, decimals, text) in
            [(0.0, 0, "0"), (999.0, 0, "999"), (1234.5, 1, "1,234.5"), (-1e6, 0, "-1,000,000")]
        {
            assert_eq!(grouped(value, decimals), text);
        }
        assert_eq!((iteration(20_000.0), iteration(0.5)), ("20,000".into(), String::new()));
    }
}
