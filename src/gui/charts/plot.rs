//! Drawing: what egui_plot is given is no more than there are pixels for.

use eframe::egui::{self, Color32, Id, vec2};
use egui_plot::{
    ColorConflictHandling, Corner, HLine, HoverPosition, Legend, Line, LineStyle, Plot, PlotMemory,
    PlotPoint, PlotUi, Points,
};
use serde::{Deserialize, Serialize};

use super::scale::{self, Scale};
use crate::progress::Series;

/// Room for numbers beside the y axis, alike in all charts: one iteration is one line through all.
const AXIS_WIDTH: f32 = 56.0;

/// Around the curves, as a share of what they take.
const MARGIN: egui::Vec2 = vec2(0.01, 0.06);

/// What is taken in beside the visible part, so that moving it uncovers something.
const BESIDE: f64 = 0.1;

/// Points of the mouse wheel that zoom by e.
const WHEEL: f32 = 200.0;

/// How much of the colour is left for the lines of the grid.
const GRID: f32 = 0.5;

/// Dots closer than this many pixels to each other would be a line.
const DOT_DISTANCE: usize = 8;

/// Which iterations are visible: the same in all charts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct View {
    /// Whether the newest iteration stays visible.
    pub follow: bool,
    /// Whether all iterations are.
    #[serde(skip)]
    all: bool,
    #[serde(skip)]
    from: f64,
    #[serde(skip)]
    to: f64,
    /// The pass of egui up to which every chart is to show everything.
    #[serde(skip)]
    fit_until: u64,
}

impl Default for View {
    fn default() -> Self {
        Self { follow: true, all: true, from: 0.0, to: 1.0, fit_until: 0 }
    }
}

impl View {
    /// Shows everything, in all charts.
    pub fn fit(&mut self, ctx: &egui::Context) {
        // Charts that were drawn already in this pass have their turn in the next one.
        self.fit_until = ctx.cumulative_pass_nr() + 1;
        self.all = true;
        ctx.request_repaint();
    }

    /// Moves on to the newest iteration; whether there was a need to.
    fn move_on(&mut self, newest: f64) -> bool {
        let beyond = newest - self.to;
        if self.all || !self.follow || beyond <= 0.0 {
            return false;
        }
        self.from += beyond;
        self.to += beyond;
        true
    }
}

/// A curve.
pub(super) struct Curve<'a> {
    pub series: &'a Series,
    /// Its name in the legend, where equal names are one, and below the mouse; empty for neither.
    pub name: String,
    /// What it is called below the mouse, if not so.
    pub said: Option<String>,
    pub color: Color32,
    pub width: f32,
    pub dashed: bool,
    /// Whether there is a dot at each point.
    pub dots: bool,
}

impl<'a> Curve<'a> {
    pub fn new(name: impl Into<String>, series: &'a Series, color: Color32) -> Self {
        Self {
            series,
            name: name.into(),
            said: None,
            color,
            width: 1.5,
            dashed: false,
            dots: false,
        }
    }

    /// The visible part, with the line cut a little beside it: a neighbour far outside would make
    /// the y axis longer.
    fn points(&self, scale: Scale, [from, to]: [f64; 2], columns: usize) -> Vec<PlotPoint> {
        let shown = self.series.window(from, to, columns);
        let mut points: Vec<PlotPoint> = shown
            .into_iter()
            .filter_map(|[x, y]| scale.place(y).map(|y| PlotPoint::new(x, y)))
            .collect();
        if let [first, second, ..] = points[..]
            && first.x < from
        {
            points[0] = between(first, second, from);
        }
        if let [.., second, last] = points[..]
            && last.x > to
        {
            let at = points.len() - 1;
            points[at] = between(second, last, to);
        }
        points.retain(|point| point.x >= from && point.x <= to);
        points
    }

    fn add<'b>(&self, plot: &mut PlotUi<'b>, points: &'b [PlotPoint], columns: usize) {
        let style = if self.dashed { LineStyle::dashed_dense() } else { LineStyle::Solid };
        let line = Line::new(self.name.as_str(), points).color(self.color);
        plot.line(line.width(self.width).style(style));
        if self.dots && points.len() < columns / DOT_DISTANCE {
            plot.points(Points::new(self.name.as_str(), points).color(self.color).radius(2.5));
        }
    }

    /// The value at the point that is nearest to an iteration, and which iteration that is.
    fn at(&self, x: f64, tolerance: f64) -> Option<[f64; 2]> {
        let [[first, _], [last, _]] = self.series.bounds()?;
        let is_known = x >= first - tolerance && x <= last + tolerance;
        self.series.nearest(x).filter(|_| is_known)
    }
}

/// A value that does not change.
pub(super) struct Mark {
    /// Its name in the legend.
    pub name: String,
    pub value: f64,
    pub color: Color32,
}

/// A chart over iterations.
pub(super) struct Chart<'a> {
    /// What it shows, which tells it from the others.
    pub name: &'static str,
    pub scale: Scale,
    pub curves: Vec<Curve<'a>>,
    /// Those of other runs: drawn first, named last.
    pub others: Vec<Curve<'a>>,
    pub marks: Vec<Mark>,
    /// Whether 0 is always visible, unless the y axis was moved.
    pub from_zero: bool,
    /// Where the legend is, if there is one.
    pub legend: Option<Corner>,
    /// As high as there is room where it is `None`.
    pub height: Option<f32>,
    /// The newest iteration of the run that is shown.
    pub newest: f64,
}

impl Chart<'_> {
    /// Draws it and takes in where the mouse has moved it.
    pub fn show(&self, ui: &mut egui::Ui, view: &mut View) {
        let Some([first, last]) = self.extent() else { return };
        let fits = ui.ctx().cumulative_pass_nr() <= view.fit_until;
        let moved = view.move_on(self.newest);
        let [from, to] = if view.all { [first, last] } else { [view.from, view.to] };
        let beside = BESIDE * (to - from);
        let columns = (ui.available_width() * ui.pixels_per_point()).max(1.0) as usize;
        let points =
            |curve: &Curve<'_>| curve.points(self.scale, [from - beside, to + beside], columns);
        let drawn = || self.others.iter().chain(&self.curves);
        let points: Vec<Vec<PlotPoint>> = drawn().map(points).collect();
        // Another id for another axis: its bounds would mean something else.
        let id = Id::unique(("chart", self.name, self.scale.log));
        let faint = ui.visuals().weak_text_color();
        let plot = self.plot(id, [first, last], MARGIN.x as f64 * (to - from));
        let plot = plot.grid_color(faint.gamma_multiply(GRID)).cursor_color(faint);
        let shown = plot.show(ui, |plot| {
            if fits {
                plot.set_auto_bounds(true);
            } else if moved {
                plot.set_plot_bounds_x(from..=to);
            }
            wheel(plot);
            for (curve, points) in drawn().zip(&points) {
                curve.add(plot, points, columns);
            }
            for mark in &self.marks {
                let Some(place) = self.scale.place(mark.value) else { continue };
                let line = HLine::new(mark.name.as_str(), place).color(mark.color);
                plot.hline(line.width(1.0).style(LineStyle::dashed_dense()));
            }
        });
        shown
            .response
            .widget_info(|| egui::WidgetInfo::labeled(egui::Role::Image, true, self.in_words()));
        let bounds = shown.transform.bounds();
        let (from, to) = (bounds.min()[0], bounds.max()[0]);
        let all = PlotMemory::load(ui.ctx(), id).is_none_or(|memory| memory.auto_bounds.x);
        if !all && to < self.newest - 1e-9 * (to - from) {
            view.follow = false;
        }
        // What is new in sight has to be looked up, and other charts move along.
        if all != view.all || !all && (from, to) != (view.from, view.to) {
            ui.ctx().request_repaint();
        }
        (view.all, view.from, view.to) = (all, from, to);
    }

    fn plot<'b>(&'b self, id: Id, [first, last]: [f64; 2], tolerance: f64) -> Plot<'b> {
        let group = Id::unique("charts");
        let mut plot = Plot::new(self.name)
            .id(id)
            .link_axis(group, [true, false])
            .link_cursor(group, [true, false])
            // Sideways only: the y axis then keeps fitting what is visible.
            .allow_drag([true, false])
            .allow_zoom([true, false])
            .allow_scroll(false)
            .include_x(first)
            .include_x(last)
            .set_margin_fraction(MARGIN)
            .x_grid_spacer(scale::iterations())
            .y_grid_spacer(self.scale.grid())
            .x_axis_formatter(|mark, _| scale::iteration(mark.value))
            .y_axis_formatter(|mark, _| self.scale.mark(mark))
            .y_axis_min_width(AXIS_WIDTH)
            .label_formatter(move |hover| {
                let (HoverPosition::NearDataPoint { position, .. }
                | HoverPosition::Elsewhere { position }) = hover;
                self.label(position.x, tolerance)
            });
        if self.from_zero {
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

    /// The first and the last iteration of all curves.
    fn extent(&self) -> Option<[f64; 2]> {
        let curves = self.curves.iter().chain(&self.others);
        let bounds = curves.filter_map(|curve| curve.series.bounds());
        let [first, last] = bounds
            .map(|[low, high]| [low[0], high[0]])
            .reduce(|known, next| [known[0].min(next[0]), known[1].max(next[1])])?;
        Some([first, last.max(first + 1.0)])
    }

    /// What the curves are at an iteration.
    fn label(&self, x: f64, tolerance: f64) -> Option<String> {
        let known = |curve| Curve::at(curve, x, tolerance).map(|[at, value]| (curve, at, value));
        let known: Vec<_> = self.curves.iter().chain(&self.others).filter_map(known).collect();
        let (_, nearest, _) = known.first()?;
        let mut text = format!("iteration {}", scale::grouped(*nearest, 0));
        for (curve, _, value) in known {
            let name = curve.said.as_ref().unwrap_or(&curve.name);
            text += &format!("\n{name} {}", self.scale.value(value));
        }
        Some(text)
    }

    /// For those who hear the window.
    fn in_words(&self) -> String {
        let newest = |curve: &Curve<'_>| {
            let [_, value] = curve.series.last()?;
            Some(format!(
                ", {} {}",
                curve.said.as_ref().unwrap_or(&curve.name),
                self.scale.value(value)
            ))
        };
        let values: String = self.curves.iter().filter_map(newest).collect();
        format!("chart of {}, newest values{values}", self.name)
    }
}

/// The wheel zooms in on an iteration; sideways it moves.
fn wheel(plot: &mut PlotUi<'_>) {
    let delta = plot.ctx().input(|input| input.smooth_scroll_delta());
    if !plot.response().contains_pointer() || delta == egui::Vec2::ZERO {
        return;
    }
    let fits_y = plot.auto_bounds().y;
    if delta.y != 0.0 {
        plot.zoom_bounds_around_hovered(vec2((delta.y / WHEEL).exp(), 1.0));
    }
    if delta.x != 0.0 {
        let iterations = delta.x * plot.transform().dvalue_dpos()[0] as f32;
        plot.translate_bounds(vec2(-iterations, 0.0));
    }
    plot.set_auto_bounds([false, fits_y]);
}

/// The point of the line from `a` to `b` at `x`.
fn between(a: PlotPoint, b: PlotPoint, x: f64) -> PlotPoint {
    PlotPoint::new(x, a.y + (b.y - a.y) * (x - a.x) / (b.x - a.x))
}

#[cfg(test)]
mod tests {
    use super::super::scale::Unit;
    use super::*;

    const LOSS: Scale = Scale { unit: Unit::Loss, log: false };

    #[test]
    fn a_long_curve_costs_what_is_visible_and_neighbours_are_cut() {
        let series: Series = (0..600_000).map(|x| [f64::from(x), 1.0]).collect();
        let curve = Curve::new("training", &series, Color32::RED);
        assert!(curve.points(LOSS, [0.0, 6e5], 500).len() <= 4 * 500 + 6);
        let sparse: Series = [[0.0, 10.0], [100.0, 2.0], [200.0, 1.0]].into_iter().collect();
        let curve = Curve::new("validation", &sparse, Color32::RED);
        let points = curve.points(LOSS, [90.0, 150.0], 500);
        let places: Vec<[f64; 2]> = points.iter().map(|point| [point.x, point.y]).collect();
        assert_eq!(places, [[90.0, 2.8], [100.0, 2.0], [150.0, 1.5]]);
        assert!(curve.points(LOSS, [300.0, 400.0], 500).is_empty());
        assert_eq!(curve.points(LOSS, [110.0, 120.0], 500).len(), 2);
    }

    #[test]
    fn the_view_moves_on_until_it_is_moved_away() {
        let mut view = View { all: false, from: 0.0, to: 10.0, ..View::default() };
        assert!(!view.move_on(10.0) && view.move_on(15.0));
        assert_eq!((view.from, view.to), (5.0, 15.0));
        view.follow = false;
        assert!(!view.move_on(20.0));
    }

    #[test]
    fn below_the_mouse_is_what_is_known_there() {
        let training: Series = (0..10).map(|x| [f64::from(10 * x), 3.0]).collect();
        let validation: Series = [[50.0, 4.0]].into_iter().collect();
        let chart = Chart {
            name: "loss",
            scale: LOSS,
            curves: vec![
                Curve::new("training", &training, Color32::RED),
                Curve::new("validation", &validation, Color32::RED),
            ],
            others: Vec::new(),
            marks: Vec::new(),
            from_zero: false,
            legend: None,
            height: None,
            newest: 90.0,
        };
        assert_eq!(chart.label(12.0, 1.0).as_deref(), Some("iteration 10\ntraining 3.0000"));
        let both = "iteration 50\ntraining 3.0000\nvalidation 4.0000";
        assert_eq!(chart.label(50.4, 1.0).as_deref(), Some(both));
        assert_eq!(chart.label(95.0, 1.0), None);
        assert_eq!(chart.extent(), Some([0.0, 90.0]));
    }
}
