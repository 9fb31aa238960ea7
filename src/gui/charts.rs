//! Charts of the displayed run, with other runs overlaid for comparison.

mod plot;
mod scale;

use std::path::PathBuf;

use eframe::egui;
use egui_plot::Corner;
use serde::{Deserialize, Serialize};

use self::plot::{Chart, Curve, ReferenceLine, View};
pub(super) use self::scale::group_thousands;
use self::scale::{Scale, Unit};
use super::theme;
use crate::config::bytes;
use crate::progress::{Progress, Series, Smoothed, State};

/// Opacity of a raw curve that is drawn behind its moving average.
const FAINT: f32 = 0.35;

/// A run whose curves are drawn next to those of the displayed one.
pub(super) struct Overlay {
    /// The name in the legend.
    pub name: String,
    /// The source of its curves.
    pub progress: Progress,
}

/// View settings that all charts share, saved between sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ChartState {
    /// Draw the loss on a logarithmic axis.
    log: bool,
    /// Weight of earlier values in the moving average of the loss; 0 for no smoothing.
    smoothing: f64,
    view: View,
    /// Moving averages of the displayed run and then of each overlay, computed with weight
    /// `averaged`.
    #[serde(skip)]
    averages: Vec<Smoothed>,
    #[serde(skip)]
    averaged: f64,
    /// The run drawn last. The view is reset when another one is displayed.
    #[serde(skip)]
    run: Option<PathBuf>,
}

impl Default for ChartState {
    fn default() -> Self {
        Self {
            log: false,
            smoothing: 0.9,
            view: View::default(),
            averages: Vec::new(),
            averaged: 0.0,
            run: None,
        }
    }
}

/// Draws training and validation loss, with the lowest possible loss where it is known.
pub(super) fn loss(
    ui: &mut egui::Ui,
    progress: &Progress,
    overlays: &[&Overlay],
    state: &mut ChartState,
) {
    let curves = &progress.curves;
    let raw: Vec<&Series> = std::iter::once(&curves.loss)
        .chain(overlays.iter().map(|overlay| &overlay.progress.curves.loss))
        .collect();
    if raw.iter().all(|series| series.is_empty()) && curves.eval_val.is_empty() {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    state.controls(ui);
    let scale = Scale { unit: Unit::Loss, log: state.log };
    let mut chart = Chart { legend: Some(Corner::RightTop), ..chart("loss", scale, progress) };
    if state.averaged != state.smoothing {
        state.averages.clear();
        state.averaged = state.smoothing;
    }
    let smooth = state.smoothing > 0.0;
    let count = if smooth { raw.len() } else { 0 };
    state.averages.resize_with(count, || Smoothed::new(state.smoothing));
    let mut averages =
        state.averages.iter_mut().zip(&raw).map(|(average, raw)| average.follow(raw));

    let color = theme::series_color(ui, 0);
    chart.curves.push(Curve::new("training", raw[0], color));
    if let Some(average) = averages.next() {
        chart.curves[0].color = color.gamma_multiply(FAINT);
        chart.curves[0].width = 1.0;
        let hover_name = Some("training, smoothed".into());
        chart.curves.push(Curve { hover_name, ..Curve::new("training", average, color) });
    }
    let validation = Curve::new("validation", &curves.eval_val, theme::series_color(ui, 1));
    chart.curves.push(Curve { dots: true, ..validation });
    for (index, overlay) in overlays.iter().enumerate() {
        let series = averages.next().unwrap_or(raw[index + 1]);
        let line = |series, split: &str| Curve {
            hover_name: Some(format!("{}, {split}", overlay.name)),
            width: 1.0,
            ..Curve::new(overlay.name.as_str(), series, theme::series_color(ui, index + 2))
        };
        chart.overlays.push(line(series, "training"));
        let validation = line(&overlay.progress.curves.eval_val, "validation");
        chart.overlays.push(Curve { dashed: true, ..validation });
    }
    if let Some(value) = progress.entropy_floor {
        let color = ui.visuals().weak_text_color();
        let name = "lowest possible".into();
        chart.references.push(ReferenceLine { name, value, color });
    }
    chart.show(ui, &mut state.view);
}

/// Draws the learning rate and, below it, the gradient norm.
pub(super) fn rate(ui: &mut egui::Ui, progress: &Progress, state: &mut ChartState) {
    let curves = &progress.curves;
    if curves.learning_rate.is_empty() {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    let title_height = ui.text_style_height(&egui::TextStyle::Body) + ui.spacing().item_spacing.y;
    let height =
        (0.5 * ui.available_height() - title_height - ui.spacing().item_spacing.y).max(64.0);
    for (index, (name, unit, series)) in [
        ("learning rate", Unit::Rate, &curves.learning_rate),
        ("gradient norm", Unit::Norm, &curves.grad_norm),
    ]
    .into_iter()
    .enumerate()
    {
        let title = ui.weak(name);
        if unit == Unit::Norm {
            title.on_hover_text("Global norm of the gradient before clipping.");
        }
        let mut chart = chart(name, Scale { unit, log: false }, progress);
        chart.curves.push(Curve::new(name, series, theme::series_color(ui, index)));
        (chart.from_zero, chart.height) = (true, Some(height));
        chart.show(ui, &mut state.view);
    }
}

/// Draws the training speed in tokens per second.
pub(super) fn speed(ui: &mut egui::Ui, progress: &Progress, state: &mut ChartState) {
    let series = &progress.curves.tokens_per_s;
    if series.is_empty() {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    ui.weak("tokens per second");
    let mut chart = chart("speed", Scale { unit: Unit::Speed, log: false }, progress);
    chart.curves.push(Curve::new("tokens per second", series, theme::series_color(ui, 0)));
    chart.from_zero = true;
    chart.show(ui, &mut state.view);
}

/// Draws the device memory in use, its peak, the predicted need and the budget.
pub(super) fn memory(ui: &mut egui::Ui, progress: &Progress, state: &mut ChartState) {
    let curves = &progress.curves;
    if curves.memory.is_empty() && !curves.loss.is_empty() {
        ui.weak("This run does not use a graphics card, so it has no graphics memory to show.");
        return;
    }
    if curves.memory.is_empty() {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    ui.weak("graphics card memory");
    let mut chart = chart("memory", Scale { unit: Unit::Bytes, log: false }, progress);
    let peak = Curve::new("peak", &curves.memory_peak, theme::series_color(ui, 1));
    chart.curves.push(Curve { width: 1.0, ..peak });
    chart.curves.push(Curve::new("in use", &curves.memory, theme::series_color(ui, 0)));
    if let Some(forecast) = &progress.forecast {
        let mut add = |name: &str, value: u64, color| {
            let name = format!("{name} {}", bytes(value));
            chart.references.push(ReferenceLine { name, value: value as f64, color });
        };
        add("predicted", forecast.predicted_bytes, ui.visuals().weak_text_color());
        if let Some(budget) = forecast.budget_bytes {
            add("budget", budget, theme::warning(ui));
        }
    }
    // Memory in use is seldom near 0, so a legend at the bottom covers no curve.
    (chart.from_zero, chart.legend) = (true, Some(Corner::RightBottom));
    chart.show(ui, &mut state.view);
}

impl ChartState {
    /// Shows everything when another run is displayed: the old range means nothing for it.
    fn reset_view_for_new_run(&mut self, ui: &egui::Ui, progress: &Progress) {
        if self.run != progress.run {
            self.run.clone_from(&progress.run);
            self.view.fit(ui.ctx());
        }
    }

    fn controls(&mut self, ui: &mut egui::Ui) {
        ui.horizontal_wrapped(|ui| {
            ui.checkbox(&mut self.log, "log").on_hover_text(
                "Logarithmic loss axis: small improvements late in a run stay visible.",
            );
            ui.spacing_mut().slider_width = 80.0;
            let smoothing = egui::Slider::new(&mut self.smoothing, 0.0..=0.99).fixed_decimals(2);
            ui.add(smoothing.text("smoothing")).on_hover_text(
                "Weight of earlier values in the moving average; 0 for none. The raw values stay \
                 visible behind it.",
            );
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
}

fn chart<'a>(name: &'static str, scale: Scale, progress: &Progress) -> Chart<'a> {
    Chart {
        name,
        scale,
        curves: Vec::new(),
        overlays: Vec::new(),
        references: Vec::new(),
        from_zero: false,
        legend: None,
        height: None,
        newest: progress.curves.loss.last().map_or(0.0, |[x, _]| x),
    }
}

/// Explains why the chart is empty.
fn placeholder(ui: &mut egui::Ui, progress: &Progress) {
    ui.weak(match progress.state {
        State::Idle => "No run yet. Start one on the left.",
        State::Starting => "The run is starting. Curves appear with its first iterations.",
        State::Finished(_) | State::Interrupted | State::Failed { .. } => {
            "The run ended before there was anything to plot. The log has the reason."
        }
        _ => "Nothing to plot yet. Curves appear with the first iterations.",
    });
}
