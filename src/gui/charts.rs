//! Curves of the run, and of others beside it.

mod plot;
mod scale;

use std::path::PathBuf;

use eframe::egui;
use egui_plot::Corner;
use serde::{Deserialize, Serialize};

use self::plot::{Chart, Curve, Mark, View};
pub(super) use self::scale::grouped;
use self::scale::{Scale, Unit};
use super::theme;
use crate::config::bytes;
use crate::progress::{Progress, Series, Smoothed, State};

/// How much of the colour is left of what lies behind its moving average.
const FAINT: f32 = 0.35;

/// A run whose curves are drawn beside those of the present one.
pub(super) struct Overlay {
    /// What it is called in the legend.
    pub name: String,
    /// What it did.
    pub progress: Progress,
}

/// How charts are looked at.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ChartState {
    /// Whether the loss is drawn on a logarithmic axis.
    log: bool,
    /// The weight of what came before in the moving average of the loss; 0 for none.
    smoothing: f64,
    view: View,
    /// The averages, of the run and of the others in their order, and the weight they are for.
    #[serde(skip)]
    averages: Vec<Smoothed>,
    #[serde(skip)]
    averaged: f64,
    /// The run that was drawn last: another one is shown from its beginning.
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

/// The loss in training and on the validation split, with the least that is possible.
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
        return nothing(ui, progress);
    }
    state.see(ui, progress);
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
    let mut averages = state.averages.iter_mut().zip(&raw).map(|(kept, raw)| kept.follow(raw));

    let color = theme::series_color(ui, 0);
    chart.curves.push(Curve::new("training", raw[0], color));
    if let Some(average) = averages.next() {
        chart.curves[0].color = color.gamma_multiply(FAINT);
        chart.curves[0].width = 1.0;
        let said = Some("training, smoothed".into());
        chart.curves.push(Curve { said, ..Curve::new("training", average, color) });
    }
    let validation = Curve::new("validation", &curves.eval_val, theme::series_color(ui, 1));
    chart.curves.push(Curve { dots: true, ..validation });
    for (index, overlay) in overlays.iter().enumerate() {
        let series = averages.next().unwrap_or(raw[index + 1]);
        let line = |series, what: &str| Curve {
            said: Some(format!("{}, {what}", overlay.name)),
            width: 1.0,
            ..Curve::new(overlay.name.as_str(), series, theme::series_color(ui, index + 2))
        };
        chart.others.push(line(series, "training"));
        let validation = line(&overlay.progress.curves.eval_val, "validation");
        chart.others.push(Curve { dashed: true, ..validation });
    }
    if let Some(value) = progress.entropy_floor {
        let color = ui.visuals().weak_text_color();
        chart.marks.push(Mark { name: "least possible".into(), value, color });
    }
    chart.show(ui, &mut state.view);
}

/// The learning rate, and below it the norm of the gradient.
pub(super) fn rate(ui: &mut egui::Ui, progress: &Progress, state: &mut ChartState) {
    let curves = &progress.curves;
    if curves.learning_rate.is_empty() {
        return nothing(ui, progress);
    }
    state.see(ui, progress);
    let title = ui.text_style_height(&egui::TextStyle::Body) + ui.spacing().item_spacing.y;
    let height = (0.5 * ui.available_height() - title - ui.spacing().item_spacing.y).max(64.0);
    for (index, (name, unit, series)) in [
        ("learning rate", Unit::Rate, &curves.learning_rate),
        ("gradient norm", Unit::Norm, &curves.grad_norm),
    ]
    .into_iter()
    .enumerate()
    {
        let what = ui.weak(name);
        if unit == Unit::Norm {
            what.on_hover_text("The length of the gradient before clipping.");
        }
        let mut chart = chart(name, Scale { unit, log: false }, progress);
        chart.curves.push(Curve::new(name, series, theme::series_color(ui, index)));
        (chart.from_zero, chart.height) = (true, Some(height));
        chart.show(ui, &mut state.view);
    }
}

/// Tokens a second.
pub(super) fn speed(ui: &mut egui::Ui, progress: &Progress, state: &mut ChartState) {
    let series = &progress.curves.tokens_per_s;
    if series.is_empty() {
        return nothing(ui, progress);
    }
    state.see(ui, progress);
    ui.weak("tokens a second");
    let mut chart = chart("speed", Scale { unit: Unit::Speed, log: false }, progress);
    chart.curves.push(Curve::new("tokens a second", series, theme::series_color(ui, 0)));
    chart.from_zero = true;
    chart.show(ui, &mut state.view);
}

/// Memory of the card that the run holds, beside what it was expected to and what it may.
pub(super) fn memory(ui: &mut egui::Ui, progress: &Progress, state: &mut ChartState) {
    let curves = &progress.curves;
    if curves.memory.is_empty() && !curves.loss.is_empty() {
        ui.weak("This run uses no graphics card, so there is no memory of one to show.");
        return;
    }
    if curves.memory.is_empty() {
        return nothing(ui, progress);
    }
    state.see(ui, progress);
    ui.weak("memory of the graphics card");
    let mut chart = chart("memory", Scale { unit: Unit::Bytes, log: false }, progress);
    let peak = Curve::new("highest", &curves.memory_peak, theme::series_color(ui, 1));
    chart.curves.push(Curve { width: 1.0, ..peak });
    chart.curves.push(Curve::new("held", &curves.memory, theme::series_color(ui, 0)));
    if let Some(forecast) = &progress.forecast {
        let mut mark = |name: &str, value: u64, color| {
            let name = format!("{name} {}", bytes(value));
            chart.marks.push(Mark { name, value: value as f64, color });
        };
        mark("predicted", forecast.predicted_bytes, ui.visuals().weak_text_color());
        if let Some(budget) = forecast.budget_bytes {
            mark("budget", budget, theme::warning(ui));
        }
    }
    // What is held is seldom near 0.
    (chart.from_zero, chart.legend) = (true, Some(Corner::RightBottom));
    chart.show(ui, &mut state.view);
}

impl ChartState {
    /// What is visible of one run means nothing for another.
    fn see(&mut self, ui: &egui::Ui, progress: &Progress) {
        if self.run != progress.run {
            self.run.clone_from(&progress.run);
            self.view.fit(ui.ctx());
        }
    }

    fn controls(&mut self, ui: &mut egui::Ui) {
        ui.horizontal_wrapped(|ui| {
            ui.checkbox(&mut self.log, "log").on_hover_text(
                "Draw equal ratios of the loss equally high, so that late progress is seen too.",
            );
            ui.spacing_mut().slider_width = 80.0;
            let smoothing = egui::Slider::new(&mut self.smoothing, 0.0..=0.99).fixed_decimals(2);
            ui.add(smoothing.text("smoothing")).on_hover_text(
                "How much earlier values count in the average, from 0 for none. The values \
                 themselves stay visible behind it.",
            );
            ui.checkbox(&mut self.view.follow, "follow")
                .on_hover_text("Keep the newest iteration visible while only a part is.");
            let fit = ui.button("Fit").on_hover_text(
                "Show everything; a double-click does the same. The wheel zooms, dragging moves, \
                 a box drawn with the right button is zoomed in on.",
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
        others: Vec::new(),
        marks: Vec::new(),
        from_zero: false,
        legend: None,
        height: None,
        newest: progress.curves.loss.last().map_or(0.0, |[x, _]| x),
    }
}

/// What to do where there is no curve.
fn nothing(ui: &mut egui::Ui, progress: &Progress) {
    ui.weak(match progress.state {
        State::Idle => "No run yet. Start one on the left.",
        State::Starting => "The run is being set up. Its curves begin with the first iterations.",
        State::Finished(_) | State::Interrupted | State::Failed { .. } => {
            "The run ended before there was anything to draw. The log says why."
        }
        _ => "Nothing to draw yet. The curves begin with the first iterations.",
    });
}
