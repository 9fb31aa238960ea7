//! The stored runs: a table, actions on the selected one, and a comparison of two.

use std::path::{Path, PathBuf};

use eframe::egui::{self, Button, Label, Rect, RichText, Sense, pos2, vec2};
use web_time::SystemTime;

use super::{Intent, platform, theme};
use crate::run_index::{RunState, RunSummary};

/// Crashed runs offered for continuation at a time.
const MAX_OFFERS: usize = 3;

/// State of the panel between frames.
#[derive(Debug, Default)]
pub(super) struct RunsState {
    /// The folder with the runs.
    pub(super) folder: PathBuf,
    /// The selected run, or two to compare, in the order of selection.
    pub(super) selected: Vec<PathBuf>,
    /// Runs whose curves are overlaid on those of the displayed run.
    pub(super) overlaid: Vec<PathBuf>,
    /// Settings in which the two selected runs differ, as key and both values; `None` until loaded.
    pub(super) difference: Option<Vec<(&'static str, String, String)>>,
    /// Crashed runs that are no longer offered, with their time of change: a new crash is offered
    /// again.
    dismissed: Vec<(PathBuf, SystemTime)>,
    /// The run or model to delete once the user confirms.
    deleting: Option<PathBuf>,
}

/// Browser storage: its use, and the models stored besides the runs.
pub(super) struct BrowserStorage<'a> {
    /// The used and available space, as a sentence.
    pub usage: &'a str,
    /// Imported models, as folder and description.
    pub models: &'a [(PathBuf, String)],
}

/// Draws the panel. `shown` is the run that the other panels display.
pub(super) fn show(
    ui: &mut egui::Ui,
    runs: &[RunSummary],
    storage: &BrowserStorage<'_>,
    state: &mut RunsState,
    shown: Option<&Path>,
) -> Option<Intent> {
    let mut intent =
        if platform::IS_PAGE { usage(ui, storage.usage) } else { folder(ui, &state.folder) };
    intent = intent.or(models(ui, storage.models, state));
    if runs.is_empty() {
        ui.weak(match platform::IS_PAGE {
            true => "No runs yet. Start one on the left.",
            false => "No runs yet. Start one on the left, or choose a folder with runs.",
        });
        return intent;
    }
    state.selected.retain(|path| runs.iter().any(|run| run.path == *path));
    intent = intent.or(offers(ui, runs, state));
    let selected = state.selected.last().and_then(|path| runs.iter().find(|r| r.path == *path));
    intent = intent.or(actions(ui, selected, &mut state.overlaid, &mut state.deleting));
    ui.separator();
    let before = state.selected.clone();
    intent = intent.or(table(ui, runs, state, shown));
    // After a change of selection, `difference` still belongs to the previous two.
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

/// Draws the storage used in the browser, and the import button.
fn usage(ui: &mut egui::Ui, text: &str) -> Option<Intent> {
    let left = |ui: &mut egui::Ui| {
        let label = ui.add(Label::new(RichText::new(text).weak()).truncate());
        label.on_hover_text(
            "Stored on this computer, for this web address. Nothing is sent anywhere.",
        );
    };
    let right = |ui: &mut egui::Ui| {
        let help = "Import a zip with a Hugging Face GPT-2 folder or a wgpt checkpoint";
        ui.button("Import...").on_hover_text(help).clicked().then_some(Intent::ChooseRuns)
    };
    egui::Sides::new().shrink_left().truncate().show(ui, left, right).1
}

/// Draws the imported models with their actions.
fn models(
    ui: &mut egui::Ui,
    models: &[(PathBuf, String)],
    state: &mut RunsState,
) -> Option<Intent> {
    let mut intent = None;
    for (path, description) in models {
        ui.horizontal_wrapped(|ui| {
            ui.add(Label::new(description).truncate());
            let mut button = |text: &str, help: &str, to_intent: fn(PathBuf) -> Intent| {
                if ui.small_button(text).on_hover_text(help).clicked() {
                    intent = Some(to_intent(path.clone()));
                }
            };
            button("Show", "Generate text with it, under Samples", Intent::Show);
            button(
                "New run from it",
                "Set up a new run that starts with its weights",
                Intent::Fork,
            );
            button("Export", "Download it as a zip", Intent::Export);
            intent = intent.take().or(delete(ui, path, &mut state.deleting));
        });
    }
    if !models.is_empty() {
        ui.separator();
    }
    intent
}

/// Draws a delete button that asks for confirmation.
fn delete(ui: &mut egui::Ui, path: &Path, deleting: &mut Option<PathBuf>) -> Option<Intent> {
    if deleting.as_deref() != Some(path) {
        if ui.button("Delete").on_hover_text("Delete it from this browser").clicked() {
            *deleting = Some(path.to_path_buf());
        }
        return None;
    }
    let confirm = RichText::new("Delete permanently").color(theme::error(ui));
    if ui.button(confirm).clicked() {
        *deleting = None;
        return Some(Intent::Remove(path.to_path_buf()));
    }
    if ui.button("Keep").clicked() {
        *deleting = None;
    }
    None
}

/// Offers to continue crashed runs that have a checkpoint.
fn offers(ui: &mut egui::Ui, runs: &[RunSummary], state: &mut RunsState) -> Option<Intent> {
    let id = |run: &RunSummary| (run.path.clone(), run.modified);
    let is_crashed = |run: &&RunSummary| run.state == RunState::Crashed && run.has_checkpoint;
    let is_open = |run: &&RunSummary| !state.dismissed.contains(&id(run));
    let offered: Vec<&RunSummary> = runs.iter().filter(is_crashed).filter(is_open).collect();
    let mut intent = None;
    for run in offered.iter().take(MAX_OFFERS) {
        let question = "was interrupted. Continue from its last checkpoint?";
        ui.colored_label(theme::warning(ui), format!("{} {question}", run.name));
        if ui.add(Button::new(format!("Continue {}", run.name)).truncate()).clicked() {
            intent = Some(Intent::Continue(run.path.clone()));
        }
    }
    if !offered.is_empty() {
        let hint = "Stop asking. The runs and their checkpoints stay in place.";
        if ui.button("Not now").on_hover_text(hint).clicked() {
            state.dismissed.extend(offered.into_iter().map(id));
        }
        ui.separator();
    }
    intent
}

/// Draws the actions on the selected run.
fn actions(
    ui: &mut egui::Ui,
    run: Option<&RunSummary>,
    overlaid: &mut Vec<PathBuf>,
    deleting: &mut Option<PathBuf>,
) -> Option<Intent> {
    let none = run.is_none().then_some("Select a run first.");
    let no_checkpoint = run.filter(|run| !run.has_checkpoint).map(|_| "It has no checkpoint yet.");
    let is_live = |run: &&RunSummary| matches!(run.state, RunState::Running | RunState::Paused);
    let running = run.filter(is_live).map(|_| "It is running.");
    let overlay = run.and_then(|run| overlaid.iter().position(|path| *path == run.path));
    let mut clicked = None;
    ui.horizontal_wrapped(|ui| {
        let mut button = |text: &str, is_on: bool, disabled: Option<&str>, help: &str| {
            let button = Button::new(text).selected(is_on);
            let response = ui.add_enabled(disabled.is_none(), button).on_hover_text(help);
            response.on_disabled_hover_text(disabled.unwrap_or_default()).clicked()
        };
        let intent = |make: fn(PathBuf) -> Intent| run.map(|run| make(run.path.clone()));
        if button("Show", false, none, "Show its curves, samples and log") {
            clicked = intent(Intent::Show);
        }
        let disabled = none.or(running).or(no_checkpoint);
        if button("Continue", false, disabled, "Continue from its newest checkpoint") {
            clicked = intent(Intent::Continue);
        }
        let help = "Set up a new run with its settings that starts with its weights";
        if button("New run from it", false, none.or(no_checkpoint), help) {
            clicked = intent(Intent::Fork);
        }
        let help = "Draw its curves next to those of the displayed run, or hide them again";
        if button("Overlay", overlay.is_some(), none, help) {
            clicked = intent(Intent::Overlay);
            match (overlay, run) {
                (Some(index), _) => drop(overlaid.remove(index)),
                (None, run) => overlaid.extend(run.map(|run| run.path.clone())),
            }
        }
        if !platform::IS_PAGE {
            if button("Open folder", false, none, "Show its files") {
                clicked = intent(Intent::OpenFolder);
            }
            return;
        }
        let help = "Download its best checkpoint as a zip with a Hugging Face folder";
        if button("Export", false, none.or(no_checkpoint), help) {
            clicked = intent(Intent::Export);
        }
        if let (None, Some(run)) = (running, run) {
            clicked = clicked.take().or(delete(ui, &run.path, deleting));
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
    let is_comparing = state.selected.len() == 2;
    let available = ui.available_height();
    let height = if is_comparing { (available / 2.0).max(80.0) } else { available };
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
                    let is_toggle = ui.input(|input| input.modifiers.command);
                    select(&mut state.selected, &run.path, is_toggle);
                }
            }
        });
    });
    intent
}

/// Selects `run` alone, or toggles it as one of at most two (Ctrl+click).
fn select(selected: &mut Vec<PathBuf>, run: &Path, is_toggle: bool) {
    match selected.iter().position(|path| path == run) {
        Some(index) if is_toggle => drop(selected.remove(index)),
        _ => {
            let kept = if is_toggle { 1.min(selected.len()) } else { 0 };
            selected.drain(..selected.len() - kept);
            selected.push(run.to_path_buf());
        }
    }
}

/// Widths of the row and its columns, in points. The name gets the remaining width.
struct Columns {
    width: f32,
    state: f32,
    iteration: f32,
    /// True if the row is wide enough for iteration counts; else it shows percentages.
    counts: bool,
    loss: f32,
    /// 0 if the row is too narrow for this column.
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

    /// Returns the right edges of name, state, iteration and loss. The age ends with the row.
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
    let texts = ["name", "state", progress, "val loss", "age"];
    cells(ui, rect, columns, texts, egui::TextStyle::Small, color);
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
        info.current_text_value = Some(state_name(&run.state).into());
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
        let texts = [run.name.as_str(), state_name(&run.state), &progress, &loss, &age];
        cells(ui, rect, columns, texts, egui::TextStyle::Body, visuals.text_color());
        dot(ui, pos2(rect.left() + columns.ends()[0] + GAP + 4.0, rect.center().y), &run.state);
    }
    response.on_hover_ui(|ui| details(ui, run, is_shown))
}

/// Paints the texts of a row: name and state left-aligned, numbers right-aligned.
fn cells(
    ui: &egui::Ui,
    rect: Rect,
    columns: &Columns,
    texts: [&str; 5],
    style: egui::TextStyle,
    color: egui::Color32,
) {
    let [name, state, iteration, loss] = columns.ends();
    let spans = [
        (GAP, name),
        (name + GAP + DOT, state),
        (state + GAP, iteration),
        (iteration + GAP, loss),
        (columns.width - columns.age - GAP / 2.0, columns.width - GAP / 2.0),
    ];
    let font = style.resolve(ui.style());
    for (column, (text, (from, to))) in texts.into_iter().zip(spans).enumerate() {
        if column == 4 && columns.age == 0.0 || text.is_empty() {
            continue;
        }
        let mut job = egui::text::LayoutJob::simple_singleline(text.into(), font.clone(), color);
        job.wrap = egui::text::TextWrapping::truncate_at_width((to - from).max(0.0));
        let galley = ui.painter().layout_job(job);
        let x = if column < 2 { from } else { (to - galley.size().x).max(from) };
        let corner = pos2(rect.left() + x, rect.center().y - galley.size().y / 2.0);
        ui.painter().galley(corner, galley, color);
    }
}

/// Paints the dot of a state. Running, failed and crashed runs have a filled one, so that the
/// colour is not the only difference.
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

fn state_name(state: &RunState) -> &'static str {
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

/// Formats the progress of a run as a count, `50/120`, or as a percentage.
fn progress(run: &RunSummary, counts: bool) -> String {
    match (run.max_iters, counts) {
        (Some(all), true) => format!("{}/{all}", run.iteration),
        (Some(all), false) => format!("{}%", (run.iteration as f64 / all as f64 * 100.0) as u64),
        (None, true) => run.iteration.to_string(),
        (None, false) => String::new(),
    }
}

/// Formats the time since `modified` in its largest unit: `5 min`.
fn age(modified: SystemTime) -> String {
    let seconds = modified.elapsed().map_or(0, |age| age.as_secs());
    match seconds {
        0..60 => "now".into(),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Draws the tooltip of a run.
fn details(ui: &mut egui::Ui, run: &RunSummary, is_shown: bool) {
    ui.set_max_width(360.0);
    ui.strong(&run.name);
    ui.weak(run.path.display().to_string());
    match &run.state {
        RunState::Failed { text } => ui.colored_label(theme::error(ui), text),
        RunState::Crashed => ui.label("Interrupted: its process ended before the run did."),
        RunState::Empty => ui.label("Not started."),
        state => ui.label(state_name(state)),
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
    ui.weak(match is_shown {
        true => "The other panels show this run.",
        false => "Double-click to show it, Ctrl+click to compare two.",
    });
}

/// Draws the settings in which the two selected runs differ.
fn comparison(ui: &mut egui::Ui, state: &RunsState) {
    let [a, b] = &state.selected[..] else { return };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ui.separator();
    ui.add(Label::new(RichText::new("Differences").strong()).truncate());
    match &state.difference {
        None => ui.weak("Reading their settings..."),
        Some(difference) if difference.is_empty() => ui.weak("Both have the same settings."),
        Some(difference) => {
            let column = (ui.available_width() - 2.0 * GAP) / 3.0;
            let grid = egui::Grid::new("difference").num_columns(3).striped(true);
            let grid = grid.min_col_width(column).max_col_width(column).spacing([GAP, 2.0]);
            let cell = |ui: &mut egui::Ui, text: RichText| ui.add(Label::new(text).truncate());
            let area = egui::ScrollArea::vertical().id_salt("difference");
            let drawn = area.auto_shrink([false, true]).show(ui, |ui| {
                grid.show(ui, |ui| {
                    for heading in ["setting".to_string(), name(a), name(b)] {
                        cell(ui, RichText::new(heading).weak());
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
