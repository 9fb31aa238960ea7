//! Charts of the shown run, with other runs overlaid for comparison.

mod axes;
mod plot;
mod ribbon;

use std::f64::consts::LN_2;

use eframe::egui::{Color32, RichText, Ui};
use egui_plot::{Corner, PlotPoint};

use self::axes::{Scale, Unit};
use self::plot::{Chart, Curve, ReferenceLine};
use self::ribbon::{RibbonSpace, SampleMark};
use crate::gui::intent::Intent;
use crate::gui::state::{ChartState, Overlay, Shared, XAxis};
use crate::gui::theme;
use crate::gui::widgets::combo;
use crate::plan::{DeviceHealth, Throttle};
use crate::protocol::{Progress, RunPhase, Series, Smoothed, automatic_half_life};
use crate::text::{bytes, grouped};

/// Opacity of a raw curve that is drawn behind its moving average.
const FAINT: f32 = 0.35;

/// Half-lives of the moving average that can be chosen, in iterations.
const HALF_LIVES: [Option<u32>; 5] = [None, Some(0), Some(10), Some(100), Some(1000)];

/// Draws training and validation loss, with the lowest possible loss where it is known, below the
/// samples.
pub(super) fn loss(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { settings, shown, library, samples, .. } = shared;
    let progress = &shown.progress;
    let overlays = &library.overlays;
    let state = &mut settings.charts;
    let runs = || std::iter::once(progress).chain(overlays.iter().map(|overlay| &overlay.progress));
    let raw: Vec<&Series> = runs().map(|run| &run.curves.loss).collect();
    let validation = &progress.curves.eval_val;
    state.begin(ui, progress, raw.iter().chain([&validation]).all(|series| series.is_empty()))?;
    let is_per_byte = tokenizers_differ(runs());
    let factor = |run: &Progress| match run.bytes_per_token.filter(|_| is_per_byte) {
        Some(bytes) => 1.0 / (bytes * LN_2),
        None => 1.0,
    };
    state.controls(ui, is_per_byte);
    let ChartState { averages, view, log, axis, .. } = state;
    let averages = follow(averages, state.half_life, &raw);
    let mut chart = Chart::new("loss", Unit::Loss, *axis, progress);
    chart.scale.log = *log;
    chart.legend = Some(Corner::RightTop);
    let color = theme::series_color(ui, 0);
    let own = factor(progress);
    // Next to other runs, the curves of the shown run also have its name.
    let name = progress.run.as_deref().filter(|_| !overlays.is_empty());
    let name = name.map(|run| format!("{} ", library.title(run))).unwrap_or_default();
    let names = ["training", "validation"].map(|split| format!("{name}{split}"));
    let training = chart.add(&names[0], raw[0], color);
    training.factor = own;
    if let Some(average) = averages.first() {
        // The raw loss is faint behind its average.
        training.color = color.gamma_multiply(FAINT);
        training.width = 1.0;
        let smoothed = chart.add(&names[0], average, color);
        smoothed.factor = own;
        smoothed.hover_name = format!("{}, smoothed", names[0]);
    }
    let curve = chart.add(&names[1], validation, theme::series_color(ui, 1));
    curve.factor = own;
    curve.dots = true;
    for (nth, Overlay { name, progress, .. }) in (1..).zip(overlays) {
        let curves = &progress.curves;
        let color = theme::series_color(ui, nth + 1);
        let factor = factor(progress);
        let training = averages.get(nth).unwrap_or(&raw[nth]);
        for (series, split, dashed) in
            [(*training, "training", false), (&curves.eval_val, "validation", true)]
        {
            let hover_name = format!("{name}, {split}");
            let curve = Curve::new(name, series, axis.count(curves), color);
            chart.overlays.push(Curve { hover_name, factor, width: 1.0, dashed, ..curve });
        }
    }
    if let Some(value) = progress.entropy_floor {
        let color = ui.visuals().weak_text_color();
        let name = "lowest possible".into();
        chart.references.push(ReferenceLine { name, value: own * value, color });
    }
    let marks = marks(progress, *axis, chart.scale, own);
    let space = if marks.is_empty() { None } else { RibbonSpace::allocate(ui) };
    if let Some(drawn) = chart.show(ui, view) {
        ribbon::show(ui, space, &drawn, &marks, &mut samples.selection);
    }
    None
}

/// Returns true if the tokens of these runs stand for different numbers of bytes, all known: their losses
/// per token cannot be compared.
fn tokenizers_differ<'a>(mut runs: impl Iterator<Item = &'a Progress>) -> bool {
    let Some(first) = runs.next().and_then(|run| run.bytes_per_token) else { return false };
    let others: Option<Vec<f64>> = runs.map(|run| run.bytes_per_token).collect();
    others.is_some_and(|others| others.iter().any(|bytes| (bytes / first - 1.0).abs() > 1e-6))
}

/// Returns the moving averages of training losses, all with the same half-life; none if that is 0.
fn follow<'a>(
    averages: &'a mut Vec<Smoothed>,
    half_life: Option<u32>,
    raw: &[&Series],
) -> Vec<&'a Series> {
    let newest =
        raw.iter().filter_map(|series| series.last()).fold(0.0, |most, [x, _]| x.max(most));
    let half_life = half_life.map_or_else(|| automatic_half_life(newest), f64::from);
    averages.resize_with(if half_life > 0.0 { raw.len() } else { 0 }, Smoothed::default);
    averages.iter_mut().zip(raw).map(|(average, raw)| average.follow(raw, half_life)).collect()
}

/// Returns the samples of a run and their places on its validation curve, or on its training curve
/// before the first evaluation.
fn marks(progress: &Progress, axis: XAxis, scale: Scale, factor: f64) -> Vec<SampleMark<'_>> {
    let curves = &progress.curves;
    let line = if curves.eval_val.is_empty() { &curves.loss } else { &curves.eval_val };
    let place = |iter: f64| {
        let loss = line.interpolate(iter).and_then(|loss| scale.position(factor * loss));
        PlotPoint::new(axis.place(curves, iter), loss.unwrap_or_default())
    };
    let samples = progress.samples.iter();
    samples.map(|sample| SampleMark { sample, place: place(sample.iter as f64) }).collect()
}

pub(super) fn rate(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let progress = &shared.shown.progress;
    let state = &mut shared.settings.charts;
    let curves = &progress.curves;
    state.begin(ui, progress, curves.learning_rate.is_empty())?;
    let gap = ui.spacing().item_spacing.y;
    let title_height = ui.spacing().interact_size.y + gap;
    let height = (0.5 * ui.available_height() - title_height - gap).max(64.0);
    let show = |ui: &mut Ui, state: &mut ChartState, name, unit, series, index| {
        let mut chart = Chart::new(name, unit, state.axis, progress);
        chart.add(name, series, theme::series_color(ui, index));
        chart.height = Some(height);
        chart.show(ui, &mut state.view);
    };
    state.title(ui, "learning rate");
    show(ui, state, "learning rate", Unit::Rate, &curves.learning_rate, 0);
    ui.weak("gradient norm").on_hover_text("Global norm of the gradient before clipping.");
    show(ui, state, "gradient norm", Unit::Norm, &curves.grad_norm, 1);
    None
}

pub(super) fn speed(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let progress = &shared.shown.progress;
    let state = &mut shared.settings.charts;
    let series = &progress.curves.tokens_per_s;
    state.begin(ui, progress, series.is_empty())?;
    state.title(ui, "tokens per second");
    health(ui, progress);
    let mut chart = Chart::new("speed", Unit::Speed, state.axis, progress);
    chart.add("tokens per second", series, theme::series_color(ui, 0));
    chart.show(ui, &mut state.view);
    None
}

/// Returns the color of a device's health: `usual`, unless the device is slowed down.
pub(super) fn health_color(ui: &Ui, health: DeviceHealth, usual: Color32) -> Color32 {
    let is_slowed = health.throttled.is_some_and(|reason| reason != Throttle::PowerLimit);
    if is_slowed { theme::warning(ui) } else { usual }
}

/// Writes what the system reported last of the device of an active run, if it did.
fn health(ui: &mut Ui, progress: &Progress) {
    let now = progress.last_step.as_ref().filter(|_| !progress.has_ended());
    let Some(health) = now.and_then(|step| step.health) else { return };
    let text = RichText::new(format!("GPU: {health}"));
    let color = health_color(ui, health, ui.visuals().weak_text_color());
    ui.label(text.color(color)).on_hover_text(
        "Utilization, temperature, power and clock at the last log line, as far as the system reports \
         them.",
    );
}

pub(super) fn memory(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let progress = &shared.shown.progress;
    let state = &mut shared.settings.charts;
    let curves = &progress.curves;
    if curves.memory.is_empty() && !curves.loss.is_empty() {
        ui.weak("This run does not use a GPU, so it has no GPU memory to show.");
        return None;
    }
    state.begin(ui, progress, curves.memory.is_empty())?;
    state.title(ui, "GPU memory");
    health(ui, progress);
    let mut chart = Chart::new("memory", Unit::Bytes, state.axis, progress);
    chart.add("peak", &curves.memory_peak, theme::series_color(ui, 1)).width = 1.0;
    chart.add("in use", &curves.memory, theme::series_color(ui, 0));
    if let Some(forecast) = &progress.forecast {
        let predicted = Some(forecast.predicted_bytes);
        for (name, value, color) in [
            ("predicted", predicted, ui.visuals().weak_text_color()),
            ("budget", forecast.budget_bytes, theme::warning(ui)),
        ] {
            let Some(value) = value else { continue };
            let name = format!("{name} {}", bytes(value));
            chart.references.push(ReferenceLine { name, value: value as f64, color });
        }
    }
    // Memory in use is seldom near 0, so a legend at the bottom covers no curve.
    chart.legend = Some(Corner::RightBottom);
    chart.show(ui, &mut state.view);
    None
}

impl ChartState {
    /// Begins a panel of charts. `None` if it is empty, which is explained.
    fn begin(&mut self, ui: &mut Ui, progress: &Progress, is_empty: bool) -> Option<()> {
        if is_empty {
            ui.weak(match progress.state {
                RunPhase::Starting => {
                    "The run is starting. Curves appear with its first iterations."
                }
                _ if progress.has_ended() => {
                    "The run ended before there was anything to plot. The log has the reason."
                }
                _ => "Nothing to plot yet. Curves appear with the first iterations.",
            });
            return None;
        }
        // The old range means nothing for another run.
        if self.run != progress.run {
            self.run.clone_from(&progress.run);
            self.view.fit(ui.ctx());
        }
        Some(())
    }

    fn controls(&mut self, ui: &mut Ui, is_per_byte: bool) {
        ui.horizontal_wrapped(|ui| {
            if is_per_byte {
                ui.strong("bits per byte").on_hover_text(
                    "These runs split text into different tokens, so their losses per token cannot \
                     be compared.",
                );
            }
            ui.checkbox(&mut self.log, "log").on_hover_text(
                "Logarithmic loss axis: small improvements late in a run stay visible.",
            );
            let text = |half_life: Option<u32>| match half_life {
                None => "auto".into(),
                Some(0) => "none".into(),
                Some(iterations) => grouped(f64::from(iterations), 0),
            };
            let help = "Half-life of the moving average in iterations: a value that many \
                        iterations old counts half. auto grows with the run. The raw values stay \
                        visible behind it.";
            combo(ui, "smoothing", 48.0, (&mut self.half_life, &HALF_LIVES), text, help);
            self.select_axis(ui);
            ui.checkbox(&mut self.view.follow, "follow")
                .on_hover_text("Keep the newest iteration in view while zoomed in.");
            let fit = ui.button("Fit").on_hover_text(
                "Show everything; a double-click does the same. Scroll to zoom, drag to pan, drag \
                 with the right button to zoom in on a box.",
            );
            if fit.clicked() {
                self.view.fit(ui.ctx());
            }
        });
    }

    /// Draws the title of a chart that has no other controls than the x axis.
    fn title(&mut self, ui: &mut Ui, title: &str) {
        ui.horizontal(|ui| {
            ui.weak(title);
            self.select_axis(ui);
        });
    }

    fn select_axis(&mut self, ui: &mut Ui) {
        let before = self.axis;
        let help = "The x axis of all charts. Training time is the time of updates in all processes \
                    of the run, without evaluations, samples, checkpoints and pauses.";
        let axis = (&mut self.axis, &XAxis::ALL[..]);
        combo(ui, "over", 60.0, axis, |axis| axis.name().into(), help);
        if self.axis != before {
            // The old range means nothing on another axis.
            self.view.fit(ui.ctx());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_per_byte_where_tokens_differ() {
        let run = |bytes_per_token| Progress { bytes_per_token, ..Progress::default() };
        let differ = |of: &[Option<f64>]| {
            let runs: Vec<Progress> = of.iter().map(|bytes| run(*bytes)).collect();
            tokenizers_differ(runs.iter())
        };
        assert!(!differ(&[Some(1.0)]) && !differ(&[Some(3.5), Some(3.5)]));
        assert!(differ(&[Some(1.0), Some(1.0), Some(3.5)]));
        assert!(!differ(&[Some(1.0), None]) && !differ(&[None, Some(1.0)]));
    }
}
