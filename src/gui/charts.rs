//! Charts of the shown run, with other runs overlaid for comparison.

mod plot;
mod ribbon;
mod view;
mod x_axis;
mod y_axis;

use std::path::PathBuf;

use eframe::egui::{self, Ui};
use egui_plot::{Corner, PlotPoint};
use serde::{Deserialize, Serialize};

use self::plot::{Chart, Curve, ReferenceLine};
use self::ribbon::{Mark, Space};
use self::view::VisibleRange;
use self::x_axis::XAxis;
use self::y_axis::{Scale, Unit};
use super::widgets::combo;
use super::{Intent, Panel, Shared, theme};
use crate::protocol::{Progress, RunPhase, Series, Smoothed, automatic_half_life};
use crate::text::{bytes, grouped};

/// Opacity of a raw curve that is drawn behind its moving average.
const FAINT: f32 = 0.35;

/// Half-lives of the moving average that can be chosen, in iterations.
const HALF_LIVES: [Option<u32>; 5] = [None, Some(0), Some(10), Some(100), Some(1000)];

/// A run whose curves are drawn with the shown run's curves.
pub(super) struct Overlay {
    pub run: PathBuf,
    pub name: String,
    /// The source of its curves; empty until it was read.
    pub progress: Progress,
}

/// A panel that draws charts and returns no intent.
pub(super) struct ChartPanel {
    pub title: &'static str,
    pub draw: fn(&mut Ui, &mut Shared),
}

impl Panel for ChartPanel {
    fn title(&self) -> &'static str {
        self.title
    }

    fn ui(&mut self, ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
        (self.draw)(ui, shared);
        None
    }
}

/// View settings that all charts share. They are stored from one session to the next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ChartState {
    /// Draw the loss on a logarithmic axis.
    log: bool,
    /// Half-life of the moving average of the loss, in iterations: 0 does not smooth, `None` follows
    /// the length of the run.
    half_life: Option<u32>,
    axis: XAxis,
    view: VisibleRange,
    /// Moving averages of the shown run and then of each overlay.
    #[serde(skip)]
    averages: Vec<Smoothed>,
    /// The run drawn last. The view is reset when another one is shown.
    #[serde(skip)]
    run: Option<PathBuf>,
}

/// Draws training and validation loss, with the lowest possible loss where it is known, below the
/// samples.
pub(super) fn loss(ui: &mut Ui, shared: &mut Shared) {
    let Shared { settings, shown, library, samples, .. } = shared;
    let (progress, overlays, state) = (&shown.progress, &library.overlays, &mut settings.charts);
    let is_empty = |progress: &Progress| progress.curves.loss.is_empty();
    if is_empty(progress)
        && progress.curves.eval_val.is_empty()
        && overlays.iter().all(|overlay| is_empty(&overlay.progress))
    {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    state.controls(ui);
    let ChartState { averages, view, .. } = state;
    let axis = state.axis;
    let scale = Scale { unit: Unit::Loss, log: state.log };
    let raw: Vec<&Series> = std::iter::once(progress)
        .chain(overlays.iter().map(|overlay| &overlay.progress))
        .map(|run| &run.curves.loss)
        .collect();
    let averages = follow(averages, state.half_life, &raw);
    let mut chart =
        Chart { legend: Some(Corner::RightTop), ..chart("loss", scale, axis, progress) };
    chart.curves = loss_curves(ui, progress, averages.first().copied(), axis);
    for (index, overlay) in overlays.iter().enumerate() {
        let training = averages.get(index + 1).copied().unwrap_or(raw[index + 1]);
        let color = theme::series_color(ui, index + 2);
        chart.overlays.extend(overlay_curves(overlay, training, axis, color));
    }
    if let Some(value) = progress.entropy_floor {
        let color = ui.visuals().weak_text_color();
        let name = "lowest possible".into();
        chart.references.push(ReferenceLine { name, value, color });
    }
    let marks = marks(progress, axis, scale);
    let space = if marks.is_empty() { None } else { Space::allocate(ui) };
    if let Some(drawn) = chart.show(ui, view) {
        ribbon::show(ui, space, &drawn, &marks, &mut samples.selection);
    }
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

/// Returns the curves of the shown run: the raw training loss is faint behind its average.
fn loss_curves<'a>(
    ui: &Ui,
    progress: &'a Progress,
    average: Option<&'a Series>,
    axis: XAxis,
) -> Vec<Curve<'a>> {
    let curves = &progress.curves;
    let count = axis.count(curves);
    let color = theme::series_color(ui, 0);
    let mut training = vec![Curve::new("training", &curves.loss, count, color)];
    if let Some(average) = average {
        training[0].color = color.gamma_multiply(FAINT);
        training[0].width = 1.0;
        let hover_name = Some("training, smoothed".into());
        training.push(Curve { hover_name, ..Curve::new("training", average, count, color) });
    }
    let color = theme::series_color(ui, 1);
    let validation = Curve::new("validation", &curves.eval_val, count, color);
    training.push(Curve { dots: true, ..validation });
    training
}

/// Returns the curves of another run.
fn overlay_curves<'a>(
    overlay: &'a Overlay,
    training: &'a Series,
    axis: XAxis,
    color: egui::Color32,
) -> [Curve<'a>; 2] {
    let curves = &overlay.progress.curves;
    let line = |series, split: &str| Curve {
        hover_name: Some(format!("{}, {split}", overlay.name)),
        width: 1.0,
        ..Curve::new(overlay.name.as_str(), series, axis.count(curves), color)
    };
    let validation = line(&curves.eval_val, "validation");
    [line(training, "training"), Curve { dashed: true, ..validation }]
}

/// Returns the samples of a run and their places on its validation curve, or on its training curve
/// before the first evaluation.
fn marks(progress: &Progress, axis: XAxis, scale: Scale) -> Vec<Mark<'_>> {
    let curves = &progress.curves;
    let line = if curves.eval_val.is_empty() { &curves.loss } else { &curves.eval_val };
    let place = |iter: f64| {
        let loss = line.interpolate(iter).and_then(|loss| scale.position(loss));
        PlotPoint::new(axis.place(curves, iter), loss.unwrap_or_default())
    };
    let samples = progress.samples.iter();
    samples.map(|sample| Mark { sample, place: place(sample.iter as f64) }).collect()
}

/// Draws the learning rate and, below it, the gradient norm.
pub(super) fn rate(ui: &mut Ui, shared: &mut Shared) {
    let (progress, state) = (&shared.shown.progress, &mut shared.settings.charts);
    let curves = &progress.curves;
    if curves.learning_rate.is_empty() {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    let gap = ui.spacing().item_spacing.y;
    let title_height = ui.spacing().interact_size.y + gap;
    let height = (0.5 * ui.available_height() - title_height - gap).max(64.0);
    let show = |ui: &mut Ui, state: &mut ChartState, name, unit, series, index| {
        let mut chart = chart(name, Scale { unit, log: false }, state.axis, progress);
        let color = theme::series_color(ui, index);
        chart.curves.push(Curve::new(name, series, state.axis.count(curves), color));
        (chart.from_zero, chart.height) = (true, Some(height));
        chart.show(ui, &mut state.view);
    };
    state.title(ui, "learning rate");
    show(ui, state, "learning rate", Unit::Rate, &curves.learning_rate, 0);
    ui.weak("gradient norm").on_hover_text("Global norm of the gradient before clipping.");
    show(ui, state, "gradient norm", Unit::Norm, &curves.grad_norm, 1);
}

/// Draws the training speed in tokens per second.
pub(super) fn speed(ui: &mut Ui, shared: &mut Shared) {
    let (progress, state) = (&shared.shown.progress, &mut shared.settings.charts);
    let series = &progress.curves.tokens_per_s;
    if series.is_empty() {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    state.title(ui, "tokens per second");
    let (count, color) = (state.axis.count(&progress.curves), theme::series_color(ui, 0));
    let scale = Scale { unit: Unit::Speed, log: false };
    let mut chart = chart("speed", scale, state.axis, progress);
    chart.curves.push(Curve::new("tokens per second", series, count, color));
    chart.from_zero = true;
    chart.show(ui, &mut state.view);
}

/// Draws the device memory in use, its peak, the predicted need and the budget.
pub(super) fn memory(ui: &mut Ui, shared: &mut Shared) {
    let (progress, state) = (&shared.shown.progress, &mut shared.settings.charts);
    let curves = &progress.curves;
    if curves.memory.is_empty() && !curves.loss.is_empty() {
        ui.weak("This run does not use a GPU, so it has no GPU memory to show.");
        return;
    }
    if curves.memory.is_empty() {
        return placeholder(ui, progress);
    }
    state.reset_view_for_new_run(ui, progress);
    state.title(ui, "GPU memory");
    let (axis, count) = (state.axis, state.axis.count(curves));
    let mut chart = chart("memory", Scale { unit: Unit::Bytes, log: false }, axis, progress);
    let peak = Curve::new("peak", &curves.memory_peak, count, theme::series_color(ui, 1));
    chart.curves.push(Curve { width: 1.0, ..peak });
    chart.curves.push(Curve::new("in use", &curves.memory, count, theme::series_color(ui, 0)));
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
    /// Shows everything if another run is shown, because the old range means nothing for it.
    fn reset_view_for_new_run(&mut self, ui: &Ui, progress: &Progress) {
        if self.run != progress.run {
            self.run.clone_from(&progress.run);
            self.view.fit(ui.ctx());
        }
    }

    fn controls(&mut self, ui: &mut Ui) {
        ui.horizontal_wrapped(|ui| {
            ui.checkbox(&mut self.log, "log").on_hover_text(
                "Logarithmic loss axis: small improvements late in a run stay visible.",
            );
            self.smoothing(ui);
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

    fn smoothing(&mut self, ui: &mut Ui) {
        let text = |half_life: Option<u32>| match half_life {
            None => "auto".into(),
            Some(0) => "none".into(),
            Some(iterations) => grouped(f64::from(iterations), 0),
        };
        let help = "Half-life of the moving average in iterations: a value that is so much older \
                    counts half. auto grows with the run. The raw values stay visible behind it.";
        combo(ui, "smoothing", 48.0, (&mut self.half_life, &HALF_LIVES), text, help);
    }

    /// Draws the title of a chart that has no other controls than the x axis.
    fn title(&mut self, ui: &mut Ui, title: &str) {
        ui.horizontal(|ui| {
            ui.weak(title);
            self.select_axis(ui);
        });
    }

    fn select_axis(&mut self, ui: &mut Ui) {
        if self.axis.select(ui) {
            // The old range means nothing on another axis.
            self.view.fit(ui.ctx());
        }
    }
}

fn chart<'a>(name: &'static str, scale: Scale, axis: XAxis, progress: &'a Progress) -> Chart<'a> {
    Chart {
        name,
        run: &progress.curves,
        axis,
        scale,
        curves: Vec::new(),
        overlays: Vec::new(),
        references: Vec::new(),
        from_zero: false,
        legend: None,
        height: None,
    }
}

/// Explains why the chart is empty.
fn placeholder(ui: &mut Ui, progress: &Progress) {
    ui.weak(match progress.state {
        RunPhase::Idle => "No run yet. Start one on the left.",
        RunPhase::Starting => "The run is starting. Curves appear with its first iterations.",
        RunPhase::Finished(_) | RunPhase::Interrupted | RunPhase::Failed { .. } => {
            "The run ended before there was anything to plot. The log has the reason."
        }
        _ => "Nothing to plot yet. Curves appear with the first iterations.",
    });
}
