//! The headline: device and state of the run, and the title of the window.

use std::time::Duration;

use eframe::egui::{self, Ui};

use super::ControlBar;
use crate::gui::theme;
use crate::gui::widgets::dot;
use crate::plan::{Backend, DeviceKind};
use crate::protocol::{DeviceLine, Level, Progress, RunPhase, StopReason};
use crate::text::percent_done;

/// Width reserved for the buttons to the right of the headline, in points.
const MENU_WIDTH: f32 = 140.0;

/// Describes the state of the run in a few words.
pub(in crate::gui) fn status(progress: &Progress) -> (String, Level) {
    if let (RunPhase::Starting | RunPhase::Running, Some(working)) =
        (&progress.state, progress.working)
    {
        return (working.to_string(), Level::Info);
    }
    let (words, level) = match &progress.state {
        RunPhase::Idle if progress.run.is_some() => ("no training recorded", Level::Info),
        RunPhase::Idle => ("no run", Level::Info),
        RunPhase::Starting => ("starting", Level::Info),
        RunPhase::Running => ("training", Level::Info),
        RunPhase::Paused => ("paused", Level::Warning),
        RunPhase::Recovering => ("restarting from the last checkpoint", Level::Warning),
        RunPhase::Waiting { text, .. } => (text.as_str(), Level::Warning),
        RunPhase::Finished(StopReason::Finished) => ("finished", Level::Info),
        RunPhase::Finished(StopReason::MaxTime) => ("finished: time limit reached", Level::Info),
        RunPhase::Finished(StopReason::Stopped) => ("stopped", Level::Info),
        RunPhase::Finished(StopReason::EvalOnly) => ("evaluated", Level::Info),
        RunPhase::Interrupted => ("interrupted", Level::Warning),
        RunPhase::Failed { text, .. } => {
            let line = text.lines().next().unwrap_or_default();
            return (format!("failed: {line}"), Level::Error);
        }
    };
    (words.into(), level)
}

/// Returns the title of the window: state, run and program, the most important first.
pub(in crate::gui) fn title(progress: &Progress, run: Option<&str>) -> String {
    let Some(run) = run else { return "wgpt".into() };
    let percent = percent_done(progress.iteration, progress.max_iters);
    let state = match &progress.state {
        RunPhase::Idle => String::new(),
        RunPhase::Starting => "starting ".into(),
        RunPhase::Running => format!("{percent} "),
        RunPhase::Paused => format!("paused at {percent}: "),
        RunPhase::Recovering | RunPhase::Waiting { .. } => format!("restarting at {percent}: "),
        RunPhase::Finished(StopReason::Stopped) => format!("stopped at {percent}: "),
        RunPhase::Finished(_) => "finished: ".into(),
        RunPhase::Interrupted => format!("interrupted at {percent}: "),
        RunPhase::Failed { .. } => format!("failed at {percent}: "),
    };
    format!("{state}{run} - wgpt")
}

/// Draws the run's device and state.
pub(in crate::gui) fn headline(ui: &mut Ui, progress: &Progress, state: &mut ControlBar) {
    if let Some(device) = &progress.device {
        ui.label(device.name.as_str()).on_hover_text(device.id.as_str());
        // A browser may reveal no more than the kind, which is then the name too.
        let kind = kind(device);
        if kind != device.name {
            ui.weak(kind);
        }
        if !device.kind.is_gpu() {
            ui.colored_label(theme::warning(ui), "no graphics card: slow").on_hover_text(
                "This run uses no graphics card. If this computer has one, choose it under Setup.",
            );
        }
        ui.separator();
    }
    let (mut words, level) = status(progress);
    if let Some(seconds) = state.countdown(progress, ui.input(|input| input.time)) {
        words += &format!(" in {seconds} s");
        ui.ctx().request_repaint_after(Duration::from_secs(1));
    }
    let is_good =
        matches!(progress.state, RunPhase::Running | RunPhase::Finished(StopReason::Finished));
    let is_good = is_good && level == Level::Info;
    let color = if is_good { theme::good(ui) } else { theme::level_color(ui, level) };
    dot(ui, color);
    let width = (ui.available_width() - MENU_WIDTH).max(60.0);
    let label = ui.scope(|ui| {
        ui.set_max_width(width);
        ui.add(egui::Label::new(words).truncate())
    });
    if let RunPhase::Failed { text, hint, .. } = &progress.state {
        label.inner.on_hover_text(format!("{text}\n\n{hint}"));
    }
}

/// Describes a device by its API and kind: `Vulkan, graphics card`.
fn kind(device: &DeviceLine) -> String {
    let backend = match device.backend {
        Backend::Vulkan => "Vulkan",
        Backend::Dx12 => "DirectX 12",
        Backend::Gl => "OpenGL",
        Backend::Metal => "Metal",
        Backend::Cuda => "CUDA",
        Backend::WebGpu => "WebGPU",
        Backend::Cpu => return "CPU".into(),
    };
    let kind = match device.kind {
        DeviceKind::Discrete => "graphics card",
        DeviceKind::Integrated => "integrated graphics",
        DeviceKind::Virtual => "virtual graphics card",
        DeviceKind::Software => "software renderer",
        DeviceKind::Cpu => "cpu",
        DeviceKind::Unknown => "unknown",
    };
    format!("{backend}, {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Task, Working};

    #[test]
    fn the_status_names_work_that_lasts() {
        let mut progress = Progress { state: RunPhase::Running, ..Progress::default() };
        let working = Working { task: Task::Evaluation, done: 37, total: 400 };
        progress.apply(&Event::Working(working));
        assert_eq!(status(&progress), ("evaluating 37/400".into(), Level::Info));
        progress.apply(&Event::Paused { iter: 0 });
        progress.apply(&Event::Working(Working { task: Task::Sample, ..working }));
        assert_eq!(status(&progress), ("paused".into(), Level::Warning));
    }

    #[test]
    fn the_title_has_the_state_and_the_run() {
        let mut progress = Progress::default();
        assert_eq!(title(&progress, None), "wgpt");
        assert_eq!(title(&progress, Some("gpt2")), "gpt2 - wgpt");
        (progress.max_iters, progress.iteration) = (1500, 630);
        progress.state = RunPhase::Running;
        assert_eq!(title(&progress, Some("demo-3")), "42% demo-3 - wgpt");
        progress.state = RunPhase::Paused;
        assert_eq!(title(&progress, Some("demo-3")), "paused at 42%: demo-3 - wgpt");
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert_eq!(title(&progress, Some("demo-3")), "finished: demo-3 - wgpt");
    }
}
