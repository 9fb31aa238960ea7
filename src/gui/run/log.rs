//! The log of a run.

use std::fmt::Write as _;

use eframe::egui::{self, Align, Label, RichText, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::{RunRoom, Shared};
use crate::gui::target::IS_PAGE;
use crate::gui::theme;
use crate::gui::widgets::{button, cell};
use crate::protocol::{Cause, DeviceLine, Level, LogLine, Progress, RunError, RunPhase};
use crate::version;

/// Lines drawn at first, and added each time earlier ones are requested: every line costs frame
/// time.
const PAGE: usize = 100;

pub fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { shown, run: RunRoom { only_problems, earlier_pages, .. }, .. } = shared;
    let progress = &shown.progress;
    let mut intent = None;
    // After a failure they are above the run.
    let has_failed = matches!(progress.state, RunPhase::Failed(_));
    ui.horizontal_wrapped(|ui| {
        ui.checkbox(only_problems, "only warnings and errors");
        if !has_failed {
            intent = buttons(ui, progress);
        }
    });
    ui.separator();
    let is_visible = |line: &&LogLine| !*only_problems || line.level != Level::Info;
    let lines: Vec<&LogLine> = progress.log.iter().filter(is_visible).collect();
    if lines.is_empty() {
        ui.weak(if *only_problems {
            "No warnings or errors."
        } else {
            "Nothing yet. Checkpoints, warnings and errors of a run appear here."
        });
        return intent;
    }
    let first = lines.len().saturating_sub(PAGE * (*earlier_pages + 1));
    let area = egui::ScrollArea::vertical().id_salt("log").stick_to_bottom(true);
    area.auto_shrink([false, true]).show(ui, |ui| {
        if first > 0 && ui.button(format!("Show earlier lines ({first})")).clicked() {
            *earlier_pages += 1;
        }
        for line in &lines[first..] {
            log_line(ui, line);
        }
    });
    intent
}

pub(super) fn summary(cause: Option<Cause>) -> &'static str {
    match cause {
        None => "The run failed.",
        Some(Cause::OutOfMemory) => "The run failed: the graphics card ran out of memory.",
        Some(Cause::DeviceLost) => "The run failed: the graphics card stopped responding.",
        Some(Cause::Unavailable) => "The run failed: the graphics card could not be opened.",
    }
}

pub(super) fn buttons(ui: &mut Ui, progress: &Progress) -> Option<Intent> {
    let help = "Copy the log, device, plan and settings, for a bug report";
    if button(ui, "Copy details", None, help) {
        ui.ctx().copy_text(details(progress));
    }
    if IS_PAGE {
        return None;
    }
    let missing = progress.run.is_none().then_some("There is no run yet.");
    let is_clicked = button(ui, "Open folder", missing, "Show the files of this run");
    progress.run.clone().filter(|_| is_clicked).map(Intent::OpenFolder)
}

/// Draws a line with level and iteration in columns, which keeps text of several lines aligned.
fn log_line(ui: &mut Ui, line: &LogLine) {
    let color = theme::level_color(ui, line.level);
    ui.horizontal_top(|ui| {
        ui.spacing_mut().interact_size.y = ui.text_style_height(&egui::TextStyle::Body);
        let level = RichText::new(line.level.to_string()).color(color);
        cell(ui, 52.0, Align::Min, Label::new(level));
        let iter = line.iter.map(|iter| iter.to_string()).unwrap_or_default();
        cell(ui, 44.0, Align::Max, Label::new(RichText::new(iter).weak()));
        ui.vertical(|ui| {
            ui.label(&line.text);
            if let Some(hint) = &line.hint {
                ui.weak(hint);
            }
        });
    });
}

/// Returns the text for a bug report: version, run, device, failure, plan, log and configuration.
fn details(progress: &Progress) -> String {
    let mut text = format!("wgpt {}\n", version::describe());
    // Writing to a String cannot fail.
    if let Some(run) = &progress.run {
        let _ = writeln!(text, "run: {}", run.display());
    }
    if let Some(device) = &progress.device {
        let DeviceLine { id, name, backend, kind } = device;
        let _ = writeln!(text, "device: {name} ({id}, {backend}, {kind})");
    }
    if progress.max_iters > 0 {
        let _ = writeln!(text, "iteration: {} of {}", progress.iteration, progress.max_iters);
    }
    if let RunPhase::Failed(RunError { text: error, hint, cause }) = &progress.state {
        let _ = writeln!(text, "\n{}\n{error}\nhint: {hint}", summary(*cause));
    }
    if let Some(forecast) = &progress.forecast {
        let _ = writeln!(text, "\nplan\n{forecast}");
    }
    if !progress.log.is_empty() {
        text.push_str("\nlog\n");
    }
    for line in &progress.log {
        let iter = line.iter.map(|iter| format!(" at {iter}")).unwrap_or_default();
        let _ = writeln!(text, "{}{iter}: {}", line.level, line.text);
        if let Some(hint) = &line.hint {
            let _ = writeln!(text, "  hint: {hint}");
        }
    }
    if let Some(config) = &progress.config {
        let _ = write!(text, "\nconfig\n{}", config.to_toml());
    }
    text
}
