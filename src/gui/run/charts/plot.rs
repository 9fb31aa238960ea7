//! Draws with egui_plot, and gives it only as many points as the chart has pixels for.

use eframe::egui::{self, Color32, Id, Key, Ui, vec2};
use egui_plot::{
    ColorConflictHandling, Corner, HLine, HoverPosition, Legend, Line, LineStyle, Plot, PlotMemory,
    PlotPoint, PlotResponse, PlotUi, Points,
};

use super::axes::{Scale, Unit};
use crate::gui::state::{VisibleRange, XAxis};
use crate::gui::widgets::focus_ring;
use crate::protocol::{Cumulative, Curves, Progress, Series};

/// Width of the y axis labels, in points. It is the same in all charts, to align their x axes.
const AXIS_WIDTH: f32 = 56.0;

/// Room to the right of a plot, in points, in addition to its margins. Half of the label of the last
/// tick is there, and a label is up to 60 points wide (`1,000,000`).
const LABEL_ROOM: f32 = 16.0;

/// Margin around the curves, as a fraction of their extent.
const MARGIN: egui::Vec2 = vec2(0.01, 0.06);

/// Extra range on either side of the visible part, as a fraction of it: panning then uncovers curves
/// without waiting a frame.
const OVERSCAN: f64 = 0.1;

/// Mouse wheel travel that zooms by a factor of e, in points.
const WHEEL: f32 = 200.0;

/// The factor by which a key zooms, and the share of the visible range by which an arrow key pans.
const KEY_ZOOM: f32 = 1.25;
const KEY_STEP: f32 = 0.1;

const GRID: f32 = 0.5;

/// Smallest distance between dots, in pixels: closer ones would merge into a line.
const DOT_DISTANCE: usize = 8;

pub(super) struct Curve<'a> {
    pub series: &'a Series,
    /// Values are multiplied by it.
    pub factor: f64,
    /// What the x axis counts; `None` for iterations.
    pub count: Option<&'a Cumulative>,
    /// Name in the legend, where curves of equal names share an entry.
    pub name: &'a str,
    pub hover_name: String,
    pub color: Color32,
    pub width: f32,
    pub dashed: bool,
    pub dots: bool,
}

impl<'a> Curve<'a> {
    pub fn new(
        name: &'a str,
        series: &'a Series,
        count: Option<&'a Cumulative>,
        color: Color32,
    ) -> Self {
        Self {
            series,
            factor: 1.0,
            count,
            name,
            hover_name: name.to_string(),
            color,
            width: 1.5,
            dashed: false,
            dots: false,
        }
    }

    /// Returns the points from x = `from` to `to`, with the curve clipped at both ends: a
    /// distant neighbor would stretch the y axis.
    fn points(&self, scale: Scale, [from, to]: [f64; 2], columns: usize) -> Vec<PlotPoint> {
        let shown = self.series.window(self.count, [from, to], columns);
        let mut points: Vec<PlotPoint> = shown
            .into_iter()
            .filter_map(|[x, y]| Some(PlotPoint::new(x, scale.position(self.factor * y)?)))
            .collect();
        if let [first, second, ..] = points[..]
            && first.x < from
        {
            points[0] = interpolate(first, second, from);
        }
        if let [.., second, last] = points[..]
            && last.x > to
        {
            let at = points.len() - 1;
            points[at] = interpolate(second, last, to);
        }
        points.retain(|point| point.x >= from && point.x <= to);
        points
    }

    fn add<'b>(&self, plot: &mut PlotUi<'b>, points: &'b [PlotPoint], columns: usize) {
        let style = if self.dashed { LineStyle::dashed_dense() } else { LineStyle::Solid };
        let line = Line::new(self.name, points).color(self.color);
        plot.line(line.width(self.width).style(style));
        if self.dots && points.len() < columns / DOT_DISTANCE {
            plot.points(Points::new(self.name, points).color(self.color).radius(2.5));
        }
    }

    fn extent(&self) -> Option<[f64; 2]> {
        let ends = [self.series.iter().next()?[0], self.series.last()?[0]];
        Some(self.count.map_or(ends, |count| ends.map(|iter| count.at(iter))))
    }

    /// Returns the iteration nearest to `x` and its value; `None` beyond the ends of the curve.
    fn nearest(&self, x: f64, tolerance: f64) -> Option<[f64; 2]> {
        let [first, last] = self.extent()?;
        let is_inside = x >= first - tolerance && x <= last + tolerance;
        let iter = self.count.map_or(x, |count| count.iterations(x));
        let [iter, value] = self.series.nearest(iter).filter(|_| is_inside)?;
        Some([iter, self.factor * value])
    }
}

pub(super) struct ReferenceLine {
    pub name: String,
    pub value: f64,
    pub color: Color32,
}

pub(super) struct Chart<'a> {
    /// The quantity shown; identifies the chart.
    name: &'static str,
    run: &'a Curves,
    axis: XAxis,
    pub scale: Scale,
    curves: Vec<Curve<'a>>,
    /// Curves of other runs: drawn first, listed last.
    pub overlays: Vec<Curve<'a>>,
    pub references: Vec<ReferenceLine>,
    /// Corner of the legend; `None` for no legend.
    pub legend: Option<Corner>,
    /// Height in points; `None` fills the available height.
    pub height: Option<f32>,
}

impl<'a> Chart<'a> {
    pub fn new(name: &'static str, unit: Unit, axis: XAxis, progress: &'a Progress) -> Self {
        Self {
            name,
            run: &progress.curves,
            axis,
            scale: Scale { unit, log: false },
            curves: Vec::new(),
            overlays: Vec::new(),
            references: Vec::new(),
            legend: None,
            height: None,
        }
    }

    pub fn add(&mut self, name: &'a str, series: &'a Series, color: Color32) -> &mut Curve<'a> {
        self.curves.push_mut(Curve::new(name, series, self.axis.count(self.run), color))
    }

    /// Draws the chart, and updates `view` if the mouse has moved it. Draws nothing without a point.
    pub fn show(&self, ui: &mut Ui, view: &mut VisibleRange) -> Option<PlotResponse<()>> {
        let [first, last] = self.extent()?;
        let newest = self.run.loss.last().map_or(0.0, |[iter, _]| self.axis.place(self.run, iter));
        let is_reset = ui.ctx().cumulative_pass_nr() <= view.fit_until;
        let has_moved = view.follow_newest(newest);
        let [from, to] = view.range.unwrap_or([first, last]);
        let overscan = OVERSCAN * (to - from);
        let columns = (ui.available_width() * ui.pixels_per_point()).max(1.0) as usize;
        let points =
            |curve: &Curve<'_>| curve.points(self.scale, [from - overscan, to + overscan], columns);
        let drawn = || self.overlays.iter().chain(&self.curves);
        let points: Vec<Vec<PlotPoint>> = drawn().map(points).collect();
        // Another axis has another id, because egui keeps bounds by id and they would not apply.
        let id = Id::unique(("chart", self.name, self.scale.log, self.axis));
        let faint = ui.visuals().weak_text_color();
        let plot = self.plot(id, [first, last], MARGIN.x as f64 * (to - from));
        let plot = plot.grid_color(faint.gamma_multiply(GRID)).cursor_color(faint);
        let plot = plot.width((ui.available_width() - LABEL_ROOM).max(0.0));
        let shown = plot.show(ui, |plot| {
            if is_reset {
                plot.set_auto_bounds(true);
            } else if has_moved {
                plot.set_plot_bounds_x(from..=to);
            }
            zoom_by_wheel(plot);
            move_by_keys(plot);
            for (curve, points) in drawn().zip(&points) {
                curve.add(plot, points, columns);
            }
            for reference in &self.references {
                let Some(y) = self.scale.position(reference.value) else { continue };
                let line = HLine::new(reference.name.as_str(), y).color(reference.color);
                plot.hline(line.width(1.0).style(LineStyle::dashed_dense()));
            }
        });
        focus_ring(ui, &shown.response);
        shown
            .response
            .widget_info(|| egui::WidgetInfo::labeled(egui::Role::Image, true, self.description()));
        let bounds = shown.transform.bounds();
        let is_part = PlotMemory::load(ui.ctx(), id).is_some_and(|memory| !memory.auto_bounds.x);
        let range = is_part.then(|| [bounds.min()[0], bounds.max()[0]]);
        view.update(ui.ctx(), range, newest);
        if shown.response.has_focus() && ui.input(|input| input.key_pressed(Key::Home)) {
            view.fit(ui.ctx());
        }
        Some(shown)
    }

    fn plot<'b>(&'b self, id: Id, [first, last]: [f64; 2], tolerance: f64) -> Plot<'b> {
        let group = Id::unique(("charts", self.axis));
        let mut plot = Plot::new(self.name)
            .id(id)
            .link_axis(group, [true, false])
            .link_cursor(group, [true, false])
            // Horizontally only: the y axis always fits the visible part.
            .allow_drag([true, false])
            .allow_zoom([true, false])
            .allow_scroll(false)
            .include_x(first)
            .include_x(last)
            .set_margin_fraction(MARGIN)
            .x_grid_spacer(self.axis.grid())
            .y_grid_spacer(self.scale.grid())
            .x_axis_formatter(|mark, _| self.axis.tick_label(mark))
            .y_axis_formatter(|mark, _| self.scale.tick_label(mark))
            .y_axis_min_width(AXIS_WIDTH)
            .label_formatter(move |hover| {
                let (HoverPosition::NearDataPoint { position, .. }
                | HoverPosition::Elsewhere { position }) = hover;
                self.label(position.x, tolerance)
            });
        // The other units begin at 0, which stays visible.
        if self.scale.unit != Unit::Loss {
            plot = plot.include_y(0.0);
        }
        if let Some(corner) = self.legend {
            let legend = Legend::default().text_style(egui::TextStyle::Small).position(corner);
            let legend = legend.follow_insertion_order(true);
            plot = plot.legend(legend.color_conflict_handling(ColorConflictHandling::PickLast));
        }
        match self.height {
            Some(height) => plot.height(height),
            None => plot,
        }
    }

    /// Returns the first and the last x of all curves; `None` if all are empty.
    fn extent(&self) -> Option<[f64; 2]> {
        let curves = self.curves.iter().chain(&self.overlays);
        let [first, last] = curves
            .filter_map(Curve::extent)
            .reduce(|all, next| [all[0].min(next[0]), all[1].max(next[1])])?;
        Some([first, last.max(first + 1.0)])
    }

    /// Returns the hover label: the value of every curve at `x`.
    fn label(&self, x: f64, tolerance: f64) -> Option<String> {
        let value = |curve| Curve::nearest(curve, x, tolerance).map(|[at, y]| (curve, at, y));
        let values: Vec<_> = self.curves.iter().chain(&self.overlays).filter_map(value).collect();
        let (_, nearest, _) = values.first()?;
        let mut text = self.axis.describe(self.run, *nearest);
        for (curve, _, value) in values {
            text += &format!("\n{} {}", curve.hover_name, self.scale.value(value));
        }
        Some(text)
    }

    /// Returns the chart's accessible name, with the latest value of each curve.
    fn description(&self) -> String {
        let latest = |curve: &Curve<'_>| {
            let [_, value] = curve.series.last()?;
            Some(format!(", {} {}", curve.hover_name, self.scale.value(curve.factor * value)))
        };
        let values: String = self.curves.iter().filter_map(latest).collect();
        format!("{} chart, latest values{values}", self.name)
    }
}

/// Zooms around the pointer by vertical scrolling; pans by horizontal scrolling.
fn zoom_by_wheel(plot: &mut PlotUi<'_>) {
    let delta = plot.ctx().input(|input| input.smooth_scroll_delta());
    if !plot.response().contains_pointer() || delta == egui::Vec2::ZERO {
        return;
    }
    let auto_y = plot.auto_bounds().y;
    if delta.y != 0.0 {
        plot.zoom_bounds_around_hovered(vec2((delta.y / WHEEL).exp(), 1.0));
    }
    if delta.x != 0.0 {
        let distance = delta.x * plot.transform().dvalue_dpos()[0] as f32;
        plot.translate_bounds(vec2(-distance, 0.0));
    }
    plot.set_auto_bounds([false, auto_y]);
}

/// Zooms by `+` and `-`, and pans by the arrow keys, while the chart has the focus.
fn move_by_keys(plot: &mut PlotUi<'_>) {
    let response = plot.response().clone();
    if !response.has_focus()
        || response.ctx.input(|input| input.modifiers.command || input.modifiers.alt)
    {
        return;
    }
    let filter = egui::EventFilter { horizontal_arrows: true, ..Default::default() };
    response.ctx.memory_mut(|memory| memory.set_focus_lock_filter(response.id, filter));
    let auto_y = plot.auto_bounds().y;
    let bounds = plot.plot_bounds();
    for (key, zoom, step) in [
        (Key::Plus, KEY_ZOOM, 0.0),
        // Where it needs no Shift.
        (Key::Equals, KEY_ZOOM, 0.0),
        (Key::Minus, 1.0 / KEY_ZOOM, 0.0),
        (Key::ArrowLeft, 1.0, -KEY_STEP),
        (Key::ArrowRight, 1.0, KEY_STEP),
    ] {
        if response.ctx.input(|input| input.key_pressed(key)) {
            plot.zoom_bounds(vec2(zoom, 1.0), bounds.center());
            plot.translate_bounds(vec2(step * bounds.width() as f32, 0.0));
            plot.set_auto_bounds([false, auto_y]);
        }
    }
}

/// Returns the point at `x` on the line from `a` to `b`.
fn interpolate(a: PlotPoint, b: PlotPoint, x: f64) -> PlotPoint {
    PlotPoint::new(x, a.y + (b.y - a.y) * (x - a.x) / (b.x - a.x))
}

#[cfg(test)]
mod tests {
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    use super::*;

    const LOSS: Scale = Scale { unit: Unit::Loss, log: false };

    #[test]
    fn points_are_limited_by_columns_and_clipped_to_the_range() {
        let series: Series = (0..600_000).map(|x| [f64::from(x), 1.0]).collect();
        let curve = Curve::new("training", &series, None, Color32::RED);
        assert!(curve.points(LOSS, [0.0, 6e5], 500).len() <= 4 * 500 + 6);
        let sparse: Series = [[0.0, 10.0], [100.0, 2.0], [200.0, 1.0]].into_iter().collect();
        let curve = Curve::new("validation", &sparse, None, Color32::RED);
        let points = curve.points(LOSS, [90.0, 150.0], 500);
        let points: Vec<[f64; 2]> = points.iter().map(|point| [point.x, point.y]).collect();
        assert_eq!(points, [[90.0, 2.8], [100.0, 2.0], [150.0, 1.5]]);
        assert!(curve.points(LOSS, [300.0, 400.0], 500).is_empty());
        assert_eq!(curve.points(LOSS, [110.0, 120.0], 500).len(), 2);
    }

    #[test]
    fn a_chart_is_zoomed_and_moved_by_keyboard() {
        let series: Series = (0..=100).map(|x| [f64::from(x), 3.0]).collect();
        let mut run = Progress::default();
        run.curves.loss = series.clone();
        let draw = move |ui: &mut Ui, view: &mut VisibleRange| {
            let mut chart = Chart::new("loss", Unit::Loss, XAxis::Iterations, &run);
            chart.add("training", &series, Color32::RED);
            chart.show(ui, view);
        };
        let mut harness = Harness::builder().build_ui_state(draw, VisibleRange::default());
        harness.run_steps(3);
        assert_eq!(harness.state().range, None);
        harness.get_by_label_contains("loss chart").focus();
        let mut press = |key| {
            harness.key_press(key);
            harness.run_steps(3);
            harness.state().range
        };
        press(Key::ArrowRight);
        let [from, to] = press(Key::Plus).expect("a part of the chart");
        let width = to - from;
        assert!((width * f64::from(KEY_ZOOM) - 102.0).abs() < 0.1, "{width}");
        let [left, _] = press(Key::ArrowLeft).unwrap();
        assert!((from - left - width * f64::from(KEY_STEP)).abs() < 0.1, "{from} to {left}");
        assert_eq!(press(Key::Home), None);
    }

    #[test]
    fn the_hover_label_lists_the_curves_that_have_a_value_there() {
        let training: Series = (0..10).map(|x| [f64::from(10 * x), 3.0]).collect();
        let validation: Series = [[50.0, 4.0]].into_iter().collect();
        let mut run = Progress::default();
        run.curves.seconds.extend(100.0, 2.0);
        let chart = |axis| {
            let mut chart = Chart::new("loss", Unit::Loss, axis, &run);
            chart.add("training", &training, Color32::RED);
            chart.add("validation", &validation, Color32::RED);
            chart
        };
        let by_time = chart(XAxis::Time);
        let chart = chart(XAxis::Iterations);
        assert_eq!(chart.label(12.0, 1.0).as_deref(), Some("iteration 10\ntraining 3.0000"));
        let both = "iteration 50\ntraining 3.0000\nvalidation 4.0000";
        assert_eq!(chart.label(50.4, 1.0).as_deref(), Some(both));
        assert_eq!(chart.label(95.0, 1.0), None);
        assert_eq!(chart.extent(), Some([0.0, 90.0]));
        let both = "iteration 50, 1m 40s\ntraining 3.0000\nvalidation 4.0000";
        assert_eq!(by_time.label(100.8, 2.0).as_deref(), Some(both));
        assert_eq!((by_time.label(190.0, 2.0), by_time.extent()), (None, Some([0.0, 180.0])));
    }
}
