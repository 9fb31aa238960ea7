//! The control bar: progress of the run, and its buttons. Above the run: its state and its device.

use std::time::Duration;

use eframe::egui::{self, Button, RichText, Ui};

use crate::config::DecayLength;
use crate::gui::intent::Intent;
use crate::gui::status::status;
use crate::gui::widgets::{action, button, entered};
use crate::gui::{export, theme};
use crate::plan::{Backend, DeviceKind};
use crate::protocol::{
    Command, DeviceLine, Level, Progress, RunPhase, Setting, StopReason, Waiting,
};
use crate::text::grouped;

/// The control bar, with input that the trainer has not acknowledged yet.
#[derive(Debug, Default)]
pub struct ControlBar {
    rate: RateField,
    stopping: bool,
    /// The attempt that the run waits for, and since when, in seconds of the window's clock.
    waiting: Option<(u32, f64)>,
}

/// The field for the learning rate.
#[derive(Debug, Default)]
struct RateField {
    /// `None` while the field is not edited.
    typed: Option<String>,
    /// The iteration at which a learning rate was sent, and the rate: shown until the next step
    /// event.
    sent: Option<(u64, f64)>,
    /// Why the typed learning rate was rejected.
    error: Option<String>,
}

impl ControlBar {
    /// Returns the seconds until the next attempt of a run that waits for its device.
    fn countdown(&mut self, progress: &Progress, now: f64) -> Option<u64> {
        // A wait without attempts has its end in its text.
        let RunPhase::Waiting(Waiting { attempt, seconds, attempts: 1.., .. }) = progress.state
        else {
            self.waiting = None;
            return None;
        };
        let (_, since) = match self.waiting {
            Some(waiting) if waiting.0 == attempt => waiting,
            _ => *self.waiting.insert((attempt, now)),
        };
        Some((seconds as f64 - (now - since)).ceil().max(0.0) as u64)
    }

    /// Draws the progress bar and the buttons. `live` is true while a process trains the run.
    pub fn show(&mut self, ui: &mut Ui, progress: &Progress, live: bool) -> Option<Intent> {
        let can_stop =
            matches!(progress.state, RunPhase::Running | RunPhase::Paused | RunPhase::Waiting(_));
        self.stopping &= live && can_stop;
        ui.add_space(4.0);
        let total = grouped(progress.max_iters as f64, 0);
        let done = grouped(progress.iteration as f64, 0);
        let text = match progress.max_iters {
            0 => "no iterations yet".into(),
            _ => format!("{done:>width$} of {total} iterations", width = total.len()),
        };
        let bar = egui::ProgressBar::new(progress.fraction()).corner_radius(2);
        ui.add(bar.text(RichText::new(text).monospace()));
        let row = ui.horizontal_wrapped(|ui| {
            if progress.has_ended() {
                // Both are drawn, also after a click on the first one.
                let continued = continue_button(ui, progress, live);
                return continued.or(export::menu(ui, progress));
            }
            let clicked = self.buttons(ui, progress, live);
            ui.separator();
            clicked.or(self.rate.show(ui, progress, live))
        });
        ui.add_space(2.0);
        row.inner
    }

    fn buttons(&mut self, ui: &mut Ui, progress: &Progress, live: bool) -> Option<Intent> {
        let reason = match &progress.state {
            _ if self.stopping => Some("The run is stopping."),
            _ if !live => Some("This run is not active."),
            RunPhase::Waiting(_) => Some("The run is waiting."),
            RunPhase::Running | RunPhase::Paused => None,
            _ => Some("The run is starting."),
        };
        let sized = |ui: &mut Ui, text: &str, reason: Option<&str>, help: &str| {
            // One width for Pause and Resume keeps the buttons after it in place.
            action(ui, Button::new(text).min_size(egui::vec2(62.0, 0.0)), reason, help)
        };
        let next = pause_or_continue(progress, live);
        let (text, help) = match &next {
            Some(Intent::Send(Command::Resume)) => ("Resume", "Resume training (Space)."),
            _ => ("Pause", "Pause after this iteration (Space). The run keeps its memory."),
        };
        let disabled = reason.filter(|_| self.stopping || next.is_none());
        let mut intent = if sized(ui, text, disabled, help) { next } else { None };
        let is_waiting = matches!(progress.state, RunPhase::Waiting(_));
        let (disabled, help) = if live && !self.stopping && is_waiting {
            (None, "Stop waiting (Ctrl+.). The run can be continued from its last checkpoint.")
        } else {
            (reason, "Write a checkpoint and stop (Ctrl+.). The run can be continued from there.")
        };
        if sized(ui, "Stop and save", disabled, help) {
            self.stopping = true;
            intent = Some(Intent::Send(Command::Stop));
        }
        let is_finishing =
            progress.config.as_ref().is_some_and(|c| c.is_decaying(progress.iteration));
        let finishing = is_finishing.then_some("The run is finishing.");
        let help = "Lower the learning rate over a tenth of the updates made, then stop: that makes a \
                    better model than stopping at once.";
        if sized(ui, "Finish now", reason.or(finishing), help) {
            intent = Some(Intent::Send(Command::Finish { decay: DecayLength::default() }));
        }
        if sized(ui, "Checkpoint now", reason, "Write a checkpoint and keep training (Ctrl+S).") {
            intent = Some(Intent::Send(Command::Checkpoint));
        }
        export::menu(ui, progress).or(intent)
    }
}

/// Draws the button that continues a run that ended early, from its last checkpoint.
pub fn continue_button(ui: &mut Ui, progress: &Progress, live: bool) -> Option<Intent> {
    let next = pause_or_continue(progress, live)?;
    let is_over = matches!(next, Intent::Continue(_));
    let help = "Continue from the last checkpoint (Space).";
    (is_over && button(ui, "Continue", None, help)).then_some(next)
}

impl RateField {
    /// Draws the field. A number entered there holds for the rest of the run.
    fn show(&mut self, ui: &mut Ui, progress: &Progress, live: bool) -> Option<Intent> {
        let enabled = live && matches!(progress.state, RunPhase::Running | RunPhase::Paused);
        if !enabled {
            *self = Self::default();
        }
        let step = progress.last_step.as_ref();
        let sent = self.sent.filter(|(at, _)| step.is_some_and(|step| step.iter == *at));
        let current = sent.map(|(_, rate)| rate).or(step.map(|step| step.lr));
        let current = current.map(|rate| format!("{rate:.3e}")).unwrap_or_default();
        let mut text = self.typed.clone().unwrap_or(current);
        let label = ui.weak("learning rate");
        let edit = egui::TextEdit::singleline(&mut text).desired_width(72.0);
        let edit = ui.add_enabled(enabled, edit.font(egui::TextStyle::Monospace));
        let edit = edit
            .labelled_by(label.id)
            .on_hover_text(
                "Type a learning rate and press Enter. It then stays constant: the schedule ends.",
            )
            .on_disabled_hover_text("The learning rate can be changed while a run is active.");
        let entered = entered(ui, &edit);
        if edit.changed() {
            self.error = None;
            self.typed = Some(text.clone());
        }
        if let Some(error) = &self.error {
            ui.colored_label(theme::error(ui), error);
        }
        if !edit.lost_focus() {
            return None;
        }
        // Losing the focus without Enter discards what was typed.
        let typed = self.typed.take().filter(|_| entered)?;
        let Some(value) = parse_rate(&typed) else {
            self.error = Some(format!("{typed:?} is not a learning rate; try 3e-4"));
            return None;
        };
        self.sent = step.map(|step| (step.iter, value));
        Some(Intent::Send(Command::Set(Setting::LearningRate(value))))
    }
}

/// Returns the intent of the pause button and the space bar: pauses or resumes a `live` run,
/// continues one that ended early and has a checkpoint.
pub fn pause_or_continue(progress: &Progress, live: bool) -> Option<Intent> {
    match &progress.state {
        RunPhase::Running if live => Some(Intent::Send(Command::Pause)),
        RunPhase::Paused if live => Some(Intent::Send(Command::Resume)),
        RunPhase::Interrupted
        | RunPhase::Failed(_)
        | RunPhase::Finished(StopReason::Stopped | StopReason::MaxTime)
            if !live && !progress.checkpoints.is_empty() =>
        {
            progress.run.clone().map(Intent::Continue)
        }
        _ => None,
    }
}

/// Parses a learning rate: a finite number above 0 that f32 can hold.
fn parse_rate(typed: &str) -> Option<f64> {
    let value: f64 = typed.trim().parse().ok()?;
    ((value as f32) > 0.0 && (value as f32).is_finite()).then_some(value)
}

/// Draws the state of the run, and its device.
pub(super) fn status_line(ui: &mut Ui, progress: &Progress, state: &mut ControlBar) {
    let (mut words, level) = match &progress.state {
        // The reason is below.
        RunPhase::Failed(_) => ("failed".into(), Level::Error),
        _ => status(progress),
    };
    if let Some(seconds) = state.countdown(progress, ui.input(|input| input.time)) {
        words += &format!(" in {seconds} s");
        ui.ctx().request_repaint_after(Duration::from_secs(1));
    }
    let color = match progress.state {
        RunPhase::Running | RunPhase::Finished(StopReason::Finished) => theme::good(ui),
        _ => theme::level_color(ui, level),
    };
    let size = egui::vec2(10.0, ui.text_style_height(&egui::TextStyle::Body));
    let (rect, _) = ui.allocate_exact_size(size, egui::Sense::hover());
    ui.painter().circle_filled(rect.center(), 4.0, color);
    ui.add(egui::Label::new(words).truncate());
    if let Some(device) = &progress.device {
        // A browser may reveal only the kind, which is then also the name.
        let kind = kind(device);
        let kind =
            if device.name.starts_with(&kind) { String::new() } else { format!(" ({kind})") };
        let text = RichText::new(format!("on {}{kind}", device.name)).weak();
        ui.add(egui::Label::new(text).truncate()).on_hover_text(device.id.as_str());
    }
}

/// Describes a device by its API and kind: `Vulkan, graphics card`.
fn kind(device: &DeviceLine) -> String {
    if device.backend == Backend::Cpu {
        return "CPU".into();
    }
    let kind = match device.kind {
        DeviceKind::Discrete => "graphics card",
        DeviceKind::Integrated => "integrated graphics",
        DeviceKind::Virtual => "virtual graphics card",
        DeviceKind::Software => "software renderer",
        DeviceKind::Cpu => "cpu",
        DeviceKind::Unknown => "unknown",
    };
    format!("{}, {kind}", device.backend.title())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, SavedCheckpoint};

    #[test]
    fn a_learning_rate_is_positive_and_fits_f32() {
        assert_eq!(parse_rate(" 3e-4 "), Some(3e-4));
        for bad in ["", "0", "-1", "nan", "inf", "1e39", "1e-50", "3e-4x"] {
            assert_eq!(parse_rate(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_wait_is_counted_down_from_its_first_frame() {
        let waiting = |attempt, seconds| {
            let text = "restarting".into();
            Event::Waiting(Waiting { text, attempt, attempts: 9, seconds, free_bytes: None })
        };
        let mut progress = Progress::default();
        let mut state = ControlBar::default();
        assert_eq!(state.countdown(&progress, 1.0), None);
        progress.apply(&waiting(3, 5));
        let left = [10.0, 10.5, 13.0, 20.0].map(|now| state.countdown(&progress, now));
        assert_eq!(left, [Some(5), Some(5), Some(2), Some(0)]);
        progress.apply(&waiting(4, 15));
        assert_eq!(state.countdown(&progress, 20.0), Some(15));
    }

    #[test]
    fn space_continues_a_run_that_ended_early_if_it_has_a_checkpoint() {
        let run = std::path::PathBuf::from("runs/a");
        let mut progress = Progress { run: Some(run.clone()), ..Progress::default() };
        progress.interrupted();
        assert_eq!(pause_or_continue(&progress, false), None);
        let path = run.join("checkpoints/00000010");
        progress.apply(&Event::Checkpoint(SavedCheckpoint { iter: 10, path, best: true }));
        progress.interrupted();
        assert_eq!(pause_or_continue(&progress, false), Some(Intent::Continue(run)));
        assert_eq!(pause_or_continue(&progress, true), None);
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert_eq!(pause_or_continue(&progress, false), None);
    }
}
