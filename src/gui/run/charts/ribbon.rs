//! The ribbon: samples of a run as cards above its loss curve, each with a line down to the place
//! on the curve where the model wrote it.

use eframe::egui::text::{LayoutJob, TextWrapping};
use eframe::egui::{self, Color32, Pos2, Rect, Stroke, TextFormat, TextStyle, Ui, pos2, vec2};
use egui_plot::{PlotPoint, PlotResponse};

use crate::gui::model::token_text::readable;
use crate::gui::state::Selection;
use crate::protocol::Sample;
use crate::text::grouped;

/// Maximum and minimum width of a card, and the gap between two, in points.
const WIDEST: f32 = 190.0;
const NARROWEST: f32 = 92.0;
const GAP: f32 = 6.0;

/// Distance of the text from the edge of its card.
const PADDING: f32 = 5.0;

/// Room between cards and plot, for the lines.
const LINES: f32 = 9.0;

/// The seconds after which a pointer that has not moved points at nothing.
const RESTS: f32 = 8.0;

/// A chart that is less high than this has no ribbon, in points.
const LOWEST_CHART: f32 = 200.0;

/// Share of the height that the ribbon takes.
const SHARE: f32 = 0.24;

/// Maximum and minimum number of lines of text on a card.
const MOST_LINES: usize = 6;
const LEAST_LINES: usize = 3;

/// The maximum number of characters of a sample that a card lays out.
const MOST_TEXT: usize = 400;

const MARK: f32 = 4.0;

const MARK_DISTANCE: f32 = 7.0;

/// A sample, and its place on the curve in plot coordinates.
pub(super) struct SampleMark<'a> {
    pub sample: &'a Sample,
    pub place: PlotPoint,
}

pub(super) struct RibbonSpace {
    rect: Rect,
    lines: usize,
}

impl RibbonSpace {
    /// Allocates the space; `None` where the chart has no room for it.
    pub fn allocate(ui: &mut Ui) -> Option<Self> {
        let room = ui.available_height();
        let line = ui.text_style_height(&TextStyle::Small);
        let lines = (SHARE * room / line) as usize;
        // The first line is the iteration.
        let lines = lines.saturating_sub(1).min(MOST_LINES);
        if lines < LEAST_LINES || room < LOWEST_CHART {
            return None;
        }
        let height = line * (lines + 1) as f32 + 2.0 * PADDING + LINES;
        let (_, rect) = ui.allocate_space(vec2(ui.available_width(), height));
        Some(Self { rect, lines })
    }
}

/// Draws the marks and, in `space`, the cards. Pointing at the chart or at a card shows the nearest
/// sample, a click keeps it.
pub(super) fn show(
    ui: &Ui,
    space: Option<RibbonSpace>,
    drawn: &PlotResponse<()>,
    marks: &[SampleMark<'_>],
    selection: &mut Selection,
) {
    let Some(shown) = selection.shown(marks.len()) else { return };
    let frame = *drawn.transform.frame();
    let place = |mark: &SampleMark<'_>| {
        let place = drawn.transform.position_from_point(&mark.place);
        pos2(place.x, place.y.clamp(frame.top(), frame.bottom()))
    };
    let places: Vec<Pos2> = marks.iter().map(place).collect();
    let is_visible = |&at: &usize| frame.expand(1.0).x_range().contains(places[at].x);
    let visible = (0..marks.len()).filter(is_visible).collect();
    let ribbon = Ribbon { marks, places, visible, shown, frame };
    ribbon.point(&drawn.response, selection);
    if let Some(space) = space {
        ribbon.cards(ui, space, selection);
    }
    let resting = ui.input(|input| input.pointer.time_since_last_movement());
    if resting > RESTS {
        // Whoever left it there looks at the newest sample.
        selection.next = None;
    } else if selection.next.is_some() {
        ui.ctx().request_repaint_after_secs(RESTS - resting + 0.1);
    }
    ribbon.circles(ui);
}

struct Ribbon<'a> {
    marks: &'a [SampleMark<'a>],
    places: Vec<Pos2>,
    /// The marks in the visible part of the chart.
    visible: Vec<usize>,
    shown: usize,
    frame: Rect,
}

impl Ribbon<'_> {
    /// Shows the sample that is nearest to the pointer while it is over the chart.
    fn point(&self, chart: &egui::Response, selection: &mut Selection) {
        // After a tap on a touch screen, only the second one is known.
        let pointer = chart.hover_pos().or(chart.interact_pointer_pos());
        let Some(pointer) = pointer else { return };
        let distance = |at: usize| (self.places[at].x - pointer.x).abs();
        let visible = self.visible.iter().copied();
        let nearest = visible.min_by(|&a, &b| distance(a).total_cmp(&distance(b)));
        let Some(nearest) = nearest else { return };
        selection.next = Some(nearest);
        if chart.clicked() {
            selection.choose(nearest, self.marks.len());
        }
    }

    fn cards(&self, ui: &Ui, space: RibbonSpace, selection: &mut Selection) {
        let most = ((self.frame.width() + GAP) / (NARROWEST + GAP)) as usize;
        // The first of several samples at one iteration is the run's; others answer prompts.
        let mut first = self.visible.clone();
        first.dedup_by_key(|at| self.marks[*at].sample.iter);
        let shown = Some(self.shown).filter(|shown| self.visible.contains(shown));
        let cards = chosen(&first, most.max(1), shown);
        let width = (self.frame.width() + GAP) / cards.len().max(1) as f32 - GAP;
        let width = width.clamp(NARROWEST, WIDEST).min(self.frame.width());
        let wanted: Vec<f32> = cards.iter().map(|&at| self.places[at].x).collect();
        let centers = spread(&wanted, width + GAP, self.frame.x_range());
        for (at, center) in cards.into_iter().zip(centers) {
            let size = vec2(width, space.rect.height() - LINES);
            let rect = Rect::from_min_size(pos2(center - 0.5 * width, space.rect.top()), size);
            let line = Stroke::new(1.0, if at == self.shown { strong(ui) } else { faint(ui) });
            // To the top of the plot, and down to the mark.
            let mark = self.places[at];
            let top = pos2(mark.x, self.frame.top());
            ui.painter().line_segment([rect.center_bottom(), top], line);
            ui.painter().line_segment([top, mark], line);
            let id = ui.scope_id().with(("sample", at));
            let response = ui.interact(rect, id, egui::Sense::click());
            card(ui, &response, self.marks[at].sample, space.lines, at == self.shown);
            if response.hovered() {
                selection.next = Some(at);
            }
            if response.clicked() {
                selection.choose(at, self.marks.len());
            }
        }
    }

    fn circles(&self, ui: &Ui) {
        let painter = ui.painter_at(self.frame.expand(2.0 * MARK));
        let fill = ui.visuals().extreme_bg_color;
        for at in spaced(&self.visible, &self.places) {
            painter.circle(self.places[at], MARK, fill, (1.5, ui.visuals().text_color()));
        }
        if self.visible.contains(&self.shown) {
            painter.circle(self.places[self.shown], MARK + 1.5, strong(ui), (1.5, fill));
        }
    }
}

/// Returns the samples that get a card: at most `most` of `samples`, each a power of two after the one
/// before, which keeps them in place while a run grows, and the newest sample. The shown sample replaces
/// its nearest neighbor, so every sample can be seen on a card.
fn chosen(samples: &[usize], most: usize, shown: Option<usize>) -> Vec<usize> {
    let last = samples.len().saturating_sub(1);
    let mut steps = (0..usize::BITS).map(|log| 1usize << log);
    let Some(step) = steps.find(|step| last.div_ceil(*step) < most) else {
        return shown.into_iter().collect();
    };
    let is_chosen = |nth: &usize| nth.is_multiple_of(step) || *nth == last;
    let mut cards: Vec<usize> =
        (0..samples.len()).filter(is_chosen).map(|nth| samples[nth]).collect();
    if let Some(shown) = shown
        && !cards.contains(&shown)
        && let Some(card) = cards.iter_mut().min_by_key(|card| card.abs_diff(shown))
    {
        *card = shown;
    }
    cards
}

/// Returns the centers of cards, each as near to its wanted center as `distance` and `range` allow.
/// `wanted` ascends.
fn spread(wanted: &[f32], distance: f32, range: egui::Rangef) -> Vec<f32> {
    let half = 0.5 * (distance - GAP);
    let mut centers: Vec<f32> = wanted.to_vec();
    let mut least = range.min + half;
    for center in &mut centers {
        *center = center.max(least);
        least = *center + distance;
    }
    let mut most = range.max - half;
    for center in centers.iter_mut().rev() {
        *center = center.min(most);
        most = *center - distance;
    }
    centers
}

/// Returns the marks that do not overlap, the newest first.
fn spaced(visible: &[usize], places: &[Pos2]) -> Vec<usize> {
    let mut right = f32::INFINITY;
    let mut drawn = Vec::new();
    for &at in visible.iter().rev() {
        if right - places[at].x >= MARK_DISTANCE {
            right = places[at].x;
            drawn.push(at);
        }
    }
    drawn
}

/// Draws a card: the iteration and the beginning of the text.
fn card(ui: &Ui, response: &egui::Response, sample: &Sample, lines: usize, is_shown: bool) {
    let iteration = grouped(sample.iter as f64, 0);
    let rect = response.rect;
    response.widget_info(|| {
        let name = format!("Sample at iteration {iteration}");
        egui::WidgetInfo::selected(egui::Role::Button, true, is_shown, name)
    });
    let visuals = ui.visuals();
    let is_strong = is_shown || response.hovered() || response.has_focus();
    let edge = if is_shown { strong(ui) } else { faint(ui) };
    let color = if is_strong { visuals.strong_text_color() } else { visuals.text_color() };
    let small = TextStyle::Small.resolve(ui.style());
    let max_width = rect.width() - 2.0 * PADDING;
    let wrap = TextWrapping { max_width, max_rows: lines + 1, ..TextWrapping::default() };
    let mut job = LayoutJob { wrap, ..LayoutJob::default() };
    let weak = TextFormat::simple(small.clone(), visuals.weak_text_color());
    job.append(&format!("iteration {iteration}\n"), 0.0, weak);
    let text: String = sample.prompt.chars().chain(sample.text.chars()).take(MOST_TEXT).collect();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    job.append(&readable(&text), 0.0, TextFormat::simple(small, color));
    let painter = ui.painter_at(rect);
    let background = visuals.extreme_bg_color;
    painter.rect(rect, 3.0, background, (1.0, edge), egui::StrokeKind::Inside);
    painter.galley(rect.min + vec2(PADDING, PADDING), painter.layout_job(job), color);
}

fn strong(ui: &Ui) -> Color32 {
    ui.visuals().selection.stroke.color
}

fn faint(ui: &Ui) -> Color32 {
    ui.visuals().weak_text_color().gamma_multiply(0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_evenly_chosen_and_the_shown_sample_has_one() {
        let all = |count: usize| (0..count).collect::<Vec<usize>>();
        assert_eq!(chosen(&all(5), 6, Some(4)), [0, 1, 2, 3, 4]);
        assert_eq!(chosen(&all(6), 6, Some(5)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(chosen(&all(16), 6, Some(15)), [0, 4, 8, 12, 15]);
        assert_eq!(chosen(&all(16), 6, Some(10)), [0, 4, 10, 12, 15]);
        assert_eq!(chosen(&[3, 4, 5], 1, Some(4)), [4]);
        assert_eq!(chosen(&[3, 4, 5], 2, None), [3, 5], "the shown one is out of sight");
        assert!(chosen(&[], 4, None).is_empty());
        for count in 1..200 {
            for most in 1..8 {
                let cards = chosen(&all(count), most, Some(count / 3));
                assert!(cards.len() <= most && cards.contains(&(count / 3)), "{count}, {most}");
                assert!(cards.is_sorted_by(|a, b| a < b), "{cards:?}");
            }
        }
    }

    #[test]
    fn cards_neither_overlap_nor_leave_the_plot() {
        let range = egui::Rangef::new(0.0, 400.0);
        assert_eq!(spread(&[50.0, 200.0, 350.0], 100.0, range), [50.0, 200.0, 350.0]);
        let crowded = spread(&[0.0, 10.0, 390.0, 400.0], 100.0, range);
        let half = 0.5 * (100.0 - GAP);
        assert_eq!(crowded, [half, half + 100.0, 300.0 - half, 400.0 - half]);
    }

    #[test]
    fn marks_keep_their_distance() {
        let places: Vec<Pos2> = [0.0, 3.0, 10.0, 12.0].map(|x| pos2(x, 0.0)).into();
        assert_eq!(spaced(&[0, 1, 2, 3], &places), [3, 1]);
    }
}
