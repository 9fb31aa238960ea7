//! The table of the runs.

use std::path::Path;

use eframe::egui::{self, Rect, Sense, TextStyle, Ui, pos2, vec2};

use super::menu;
use crate::gui::intent::Intent;
use crate::gui::state::Library;
use crate::gui::theme;
use crate::runs::{RunState, RunSummary};
use crate::text::{age, percent_done};

/// Draws the table. A click on a run shows it.
pub(super) fn show(ui: &mut Ui, library: &mut Library, shown: Option<&Path>) -> Option<Intent> {
    let Library { runs, overlays, dialog, .. } = library;
    let columns = Columns::new(ui.available_width());
    let height = ui.text_style_height(&TextStyle::Small);
    let (header, _) = ui.allocate_exact_size(vec2(columns.width, height), Sense::hover());
    let color = ui.visuals().weak_text_color();
    let headings = ["name", "done", "val loss", "age"];
    cells(ui, header, &columns, headings, TextStyle::Small, color);
    let available = ui.available_height();
    let is_comparing = shown.is_some() && !overlays.is_empty();
    let height = if is_comparing { (available / 2.0).max(80.0) } else { available };
    let mut intent = None;
    ui.scope(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        let row_height = ui.spacing().interact_size.y;
        let area = egui::ScrollArea::vertical().id_salt("runs").max_height(height);
        area.auto_shrink([false, true]).show_rows(ui, row_height, runs.len(), |ui, visible| {
            for run in &runs[visible] {
                let is_shown = shown == Some(run.path.as_path());
                let overlay = overlays.iter().position(|overlay| overlay.run == run.path);
                // The colors of its curves.
                let series = if is_shown { Some(0) } else { overlay.map(|index| index + 2) };
                let (response, more) = row(ui, &columns, run, is_shown, series);
                if response.clicked() {
                    intent = Some(Intent::Show(run.path.clone()));
                }
                let mut items = |ui: &mut Ui| menu::items(ui, run, overlays, shown, dialog);
                for popup in [egui::Popup::menu(&more), egui::Popup::context_menu(&response)] {
                    intent = popup.show(&mut items).and_then(|it| it.inner).or(intent.take());
                }
            }
        });
    });
    intent
}

/// Space between columns, in points.
pub(super) const GAP: f32 = 8.0;

/// Room for the dot of the state and for the button of the menu, in points.
const DOT: f32 = 14.0;
const MENU: f32 = 22.0;

/// The columns of the table, in points.
struct Columns {
    width: f32,
    /// The left and right ends of name, progress, loss and age.
    spans: [(f32, f32); 4],
}

impl Columns {
    fn new(width: f32) -> Self {
        let mut spans = [(GAP + DOT, 0.0); 4];
        let mut right = width - MENU - GAP / 2.0;
        // A narrow row has no age, and the name gets the remaining width.
        let age = if width >= 260.0 { 42.0 } else { 0.0 };
        for (column, width) in [(3, age), (2, 52.0), (1, 40.0)] {
            spans[column] = (right - width, right);
            right -= if width > 0.0 { width + GAP } else { 0.0 };
        }
        spans[0].1 = right;
        Self { width, spans }
    }
}

/// Draws a run. `series` is the color of its curves, if they are drawn. Returns the row and the button
/// of its menu.
fn row(
    ui: &mut Ui,
    columns: &Columns,
    run: &RunSummary,
    is_shown: bool,
    series: Option<usize>,
) -> (egui::Response, egui::Response) {
    let size = vec2(columns.width, ui.spacing().interact_size.y);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    response.widget_info(|| {
        let role = egui::Role::Button;
        let info = egui::WidgetInfo::selected(role, ui.is_enabled(), is_shown, run.title());
        egui::WidgetInfo { current_text_value: Some(run.state.name().into()), ..info }
    });
    if ui.is_rect_visible(rect) {
        let visuals = ui.style().interact_selectable(&response, is_shown);
        if is_shown || response.hovered() || response.has_focus() {
            ui.painter().rect_filled(rect, 2.0, visuals.weak_bg_fill);
        }
        if let Some(series) = series {
            let bar = Rect::from_min_size(rect.min, vec2(3.0, rect.height()));
            ui.painter().rect_filled(bar, 0.0, theme::series_color(ui, series));
        }
        let done = run.max_iters.map(|all| percent_done(run.iteration, all)).unwrap_or_default();
        let loss = run.val_loss.map(|loss| format!("{loss:.4}")).unwrap_or_default();
        let age = age(run.age());
        let texts = [run.title(), &done, &loss, &age];
        cells(ui, rect, columns, texts, TextStyle::Body, visuals.text_color());
        dot(ui, pos2(rect.left() + GAP + 4.0, rect.center().y), &run.state);
    }
    let right = Rect::from_min_max(pos2(rect.right() - MENU, rect.top()), rect.max);
    let more = ui.put(right.shrink(1.0), egui::Button::new("…").frame(false));
    let more = more.on_hover_text("What can be done with this run");
    let more = more.accessible_name(format!("Menu of {}", run.title()));
    (response.on_hover_ui(|ui| details(ui, run, is_shown)), more)
}

/// Paints the texts of a row: the name left-aligned, numbers right-aligned.
fn cells(
    ui: &Ui,
    rect: Rect,
    columns: &Columns,
    texts: [&str; 4],
    style: TextStyle,
    color: egui::Color32,
) {
    let font = style.resolve(ui.style());
    for (column, (text, (from, to))) in texts.into_iter().zip(columns.spans).enumerate() {
        if from >= to || text.is_empty() {
            continue;
        }
        let mut job = egui::text::LayoutJob::simple_singleline(text.into(), font.clone(), color);
        job.wrap = egui::text::TextWrapping::truncate_at_width(to - from);
        let galley = ui.painter().layout_job(job);
        let x = if column < 1 { from } else { (to - galley.size().x).max(from) };
        let corner = pos2(rect.left() + x, rect.center().y - galley.size().y / 2.0);
        ui.painter().galley(corner, galley, color);
    }
}

/// Paints the dot of a state. Running, failed and crashed runs have a filled one: the color must not be
/// the only difference.
fn dot(ui: &Ui, center: egui::Pos2, state: &RunState) {
    let weak = ui.visuals().weak_text_color();
    let (color, filled) = match state {
        RunState::Running => (theme::good(ui), true),
        RunState::Finished => (theme::good(ui), false),
        RunState::Stopped | RunState::Empty => (weak, false),
        RunState::Failed { .. } => (theme::error(ui), true),
        RunState::Crashed | RunState::Paused => (theme::warning(ui), true),
    };
    if filled {
        ui.painter().circle_filled(center, 4.0, color);
    } else {
        ui.painter().circle_stroke(center, 3.5, egui::Stroke::new(1.5, color));
    }
}

fn details(ui: &mut Ui, run: &RunSummary, is_shown: bool) {
    ui.set_max_width(360.0);
    ui.strong(run.title());
    ui.weak(run.path.display().to_string());
    if !run.about.note.is_empty() {
        ui.label(&run.about.note);
    }
    match &run.state {
        RunState::Failed { text } => ui.colored_label(theme::error(ui), text),
        RunState::Crashed => ui.label("Interrupted: its process ended before the run did."),
        RunState::Empty => ui.label("Not started."),
        state => ui.label(state.name()),
    };
    let of = run.max_iters.map(|all| format!(" of {all}")).unwrap_or_default();
    ui.label(format!("{}{of} iterations", run.iteration));
    for (name, loss) in [
        ("loss", run.loss),
        ("validation loss", run.val_loss),
        ("best validation loss", run.best_val_loss),
    ] {
        if let Some(loss) = loss {
            ui.label(format!("{name} {loss:.4}"));
        }
    }
    if let Some(device) = &run.device {
        ui.label(format!("on {} ({})", device.name, device.id));
    }
    ui.weak(if is_shown {
        "The other panels show this run."
    } else {
        "Click to show it, right-click to compare it with the shown run and for more."
    });
}
