//! What the model writes, from its first babble on.

use eframe::egui::{self, TextFormat, TextStyle, text::LayoutJob};

use super::{Intent, host};
use crate::progress::{Progress, State};
use crate::protocol::Command;

/// What is looked at.
#[derive(Debug, Default)]
pub(super) struct SampleState {
    /// Which text; `None` for the newest one.
    chosen: Option<usize>,
    /// What a text is to begin with.
    prompt: String,
    /// A text that is being written while nothing trains: how it begins, and how it goes on.
    pub(super) writing: Option<(String, String)>,
}

/// The texts of the run, one at a time, and a way to ask for another.
pub(super) fn show(
    ui: &mut egui::Ui,
    progress: &Progress,
    state: &mut SampleState,
) -> Option<Intent> {
    let asked = ask(ui, progress, state);
    if let Some((prompt, written)) = &state.writing {
        ui.separator();
        ui.add(egui::Label::new(text(ui, prompt, written)).wrap());
        return asked;
    }
    let Some(last) = progress.samples.len().checked_sub(1) else {
        ui.add_space(4.0);
        ui.weak(nothing(progress));
        return asked;
    };
    // Another run may have fewer.
    state.chosen = state.chosen.filter(|&chosen| chosen < last);
    let copied = choose(ui, progress, state, last);
    ui.separator();
    let sample = &progress.samples[state.chosen.unwrap_or(last)];
    let written = text(ui, &sample.prompt, &sample.text);
    ui.add(egui::Label::new(written).wrap().selectable(true));
    asked.or(copied)
}

/// A box for the beginning of a text, and a button.
fn ask(ui: &mut egui::Ui, progress: &Progress, state: &mut SampleState) -> Option<Intent> {
    let is_being_set_up =
        matches!(progress.state, State::Starting | State::Recovering | State::Waiting { .. });
    let can_write = matches!(progress.state, State::Running | State::Paused)
        || host::IS_PAGE && progress.run.is_some() && !is_being_set_up;
    let reason = match progress.state {
        _ if can_write && state.writing.is_some() => Some("A text is being written."),
        _ if can_write && !state.prompt.is_empty() => None,
        _ if can_write => Some("Type how the text is to begin."),
        State::Starting | State::Recovering | State::Waiting { .. } => {
            Some("The run is being set up.")
        }
        _ if host::IS_PAGE => Some("Show a run or a model first: under Runs."),
        _ => Some("No run is going on. `wgpt sample` writes texts with a finished one."),
    };
    let row = ui.horizontal(|ui| {
        let label = ui.label("Prompt");
        let button = 52.0 + ui.spacing().item_spacing.x;
        let width = (ui.available_width() - button).max(60.0);
        let edit = egui::TextEdit::singleline(&mut state.prompt).desired_width(width);
        let typed = ui.add(edit.hint_text("Once upon a time")).labelled_by(label.id);
        let entered = typed.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
        let mut button = ui.add_enabled(reason.is_none(), egui::Button::new("Write"));
        button = button.on_hover_text("Let the model continue this, with its present weights.");
        if let Some(reason) = reason {
            button = button.on_disabled_hover_text(reason);
        }
        button.clicked() || entered && reason.is_none()
    });
    row.inner.then(|| {
        state.chosen = None;
        Intent::Tell(Command::Sample { prompt: state.prompt.clone() })
    })
}

/// Which text, of which iteration.
fn choose(
    ui: &mut egui::Ui,
    progress: &Progress,
    state: &mut SampleState,
    last: usize,
) -> Option<Intent> {
    let mut index = state.chosen.unwrap_or(last);
    let mut copied = false;
    ui.horizontal_wrapped(|ui| {
        if last > 0 {
            let label = ui.label("Text");
            ui.spacing_mut().slider_width = (ui.available_width() - 340.0).clamp(80.0, 320.0);
            let slider = egui::Slider::new(&mut index, 0..=last).show_value(false);
            let slider = ui.add(slider).labelled_by(label.id);
            let newest = state.chosen.is_none();
            let button = ui.add_enabled(!newest, egui::Button::new("Newest"));
            let button = button.on_hover_text("Show each new text as it comes.");
            if button.on_disabled_hover_text("This is the newest text.").clicked() {
                index = last;
            } else if slider.changed() {
                state.chosen = Some(index);
            }
            if index == last {
                state.chosen = None;
            }
        }
        let sample = &progress.samples[index];
        copied = ui.button("Copy").on_hover_text("Put this text on the clipboard.").clicked();
        // As wide for each: what follows a slider must not move it to another row.
        let (of, iterations) = (last + 1, progress.max_iters.max(progress.iteration));
        let [place, step] = [of.to_string().len(), iterations.to_string().len()];
        let number = index + 1;
        let words = format!("iteration {:>step$}, {number:>place$} of {of}", sample.iter);
        let words = egui::RichText::new(words).monospace().weak();
        ui.add(egui::Label::new(words).extend());
    });
    let sample = &progress.samples[index];
    copied.then(|| Intent::Copy(format!("{}{}", sample.prompt, sample.text)))
}

/// What was given stands out from what was written.
fn text(ui: &egui::Ui, prompt: &str, text: &str) -> LayoutJob {
    let font = TextStyle::Body.resolve(ui.style());
    let visuals = ui.visuals();
    // A line break as a prompt, as in the demo, would be an empty line.
    let (prompt, text) = match prompt.trim() {
        "" => ("", text.trim_start()),
        _ => (prompt, text),
    };
    let mut job = LayoutJob::default();
    job.append(prompt, 0.0, TextFormat::simple(font.clone(), visuals.strong_text_color()));
    job.append(text, 0.0, TextFormat::simple(font, visuals.text_color()));
    job
}

fn nothing(progress: &Progress) -> String {
    match &progress.state {
        State::Idle => "No run yet. Start one on the left.".into(),
        State::Finished(_) | State::Interrupted | State::Failed { .. } => {
            "This run has written no text.".into()
        }
        State::Starting | State::Recovering | State::Waiting { .. } => {
            "The run is being set up.".into()
        }
        State::Running | State::Paused => match progress.config.as_ref() {
            Some(config) if config.sample_interval > 0 => format!(
                "No text yet. The run writes one every {} iterations (sample_interval).",
                config.sample_interval
            ),
            _ => "No text yet. The run writes one at its end (sample_interval is 0), or when you \
                  ask for it above."
                .into(),
        },
    }
}
