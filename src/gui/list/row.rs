//! The rows of the list.

use std::path::Path;

use eframe::egui::{self, Pos2, Rect, Sense, TextStyle, Ui, pos2, vec2};

use super::menu;
use crate::gui::intent::Intent;
use crate::gui::state::Library;
use crate::gui::theme;
use crate::runs::{RunState, RunSummary};
use crate::text::{age, percent_done};

/// Draws the runs. A click shows a run. Ctrl+click adds its curves to those of the shown run, or removes them.
pub(super) fn runs(ui: &mut Ui, library: &mut Library, shown: Option<&Path>) -> Option<Intent> {
    let Library { runs, overlays, dialog, .. } = library;
    let mut intent = None;
    for run in runs.iter() {
        let is_shown = shown == Some(run.path.as_path());
        let overlay = overlays.iter().position(|overlay| overlay.run == run.path);
        // The colors of its curves, while there are several.
        let own = (is_shown && !overlays.is_empty()).then_some(0);
        let series = overlay.filter(|_| shown.is_some()).map(|index| index + 2).or(own);
        let (response, more) = row(ui, run, is_shown, series);
        if response.clicked() {
            let compares = ui.input(|input| input.modifiers.command) && shown.is_some();
            intent = Some(if compares && !is_shown {
                Intent::Overlay(menu::toggled(overlays, &run.path))
            } else {
                Intent::Show(run.path.clone())
            });
        }
        let mut items = |ui: &mut Ui| menu::items(ui, run, overlays, shown, dialog);
        for popup in [egui::Popup::menu(&more), egui::Popup::context_menu(&response)] {
            intent = popup.show(&mut items).and_then(|it| it.inner).or(intent.take());
        }
    }
    intent
}

/// The distance of the text from the left edge, behind the dot of the state, and the room for the button of the
/// menu, in points.
const TEXT: f32 = 22.0;
const MENU: f32 = 28.0;
const PADDING: f32 = 4.0;

/// Draws a run: its name, and below it how far it is. `series` is the color of its curves, if they are drawn with
/// others. Returns the row and the button of its menu.
fn row(
    ui: &mut Ui,
    run: &RunSummary,
    is_shown: bool,
    series: Option<usize>,
) -> (egui::Response, egui::Response) {
    let [body, small] = [TextStyle::Body, TextStyle::Small].map(|it| ui.text_style_height(&it));
    let size = vec2(ui.available_width(), body + small + 2.0 * PADDING);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    response.widget_info(|| {
        let role = egui::Role::Button;
        let info = egui::WidgetInfo::selected(role, ui.is_enabled(), is_shown, run.title());
        egui::WidgetInfo { current_text_value: Some(run.state.name().into()), ..info }
    });
    if ui.is_rect_visible(rect) {
        let visuals = background(ui, &response, is_shown);
        if let Some(series) = series {
            let bar = Rect::from_min_size(rect.min, vec2(3.0, rect.height()));
            ui.painter().rect_filled(bar, 0.0, theme::series_color(ui, series));
        }
        let left = rect.left() + TEXT;
        let width = rect.width() - TEXT - MENU;
        let place = pos2(left, rect.top() + PADDING);
        let weak = if is_shown { visuals.text_color() } else { ui.visuals().weak_text_color() };
        text(ui, place, width, run.title(), TextStyle::Body, visuals.text_color());
        text(ui, place + vec2(0.0, body), width, &outcome(run), TextStyle::Small, weak);
        dot(ui, pos2(rect.left() + 12.0, rect.top() + PADDING + body / 2.0), &run.state);
    }
    let right = Rect::from_min_max(pos2(rect.right() - MENU, rect.top()), rect.max);
    let more =
        ui.put(right.shrink2(vec2(1.0, 6.0)), egui::Button::new("…").frame_when_inactive(false));
    ui.advance_cursor_after_rect(rect);
    let more = more.on_hover_text("What can be done with this run");
    let more = more.accessible_name(format!("Menu of {}", run.title()));
    (response.on_hover_ui(|ui| details(ui, run)), more)
}

/// Describes how far a run is, and how well it does.
fn outcome(run: &RunSummary) -> String {
    let done = run.max_iters.map(|all| percent_done(run.iteration, all)).unwrap_or_default();
    let loss = run.val_loss.or(run.loss).map(|loss| format!("loss {loss:.3}"));
    let age = match age(run.age()).as_str() {
        "now" => "now".to_string(),
        age => format!("{age} ago"),
    };
    let parts = match &run.state {
        RunState::Running => [Some(done).filter(|done| !done.is_empty()), loss, None],
        RunState::Finished => [Some(age), loss, None],
        state => [Some(format!("{} {done}", state.name()).trim().into()), loss, Some(age)],
    };
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Draws a row with a text alone. Returns true if it was clicked.
pub(super) fn line(ui: &mut Ui, name: &str, is_shown: bool, help: &str) -> bool {
    let height = ui.text_style_height(&TextStyle::Body) + 2.0 * PADDING;
    let size = vec2(ui.available_width(), height);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    response.widget_info(|| {
        egui::WidgetInfo::selected(egui::Role::Button, ui.is_enabled(), is_shown, name)
    });
    let visuals = background(ui, &response, is_shown);
    let place = pos2(rect.left() + TEXT, rect.top() + PADDING);
    text(ui, place, rect.width() - TEXT, name, TextStyle::Body, visuals.text_color());
    response.on_hover_text(help).clicked()
}

/// Paints the background of a row that is shown, pointed at or has the focus, which also has a frame.
fn background(ui: &Ui, row: &egui::Response, is_shown: bool) -> egui::style::WidgetVisuals {
    let visuals = ui.style().interact_selectable(row, is_shown);
    if is_shown || row.hovered() || row.has_focus() {
        ui.painter().rect_filled(row.rect, 3.0, visuals.weak_bg_fill);
    }
    if row.has_focus() {
        let stroke = egui::Stroke::new(1.5, ui.visuals().strong_text_color());
        ui.painter().rect_stroke(row.rect, 3.0, stroke, egui::StrokeKind::Inside);
    }
    visuals
}

fn text(ui: &Ui, at: Pos2, width: f32, text: &str, style: TextStyle, color: egui::Color32) {
    let font = style.resolve(ui.style());
    let mut job = egui::text::LayoutJob::simple_singleline(text.into(), font, color);
    job.wrap = egui::text::TextWrapping::truncate_at_width(width);
    let galley = ui.painter().layout_job(job);
    ui.painter().galley(at, galley, color);
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

fn details(ui: &mut Ui, run: &RunSummary) {
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
    ui.weak("Ctrl+click to compare it with the shown run.");
}
