//! The runs on the disk: a table, what can be done with the selected one, and how two differ.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Button, Label, Rect, RichText, Sense, pos2, vec2};
use web_time::SystemTime;

use super::{Intent, host, theme};
use crate::run_index::{RunState, RunSummary};

/// Runs that are offered to be continued at a time.
const MOST_OFFERS: usize = 3;

/// What the panel keeps between frames.
#[derive(Debug, Default)]
pub(super) struct RunsState {
    /// Where runs are looked for.
    pub(super) folder: PathBuf,
    /// The run that was clicked, or two to compare; the last one last.
    pub(super) selected: Vec<PathBuf>,
    /// Runs whose curves are drawn beside the one that is shown.
    pub(super) overlaid: Vec<PathBuf>,
    /// Settings in which the two selected runs differ, as key and both values; `None` until known.
    pub(super) difference: Option<Vec<(&'static str, String, String)>>,
    /// Runs that are to be offered no more, until they crash again.
    dismissed: Vec<(PathBuf, SystemTime)>,
    /// What is to be removed, once that is confirmed.
    removing: Option<PathBuf>,
}

/// What a page keeps beside runs.
pub(super) struct Kept<'a> {
    /// Where that is, in words.
    pub where_to: &'a str,
    /// Models that came from elsewhere, by their folders, and what they are.
    pub models: &'a [(PathBuf, String)],
}

/// Draws the panel. `shown` is the run that the other panels show.
pub(super) fn show(
    ui: &mut egui::Ui,
    runs: &[RunSummary],
    kept: &Kept<'_>,
    state: &mut RunsState,
    shown: Option<&Path>,
) -> Option<Intent> {
    let mut intent =
        if host::IS_PAGE { storage(ui, kept.where_to) } else { folder(ui, &state.folder) };
    intent = intent.or(kept_models(ui, kept.models, state));
    if runs.is_empty() && host::IS_PAGE {
        ui.weak("No run yet. Start one on the left.");
        return intent;
    }
    if runs.is_empty() {
        ui.weak("No run yet. Start one on the left, or choose a folder that has some.");
        return intent;
    }
    state.selected.retain(|path| runs.iter().any(|run| run.path == *path));
    intent = intent.or(offers(ui, runs, state));
    let selected = state.selected.last().and_then(|path| runs.iter().find(|r| r.path == *path));
    intent = intent.or(actions(ui, selected, &mut state.overlaid, &mut state.removing));
    ui.separator();
    let before = state.selected.clone();
    intent = intent.or(table(ui, runs, state, shown));
    // What is known is how the former two differ.
    if before == state.selected {
        comparison(ui, state);
    }
    intent
}

fn folder(ui: &mut egui::Ui, folder: &Path) -> Option<Intent> {
    let path = folder.display().to_string();
    let left = |ui: &mut egui::Ui| {
        ui.label("Folder");
        ui.add(Label::new(RichText::new(path).weak()).truncate());
    };
    let right = |ui: &mut egui::Ui| {
        let choose = ui.button("Choose...").on_hover_text("Choose a folder with runs");
        choose.clicked().then_some(Intent::ChooseRuns)
    };
    egui::Sides::new().shrink_left().truncate().show(ui, left, right).1
}

/// Where runs are in a browser, and how others come there.
fn storage(ui: &mut egui::Ui, words: &str) -> Option<Intent> {
    let left = |ui: &mut egui::Ui| {
        let label = ui.add(Label::new(RichText::new(words).weak()).truncate());
        label.on_hover_text("By the page's address, on this machine. Nothing is sent anywhere.");
    };
    let right = |ui: &mut egui::Ui| {
        let help = "A zip with a Hugging Face GPT-2 folder or a checkpoint of wgpt's";
        ui.button("Import...").on_hover_text(help).clicked().then_some(Intent::ChooseRuns)
    };
    egui::Sides::new().shrink_left().truncate().show(ui, left, right).1
}

/// Models that came from elsewhere, and what can be done with them.
fn kept_models(
    ui: &mut egui::Ui,
    models: &[(PathBuf, String)],
    state: &mut RunsState,
) -> Option<Intent> {
    let mut intent = None;
    for (path, words) in models {
        ui.horizontal_wrapped(|ui| {
            ui.add(Label::new(words).truncate());
            let mut button = |text: &str, help: &str, asks: fn(PathBuf) -> Intent| {
                if ui.small_button(text).on_hover_text(help).clicked() {
                    intent = Some(asks(path.clone()));
                }
            };
            button("Show", "Let it write, under Samples", Intent::Show);
            button("Start from it", "A new run that begins with its weights", Intent::Fork);
            button("Export", "Download it as a zip", Intent::Export);
            intent = intent.take().or(remove(ui, path, &mut state.removing));
        });
    }
    if !models.is_empty() {
        ui.separator();
    }
    intent
}

/// A button that asks once more.
fn remove(ui: &mut egui::Ui, path: &Path, removing: &mut Option<PathBuf>) -> Option<Intent> {
    if removing.as_deref() != Some(path) {
        if ui.button("Remove").on_hover_text("Remove it from this browser").clicked() {
            *removing = Some(path.to_path_buf());
        }
        return None;
    }
    let sure = RichText::new("Remove for good").color(theme::error(ui));
    if ui.button(sure).clicked() {
        *removing = None;
        return Some(Intent::Remove(path.to_path_buf()));
    }
    if ui.button("Keep").clicked() {
        *removing = None;
    }
    None
}

/// Crashed runs that lost nothing but what came after their last checkpoint.
fn offers(ui: &mut egui::Ui, runs: &[RunSummary], state: &mut RunsState) -> Option<Intent> {
    let of = |run: &RunSummary| (run.path.clone(), run.modified);
    let crashed = |run: &&RunSummary| run.state == RunState::Crashed && run.has_checkpoint;
    let open = |run: &&RunSummary| !state.dismissed.contains(&of(run));
    let offered: Vec<&RunSummary> = runs.iter().filter(crashed).filter(open).collect();
    let mut intent = None;
    for run in offered.iter().take(MOST_OFFERS) {
        let question = "was interrupted. Continue from its last checkpoint?";
        ui.colored_label(theme::warning(ui), format!("{} {question}", run.name));
        if ui.add(Button::new(format!("Continue {}", run.name)).truncate()).clicked() {
            intent = Some(Intent::Continue(run.path.clone()));
        }
    }
    if !offered.is_empty() {
        let hint = "Do not ask again. The runs stay where they are, with their checkpoints.";
        if ui.button("Not now").on_hover_text(hint).clicked() {
            state.dismissed.extend(offered.into_iter().map(of));
        }
        ui.separator();
    }
    intent
}

fn actions(
    ui: &mut egui::Ui,
    run: Option<&RunSummary>,
    overlaid: &mut Vec<PathBuf>,
    removing: &mut Option<PathBuf>,
) -> Option<Intent> {
    let none = run.is_none().then_some("Select a run first.");
    let no_checkpoint = run.filter(|run| !run.has_checkpoint).map(|_| "It has no checkpoint yet.");
    let is_live = |run: &&RunSummary| matches!(run.state, RunState::Running | RunState::Paused);
    let running = run.filter(is_live).map(|_| "It is running.");
    let place = run.and_then(|run| overlaid.iter().position(|path| *path == run.path));
    let mut clicked = None;
    ui.horizontal_wrapped(|ui| {
        let mut button = |text: &str, on: bool, refusal: Option<&str>, help: &str| {
            let button = Button::new(text).selected(on);
            let response = ui.add_enabled(refusal.is_none(), button).on_hover_text(help);
            response.on_disabled_hover_text(refusal.unwrap_or_default()).clicked()
        };
        let of = |intent: fn(PathBuf) -> Intent| run.map(|run| intent(run.path.clone()));
        if button("Show", false, none, "Show its curves, texts and log") {
            clicked = of(Intent::Show);
        }
        let refusal = none.or(running).or(no_checkpoint);
        if button("Continue", false, refusal, "Go on from its newest checkpoint") {
            clicked = of(Intent::Continue);
        }
        let help = "A new run with its settings that begins with its weights";
        if button("Start from it", false, none.or(no_checkpoint), help) {
            clicked = of(Intent::Fork);
        }
        let help = "Draw its curves beside the run that is shown, or no longer";
        if button("Overlay", place.is_some(), none, help) {
            clicked = of(Intent::Overlay);
            match (place, run) {
                (Some(place), _) => drop(overlaid.remove(place)),
                (None, run) => overlaid.extend(run.map(|run| run.path.clone())),
            }
        }
        if !host::IS_PAGE {
            if button("Open folder", false, none, "Show its files") {
                clicked = of(Intent::OpenFolder);
            }
            return;
        }
        let help = "Download its best checkpoint: a zip with a Hugging Face folder";
        if button("Export", false, none.or(no_checkpoint), help) {
            clicked = of(Intent::Export);
        }
        if let (None, Some(run)) = (running, run) {
            clicked = clicked.take().or(remove(ui, &run.path, removing));
        }
    });
    clicked
}

fn table(
    ui: &mut egui::Ui,
    runs: &[RunSummary],
    state: &mut RunsState,
    shown: Option<&Path>,
) -> Option<Intent> {
    let columns = Columns::new(ui.available_width());
    header(ui, &columns);
    let compares = state.selected.len() == 2;
    let room = ui.available_height();
    let height = if compares { (room / 2.0).max(80.0) } else { room };
    let mut intent = None;
    ui.scope(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        let row_height = ui.spacing().interact_size.y;
        let area = egui::ScrollArea::vertical().id_salt("runs").max_height(height);
        area.auto_shrink([false, true]).show_rows(ui, row_height, runs.len(), |ui, visible| {
            for run in &runs[visible] {
                let is_shown = shown == Some(run.path.as_path());
                let is_selected = state.selected.contains(&run.path);
                let response = row(ui, &columns, run, is_selected, is_shown);
                if response.double_clicked() {
                    state.selected = vec![run.path.clone()];
                    intent = Some(Intent::Show(run.path.clone()));
                } else if response.clicked() {
                    let one_more = ui.input(|input| input.modifiers.command);
                    select(&mut state.selected, &run.path, one_more);
                }
            }
        });
    });
    intent
}

/// One run by a click, a second one by Ctrl+click, which also takes one out.
fn select(selected: &mut Vec<PathBuf>, run: &Path, one_more: bool) {
    match selected.iter().position(|path| path == run) {
        Some(place) if one_more => drop(selected.remove(place)),
        _ => {
            let kept = if one_more { 1.min(selected.len()) } else { 0 };
            selected.drain(..selected.len() - kept);
            selected.push(run.to_path_buf());
        }
    }
}

/// Where the columns end, from the left edge of a row. The name takes what is left.
struct Columns {
    width: f32,
    state: f32,
    iteration: f32,
    /// Whether there is room for the iterations themselves.
    counts: bool,
    loss: f32,
    /// 0 where there is no room for it.
    age: f32,
}

const GAP: f32 = 8.0;
const DOT: f32 = 14.0;

impl Columns {
    fn new(width: f32) -> Self {
        let counts = width >= 360.0;
        let age = if width >= 290.0 { 42.0 } else { 0.0 };
        let iteration = if counts { 104.0 } else { 40.0 };
        Self { width, state: 66.0, iteration, counts, loss: 52.0, age }
    }

    /// The ends of name, state, iteration and loss; the age ends with the row.
    fn ends(&self) -> [f32; 4] {
        let age = if self.age > 0.0 { self.age + GAP } else { 0.0 };
        let loss = self.width - age - GAP / 2.0;
        let iteration = loss - self.loss - GAP;
        let state = iteration - self.iteration - GAP;
        [state - self.state - GAP, state, iteration, loss]
    }
}

fn header(ui: &mut egui::Ui, columns: &Columns) {
    let height = ui.text_style_height(&egui::TextStyle::Small);
    let (rect, _) = ui.allocate_exact_size(vec2(columns.width, height), Sense::hover());
    let progress = if columns.counts { "iteration" } else { "done" };
    let color = ui.visuals().weak_text_color();
    cells(ui, rect, columns, ["name", "state", progress, "val loss", "age"], |_| {
        (egui::TextStyle::Small, color)
    });
}

fn row(
    ui: &mut egui::Ui,
    columns: &Columns,
    run: &RunSummary,
    is_selected: bool,
    is_shown: bool,
) -> egui::Response {
    let size = vec2(columns.width, ui.spacing().interact_size.y);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    response.widget_info(|| {
        let role = egui::Role::Button;
        let mut info = egui::WidgetInfo::selected(role, ui.is_enabled(), is_selected, &run.name);
        info.current_text_value = Some(word(&run.state).into());
        info
    });
    if ui.is_rect_visible(rect) {
        let visuals = ui.style().interact_selectable(&response, is_selected);
        if is_selected || response.hovered() || response.has_focus() {
            ui.painter().rect_filled(rect, 2.0, visuals.weak_bg_fill);
        }
        if is_shown {
            let bar = Rect::from_min_size(rect.min, vec2(2.0, rect.height()));
            ui.painter().rect_filled(bar, 0.0, theme::series_color(ui, 0));
        }
        let progress = progress(run, columns.counts);
        let loss = run.val_loss.map(|loss| format!("{loss:.4}")).unwrap_or_default();
        let age = age(run.modified);
        let texts = [run.name.as_str(), word(&run.state), &progress, &loss, &age];
        let text = visuals.text_color();
        cells(ui, rect, columns, texts, |_| (egui::TextStyle::Body, text));
        dot(ui, pos2(rect.left() + columns.ends()[0] + GAP + 4.0, rect.center().y), &run.state);
    }
    response.on_hover_ui(|ui| details(ui, run, is_shown))
}

/// Paints the texts of a row: names to the left, numbers to the right of their columns.
fn cells(
    ui: &egui::Ui,
    rect: Rect,
    columns: &Columns,
    texts: [&str; 5],
    look: impl Fn(usize) -> (egui::TextStyle, egui::Color32),
) {
    let [name, state, iteration, loss] = columns.ends();
    let spans = [
        (GAP, name),
        (name + GAP + DOT, state),
        (state + GAP, iteration),
        (iteration + GAP, loss),
        (columns.width - columns.age - GAP / 2.0, columns.width - GAP / 2.0),
    ];
    for (column, (text, (from, to))) in texts.into_iter().zip(spans).enumerate() {
        let (style, color) = look(column);
        if column == 4 && columns.age == 0.0 || text.is_empty() {
            continue;
        }
        let font = style.resolve(ui.style());
        let mut job = egui::text::LayoutJob::simple_singleline(text.into(), font, color);
        job.wrap = egui::text::TextWrapping::truncate_at_width((to - from).max(0.0));
        let galley = ui.painter().layout_job(job);
        let x = if column < 2 { from } else { (to - galley.size().x).max(from) };
        let corner = pos2(rect.left() + x, rect.center().y - galley.size().y / 2.0);
        ui.painter().galley(corner, galley, color);
    }
}

/// Filled where something is going on or wrong, so that it does not depend on the colour alone.
fn dot(ui: &egui::Ui, center: egui::Pos2, state: &RunState) {
    let weak = ui.visuals().weak_text_color();
    let (color, filled) = match state {
        RunState::Running => (theme::good(ui), true),
        RunState::Finished => (theme::good(ui), false),
        RunState::Stopped | RunState::Empty => (weak, false),
        RunState::Failed { .. } => (theme::error(ui), true),
        RunState::Crashed | RunState::Paused => (theme::warning(ui), true),
    };
    match filled {
        true => ui.painter().circle_filled(center, 4.0, color),
        false => ui.painter().circle_stroke(center, 3.5, egui::Stroke::new(1.5, color)),
    };
}

fn word(state: &RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Paused => "paused",
        RunState::Finished => "finished",
        RunState::Stopped => "stopped",
        RunState::Failed { .. } => "failed",
        RunState::Crashed => "crashed",
        RunState::Empty => "empty",
    }
}

fn progress(run: &RunSummary, counts: bool) -> String {
    match (run.max_iters, counts) {
        (Some(all), true) => format!("{}/{all}", run.iteration),
        (Some(all), false) => format!("{}%", (run.iteration as f64 / all as f64 * 100.0) as u64),
        (None, true) => run.iteration.to_string(),
        (None, false) => String::new(),
    }
}

fn age(modified: SystemTime) -> String {
    let seconds = modified.elapsed().map_or(0, |age| age.as_secs());
    match seconds {
        0..60 => "now".into(),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn details(ui: &mut egui::Ui, run: &RunSummary, is_shown: bool) {
    ui.set_max_width(360.0);
    ui.strong(&run.name);
    ui.weak(run.path.display().to_string());
    match &run.state {
        RunState::Failed { text } => ui.colored_label(theme::error(ui), text),
        RunState::Crashed => ui.label("It was interrupted: its process was ended."),
        RunState::Empty => ui.label("It has not begun."),
        state => ui.label(word(state)),
    };
    let of = run.max_iters.map(|all| format!(" of {all}")).unwrap_or_default();
    ui.label(format!("{}{of} iterations", run.iteration));
    for (what, loss) in [
        ("loss", run.loss),
        ("validation loss", run.val_loss),
        ("best validation loss", run.best_val_loss),
    ] {
        if let Some(loss) = loss {
            ui.label(format!("{what} {loss:.4}"));
        }
    }
    if let Some(device) = &run.device {
        ui.label(format!("on {} ({})", device.name, device.id));
    }
    ui.weak(match is_shown {
        true => "This is the run that is shown.",
        false => "Double-click to show it, Ctrl+click to compare two.",
    });
}

fn comparison(ui: &mut egui::Ui, state: &RunsState) {
    let [a, b] = &state.selected[..] else { return };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ui.separator();
    ui.add(Label::new(RichText::new("How they differ").strong()).truncate());
    match &state.difference {
        None => ui.weak("Their settings are not known yet."),
        Some(difference) if difference.is_empty() => ui.weak("Both have the same settings."),
        Some(difference) => {
            let column = (ui.available_width() - 2.0 * GAP) / 3.0;
            let grid = egui::Grid::new("difference").num_columns(3).striped(true);
            let grid = grid.min_col_width(column).max_col_width(column).spacing([GAP, 2.0]);
            let cell = |ui: &mut egui::Ui, text: RichText| ui.add(Label::new(text).truncate());
            let area = egui::ScrollArea::vertical().id_salt("difference");
            let drawn = area.auto_shrink([false, true]).show(ui, |ui| {
                grid.show(ui, |ui| {
                    for head in ["setting".to_string(), name(a), name(b)] {
                        cell(ui, RichText::new(head).weak());
                    }
                    ui.end_row();
                    for (key, a, b) in difference {
                        cell(ui, RichText::new(*key));
                        for value in [a, b] {
                            let text = if value.is_empty() { "none" } else { value };
                            cell(ui, RichText::new(text).monospace());
                        }
                        ui.end_row();
                    }
                })
                .response
            });
            drawn.inner
        }
    };
}
