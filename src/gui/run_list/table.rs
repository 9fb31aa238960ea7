//! The table of the runs.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Rect, Sense, TextStyle, Ui, pos2, vec2};

use super::{GAP, Library};
use crate::gui::{Intent, theme};
use crate::runs::{RunState, RunSummary};
use crate::text::{age, percent_done};

/// Draws the table. Clicks select runs; a double-click shows one.
pub(super) fn show(ui: &mut Ui, library: &mut Library, shown: Option<&Path>) -> Option<Intent> {
    let Library { runs, selected, overlays, .. } = library;
    let columns = Columns::new(ui.available_width());
    let height = ui.text_style_height(&TextStyle::Small);
    let (header, _) = ui.allocate_exact_size(vec2(columns.width, height), Sense::hover());
    let progress = if columns.counts { "iteration" } else { "done" };
    let color = ui.visuals().weak_text_color();
    let headings = ["name", "state", progress, "val loss", "age"];
    cells(ui, header, &columns, headings, TextStyle::Small, color);
    let available = ui.available_height();
    let is_comparing = selected.len() == 2;
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
                let response = row(ui, &columns, run, selected.contains(&run.path), series);
                if response.double_clicked() {
                    *selected = vec![run.path.clone()];
                    intent = Some(Intent::Show(run.path.clone()));
                } else if response.clicked() {
                    let is_toggle = ui.input(|input| input.modifiers.command);
                    select(selected, &run.path, is_toggle);
                }
            }
        });
    });
    intent
}

/// Selects `run` alone, or adds it to the selected runs or removes it (Ctrl+click).
fn select(selected: &mut Vec<PathBuf>, run: &Path, is_toggle: bool) {
    match selected.iter().position(|path| path == run) {
        _ if !is_toggle => *selected = vec![run.to_path_buf()],
        Some(index) => drop(selected.remove(index)),
        None => selected.push(run.to_path_buf()),
    }
}

const DOT: f32 = 14.0;

/// The columns of the table, in points.
struct Columns {
    width: f32,
    /// The left and right ends of name, state, iteration, loss and age.
    spans: [(f32, f32); 5],
    /// True if the row is wide enough for iteration counts; else it shows percentages.
    counts: bool,
}

impl Columns {
    fn new(width: f32) -> Self {
        let counts = width >= 360.0;
        let mut spans = [(GAP, 0.0); 5];
        let mut right = width - GAP / 2.0;
        let iteration = if counts { 104.0 } else { 40.0 };
        // A narrow row has no age, and the name gets the remaining width.
        let age = if width >= 290.0 { 42.0 } else { 0.0 };
        for (column, width) in [(4, age), (3, 52.0), (2, iteration), (1, 66.0)] {
            spans[column] = (right - width, right);
            right -= if width > 0.0 { width + GAP } else { 0.0 };
        }
        spans[0].1 = right;
        Self { width, spans, counts }
    }
}

/// Draws a run. `series` is the color of its curves, if they are drawn.
fn row(
    ui: &mut Ui,
    columns: &Columns,
    run: &RunSummary,
    is_selected: bool,
    series: Option<usize>,
) -> egui::Response {
    let size = vec2(columns.width, ui.spacing().interact_size.y);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    response.widget_info(|| {
        let role = egui::Role::Button;
        let info = egui::WidgetInfo::selected(role, ui.is_enabled(), is_selected, run.title());
        egui::WidgetInfo { current_text_value: Some(run.state.name().into()), ..info }
    });
    if ui.is_rect_visible(rect) {
        let visuals = ui.style().interact_selectable(&response, is_selected);
        if is_selected || response.hovered() || response.has_focus() {
            ui.painter().rect_filled(rect, 2.0, visuals.weak_bg_fill);
        }
        if let Some(series) = series {
            let bar = Rect::from_min_size(rect.min, vec2(3.0, rect.height()));
            ui.painter().rect_filled(bar, 0.0, theme::series_color(ui, series));
        }
        let progress = progress(run, columns.counts);
        let loss = run.val_loss.map(|loss| format!("{loss:.4}")).unwrap_or_default();
        let age = age(run.modified.elapsed().unwrap_or_default());
        let texts = [run.title(), run.state.name(), &progress, &loss, &age];
        cells(ui, rect, columns, texts, TextStyle::Body, visuals.text_color());
        dot(ui, pos2(rect.left() + columns.spans[1].0 + 4.0, rect.center().y), &run.state);
    }
    response.on_hover_ui(|ui| details(ui, run, series == Some(0)))
}

/// Paints the texts of a row: name and state left-aligned, numbers right-aligned.
fn cells(
    ui: &Ui,
    rect: Rect,
    columns: &Columns,
    texts: [&str; 5],
    style: TextStyle,
    color: egui::Color32,
) {
    let font = style.resolve(ui.style());
    for (column, (text, (from, to))) in texts.into_iter().zip(columns.spans).enumerate() {
        let from = if column == 1 { from + DOT } else { from };
        if from >= to || text.is_empty() {
            continue;
        }
        let mut job = egui::text::LayoutJob::simple_singleline(text.into(), font.clone(), color);
        job.wrap = egui::text::TextWrapping::truncate_at_width(to - from);
        let galley = ui.painter().layout_job(job);
        let x = if column < 2 { from } else { (to - galley.size().x).max(from) };
        let corner = pos2(rect.left() + x, rect.center().y - galley.size().y / 2.0);
        ui.painter().galley(corner, galley, color);
    }
}

/// Paints the dot of a state. Running, failed and crashed runs have a filled one, so that the
/// color is not the only difference.
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

/// Formats the progress of a run as a count, `50/120`, or as a percentage.
fn progress(run: &RunSummary, counts: bool) -> String {
    match (run.max_iters, counts) {
        (Some(all), true) => format!("{}/{all}", run.iteration),
        (Some(all), false) => percent_done(run.iteration, all),
        (None, true) => run.iteration.to_string(),
        (None, false) => String::new(),
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
        "Double-click to show it, Ctrl+click to compare two or to overlay more."
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_click_selects_one_run_and_ctrl_click_any_number() {
        let mut selected = Vec::new();
        for (run, is_toggle, expected) in [
            ("a", false, "a"),
            ("b", true, "ab"),
            ("c", true, "abc"),
            ("b", true, "ac"),
            ("b", false, "b"),
            ("b", false, "b"),
        ] {
            select(&mut selected, Path::new(run), is_toggle);
            let names: String = selected.iter().map(|run| run.to_string_lossy()).collect();
            assert_eq!(names, expected);
        }
    }
}
