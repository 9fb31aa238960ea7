//! What the run does, in figures, and what it can be told.

use std::time::Duration;

use eframe::egui::{self, Button, Color32, RichText};

use super::charts::grouped;
use super::{Intent, theme};
use crate::config::bytes;
use crate::progress::{Level, Progress, State};
use crate::protocol::{Command, DeviceLine, Setting, StopReason};

/// Room for the buttons to the right of the headline.
const MENU_WIDTH: f32 = 140.0;

/// What is typed and asked for, until the trainer answers.
#[derive(Debug, Default)]
pub(super) struct ControlState {
    /// The learning rate as it is typed; `None` while nobody types one.
    rate: Option<String>,
    /// The one that was asked for, until there is a step after this one.
    sent: Option<(u64, String)>,
    /// What was wrong with it.
    refused: Option<String>,
    /// Whether the run was asked to stop.
    stopping: bool,
}

/// Progress, figures and buttons; `live` tells whether the run that is shown is going on.
pub(super) fn show(
    ui: &mut egui::Ui,
    progress: &Progress,
    state: &mut ControlState,
    live: bool,
) -> Option<Intent> {
    let can_stop = matches!(progress.state, State::Running | State::Paused);
    state.stopping &= live && can_stop;
    ui.add_space(4.0);
    let most = grouped(progress.max_iters as f64, 0);
    let made = grouped(progress.iteration as f64, 0);
    let text = match progress.max_iters {
        0 => "no iterations yet".into(),
        _ => format!("{made:>width$} of {most} iterations", width = most.len()),
    };
    let bar = egui::ProgressBar::new(progress.fraction()).corner_radius(2);
    ui.add(bar.text(RichText::new(text).monospace()));
    let mut intent = None;
    ui.horizontal_wrapped(|ui| {
        intent = buttons(ui, progress, state, live);
        ui.separator();
        let typed = rate(ui, progress, state, live);
        intent = intent.take().or(typed);
        ui.separator();
        figures(ui, progress);
    });
    ui.add_space(2.0);
    intent
}

/// What holds a run that is `live`, lets one that is held go on, or continues one that has ended
/// before it was done.
pub(super) fn hold_or_go_on(progress: &Progress, live: bool) -> Option<Intent> {
    match &progress.state {
        State::Running if live => Some(Intent::Tell(Command::Pause)),
        State::Paused if live => Some(Intent::Tell(Command::Resume)),
        State::Interrupted
        | State::Failed { .. }
        | State::Finished(StopReason::Stopped | StopReason::MaxTime)
            if !live && !progress.checkpoints.is_empty() =>
        {
            progress.run.clone().map(Intent::Continue)
        }
        _ => None,
    }
}

/// What the run does, in a few words.
pub(super) fn status(progress: &Progress) -> (String, Level) {
    let (words, level) = match &progress.state {
        State::Idle => ("no run", Level::Info),
        State::Starting => ("being set up", Level::Info),
        State::Running => ("training", Level::Info),
        State::Paused => ("paused", Level::Warning),
        State::Recovering => ("starting again from the last checkpoint", Level::Warning),
        State::Waiting { text, .. } => (text.as_str(), Level::Warning),
        State::Finished(StopReason::Finished) => ("finished", Level::Info),
        State::Finished(StopReason::MaxTime) => ("finished: its time is up", Level::Info),
        State::Finished(StopReason::Stopped) => ("stopped", Level::Info),
        State::Finished(StopReason::EvalOnly) => ("evaluated", Level::Info),
        State::Interrupted => ("interrupted", Level::Warning),
        State::Failed { text, .. } => {
            let line = text.lines().next().unwrap_or_default();
            return (format!("failed: {line}"), Level::Error);
        }
    };
    (words.into(), level)
}

/// Something that is in the way of training, in one or two lines.
pub(super) fn obstacle(ui: &mut egui::Ui, level: Level, text: &str, hint: &str) {
    let color = if level == Level::Error { theme::error(ui) } else { theme::warning(ui) };
    let sentence = |text: &str| {
        let mut letters = text.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(letters).collect::<String>() + "."
    };
    ui.horizontal_wrapped(|ui| {
        ui.colored_label(color, RichText::new(sentence(text)).strong());
        ui.label(sentence(hint));
    });
}

/// Where the run computes, and what it does.
pub(super) fn headline(ui: &mut egui::Ui, progress: &Progress) {
    if let Some(device) = &progress.device {
        ui.label(device.name.as_str()).on_hover_text(device.id.as_str());
        // A browser may say nothing but that.
        let kind = kind(device);
        if kind != device.name {
            ui.weak(kind);
        }
        if matches!(device.kind.as_str(), "software" | "cpu") {
            ui.colored_label(theme::warning(ui), "software: slow, for trying out").on_hover_text(
                "This run uses no graphics card. Choose one under Setup, if this computer has one.",
            );
        }
        ui.separator();
    }
    let (words, level) = status(progress);
    let color = match (level, &progress.state) {
        (Level::Error, _) => theme::error(ui),
        (Level::Warning, _) => theme::warning(ui),
        (Level::Info, State::Running) => theme::good(ui),
        (Level::Info, State::Finished(StopReason::Finished)) => theme::good(ui),
        (Level::Info, _) => ui.visuals().weak_text_color(),
    };
    dot(ui, color);
    let room = (ui.available_width() - MENU_WIDTH).max(60.0);
    let label = ui.scope(|ui| {
        ui.set_max_width(room);
        ui.add(egui::Label::new(words).truncate())
    });
    if let State::Failed { text, hint, .. } = &progress.state {
        label.inner.on_hover_text(format!("{text}\n\n{hint}"));
    }
}

fn dot(ui: &mut egui::Ui, color: Color32) {
    let size = egui::vec2(10.0, ui.text_style_height(&egui::TextStyle::Body));
    let (rect, _) = ui.allocate_exact_size(size, egui::Sense::hover());
    ui.painter().circle_filled(rect.center(), 4.0, color);
}

/// Through which interface, and what it is.
fn kind(device: &DeviceLine) -> String {
    let backend = match device.backend.as_str() {
        "vulkan" => "Vulkan",
        "dx12" => "DirectX 12",
        "gl" => "OpenGL",
        "metal" => "Metal",
        "cuda" => "CUDA",
        "webgpu" => "WebGPU",
        "cpu" => return "processor".into(),
        other => other,
    };
    let kind = match device.kind.as_str() {
        "discrete" => "graphics card",
        "integrated" => "integrated graphics",
        "virtual" => "virtual graphics card",
        // The badge says so.
        "software" => return backend.into(),
        other => other,
    };
    format!("{backend}, {kind}")
}

fn buttons(
    ui: &mut egui::Ui,
    progress: &Progress,
    state: &mut ControlState,
    live: bool,
) -> Option<Intent> {
    let reason = match &progress.state {
        _ if state.stopping => Some("The run stops after this iteration."),
        State::Idle => Some("No run yet. Start one on the left."),
        State::Finished(_) | State::Interrupted | State::Failed { .. } => {
            Some("The run has ended.")
        }
        _ if !live => Some("This run is not going on."),
        State::Starting | State::Recovering | State::Waiting { .. } => {
            Some("The run is being set up.")
        }
        State::Running | State::Paused => None,
    };
    let mut intent = None;
    let next = hold_or_go_on(progress, live);
    let button = |ui: &mut egui::Ui, text: &str, reason: Option<&str>, help: &str| {
        // As wide for Pause as for Resume.
        let button = Button::new(text).min_size(egui::vec2(62.0, 0.0));
        let button = ui.add_enabled(reason.is_none(), button).on_hover_text(help);
        button.on_disabled_hover_text(reason.unwrap_or_default()).clicked()
    };
    let (text, help) = match &next {
        Some(Intent::Continue(_)) => ("Continue", "Go on from the last checkpoint (Space)."),
        Some(Intent::Tell(Command::Resume)) => ("Resume", "Go on where the run was held (Space)."),
        _ => ("Pause", "Hold after this iteration (Space). Memory stays taken."),
    };
    let refusal = if state.stopping || next.is_none() { reason } else { None };
    if button(ui, text, refusal, help) {
        intent = next;
    }
    let help = "Write a checkpoint and end (Ctrl+.). The run can be continued from there.";
    if button(ui, "Stop and save", reason, help) {
        state.stopping = true;
        intent = Some(Intent::Tell(Command::Stop));
    }
    if button(ui, "Checkpoint now", reason, "Write a checkpoint and go on (Ctrl+S).") {
        intent = Some(Intent::Tell(Command::Checkpoint));
    }
    let newest = progress.checkpoints.last();
    let none = newest.is_none().then_some("There is no checkpoint yet.");
    let help = "Write the newest checkpoint as a Hugging Face folder (Ctrl+E).";
    if button(ui, "Export", none, help) {
        intent = newest.map(|checkpoint| Intent::Export(checkpoint.path.clone()));
    }
    intent
}

/// A box with the learning rate, for another one from here on.
fn rate(
    ui: &mut egui::Ui,
    progress: &Progress,
    state: &mut ControlState,
    live: bool,
) -> Option<Intent> {
    let enabled = live && matches!(progress.state, State::Running | State::Paused);
    if !enabled {
        (state.rate, state.sent, state.refused) = (None, None, None);
    }
    let step = progress.last_step.as_ref();
    let sent = state.sent.as_ref().filter(|(at, _)| step.is_some_and(|step| step.iter == *at));
    let present = sent.map(|(_, text)| text.clone());
    let present = present.or_else(|| step.map(|step| format!("{:.3e}", step.lr)));
    let mut text = state.rate.clone().or(present).unwrap_or_default();
    let label = ui.weak("learning rate");
    let edit = egui::TextEdit::singleline(&mut text).desired_width(72.0);
    let edit = ui.add_enabled(enabled, edit.font(egui::TextStyle::Monospace));
    let edit = edit
        .labelled_by(label.id)
        .on_hover_text("Type another one and press Enter. From there on it stays the same.")
        .on_disabled_hover_text("It can be changed while a run is going on.");
    let entered = edit.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
    if edit.changed() {
        state.refused = None;
        state.rate = Some(text.clone());
    }
    if let Some(refused) = &state.refused {
        ui.colored_label(theme::error(ui), refused);
    }
    if !edit.lost_focus() {
        return None;
    }
    // Left without Enter, it is as it was.
    let typed = state.rate.take().filter(|_| entered)?;
    match parse_rate(&typed) {
        Some(value) => {
            state.sent = step.map(|step| (step.iter, format!("{value:.3e}")));
            Some(Intent::Tell(Command::Set(Setting::LearningRate(value))))
        }
        None => {
            state.refused = Some(format!("{typed:?} is no learning rate; 3e-4 is one"));
            None
        }
    }
}

/// A number above 0 that has 32 bits.
fn parse_rate(typed: &str) -> Option<f64> {
    let value: f64 = typed.trim().parse().ok()?;
    ((value as f32) > 0.0 && (value as f32).is_finite()).then_some(value)
}

/// Figures that take the same room whatever they are.
fn figures(ui: &mut egui::Ui, progress: &Progress) {
    let loss = |loss: Option<f64>| loss.map_or("-".into(), |loss| format!("{loss:.4}"));
    let speed = progress.tokens_per_s.map_or("-".into(), |speed| grouped(speed, 0));
    let left = progress.remaining().map_or("-".into(), clock);
    figure(ui, "loss", &loss(progress.loss), 7);
    let best = progress.best_val_loss.map(|best| format!("The least so far is {best:.4}."));
    let validation = figure(ui, "val loss", &loss(progress.val_loss), 7);
    if let Some(best) = best {
        validation.on_hover_text(best);
    }
    figure(ui, "tokens/s", &speed, 9);
    figure(ui, "left", &left, 8).on_hover_text("At the present speed, evaluations left out.");
    let held = progress.last_step.as_ref().and_then(|step| step.vram_bytes);
    let Some(held) = held else { return };
    let budget = progress.forecast.as_ref().and_then(|forecast| forecast.budget_bytes);
    let text = match budget {
        Some(budget) => format!("{} of {}", bytes(held), bytes(budget)),
        None => bytes(held),
    };
    let over = budget.is_some_and(|budget| held > budget);
    let color = if over { theme::warning(ui) } else { ui.visuals().text_color() };
    let width = if budget.is_some() { 24 } else { 10 };
    colored(ui, "memory", &text, width, color)
        .on_hover_text("What the run holds of the graphics card, of what it may take.");
}

fn figure(ui: &mut egui::Ui, name: &str, value: &str, width: usize) -> egui::Response {
    let color = ui.visuals().text_color();
    colored(ui, name, value, width, color)
}

/// A name and its value as one label: a row that is too short breaks between figures only.
fn colored(
    ui: &mut egui::Ui,
    name: &str,
    value: &str,
    width: usize,
    color: Color32,
) -> egui::Response {
    let mut job = egui::text::LayoutJob::default();
    let body = egui::TextStyle::Body.resolve(ui.style());
    let mono = egui::TextStyle::Monospace.resolve(ui.style());
    let weak = ui.visuals().weak_text_color();
    job.append(&format!("{name} "), 0.0, egui::TextFormat::simple(body, weak));
    job.append(&format!("{value:<width$}"), 0.0, egui::TextFormat::simple(mono, color));
    ui.add(egui::Label::new(job).extend())
}

/// Hours, minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Event;

    #[test]
    fn a_learning_rate_is_a_number_above_0_that_32_bits_hold() {
        assert_eq!(parse_rate(" 3e-4 "), Some(3e-4));
        for bad in ["", "0", "-1", "nan", "inf", "1e39", "1e-50", "3e-4x"] {
            assert_eq!(parse_rate(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_space_holds_and_the_next_one_goes_on() {
        let mut progress = Progress { state: State::Running, ..Progress::default() };
        assert_eq!(hold_or_go_on(&progress, true), Some(Intent::Tell(Command::Pause)));
        progress.apply(&Event::Paused { iter: 0 });
        assert_eq!(hold_or_go_on(&progress, true), Some(Intent::Tell(Command::Resume)));
        assert_eq!(status(&progress), ("paused".into(), Level::Warning));
    }

    #[test]
    fn a_space_continues_what_ended_too_early_where_there_is_a_checkpoint() {
        let run = std::path::PathBuf::from("runs/a");
        let mut progress = Progress { run: Some(run.clone()), ..Progress::default() };
        progress.interrupted();
        assert_eq!(hold_or_go_on(&progress, false), None);
        let path = run.join("checkpoints/00000010");
        progress.apply(&Event::Checkpoint { iter: 10, path, best: true });
        progress.interrupted();
        assert_eq!(hold_or_go_on(&progress, false), Some(Intent::Continue(run)));
        assert_eq!(hold_or_go_on(&progress, true), None);
        progress.state = State::Finished(StopReason::Finished);
        assert_eq!(hold_or_go_on(&progress, false), None);
    }

    #[test]
    fn time_left_has_seconds() {
        assert_eq!(clock(Duration::from_secs(59)), "0:00:59");
        assert_eq!(clock(Duration::from_secs(360_061)), "100:01:01");
    }
}
