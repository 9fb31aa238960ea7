//! A prompt for the displayed run or model, the options of the text, and its start and stop.

use eframe::egui::{self, Button, DragValue, TextEdit};

use super::Intent;
use crate::protocol::{Command, Progress, RunPhase};

/// RunPhase of the prompt between frames.
#[derive(Debug)]
pub(super) struct PromptState {
    /// The prompt being typed.
    text: String,
    pub(super) options: TextOptions,
    /// The text that is being generated while the run does not train: its prompt and the text so
    /// far.
    pub(super) writing: Option<(String, String)>,
    /// The samples and the lines of the log that the run had when a text was requested from it while
    /// it trains. It answers with one of the two.
    requested: Option<(usize, usize)>,
    /// True if the CPU generates, since a run that trains has planned for the memory of its device.
    pub(super) on_cpu: bool,
    /// True to give the field the focus in the next frame.
    pub(super) focus: bool,
}

/// Options of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextOptions {
    /// The divisor of the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Draws from this many of the most likely tokens; 0 draws from all.
    pub top_k: u32,
    /// Tokens to generate.
    pub tokens: u32,
}

impl Default for PromptState {
    fn default() -> Self {
        // As the samples of a run, and as long as fills the panel.
        let options = TextOptions { temperature: 0.8, top_k: 200, tokens: 300 };
        Self {
            text: String::new(),
            options,
            writing: None,
            requested: None,
            on_cpu: false,
            focus: false,
        }
    }
}

/// The largest options: a text that takes minutes, and GPT-2's vocabulary.
const MAX_TOKENS: u32 = 10_000;
const MAX_TOP_K: u32 = 50_257;

/// The prompt until another is typed.
const FIRST_PROMPT: &str = "Once upon a time";

/// Width of the button next to a field, in points.
pub(super) const BUTTON_WIDTH: f32 = 66.0;

/// Draws the prompt, its button and the options.
pub(super) fn show(
    ui: &mut egui::Ui,
    progress: &Progress,
    state: &mut PromptState,
) -> Option<Intent> {
    // A run that trains generates with its present weights, and its own options.
    let is_live = matches!(progress.state, RunPhase::Running | RunPhase::Paused);
    let answers = (progress.samples.len(), progress.log.len());
    state.requested = state.requested.filter(|&before| is_live && before == answers);
    let reason = obstacle(progress, is_live, state);
    let intent = ui.horizontal(|ui| {
        let label = ui.label("Prompt");
        let reserved = BUTTON_WIDTH + ui.spacing().item_spacing.x;
        let width = (ui.available_width() - reserved).max(60.0);
        let edit = TextEdit::singleline(&mut state.text).desired_width(width);
        let edit = ui.add(edit.hint_text(FIRST_PROMPT)).labelled_by(label.id);
        if std::mem::take(&mut state.focus) {
            edit.request_focus();
        }
        let entered = edit.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
        if state.writing.is_some() {
            let stop = ui.button("Stop").on_hover_text("Keep the text as it is");
            return stop.clicked().then_some(Intent::StopText);
        }
        let button = ui.add_enabled(reason.is_none(), Button::new("Generate"));
        let button = button.on_hover_text("Continue this text (Enter)");
        let clicked = button.on_disabled_hover_text(reason.unwrap_or_default()).clicked();
        let is_requested = clicked || entered && reason.is_none();
        is_requested.then(|| {
            // The next prompt is often a small change of this one.
            edit.request_focus();
            let prompt = match state.text.as_str() {
                "" => FIRST_PROMPT.to_string(),
                text => text.to_string(),
            };
            match is_live {
                true => {
                    state.requested = Some(answers);
                    Intent::Send(Command::Sample { prompt })
                }
                false => Intent::GenerateText { prompt, options: state.options },
            }
        })
    });
    if state.requested.is_some() {
        ui.weak("The run generates the text after its present iteration.");
    } else if !is_live && progress.run.is_some() {
        ui.add_enabled_ui(state.writing.is_none(), |ui| options(ui, state));
    }
    intent.inner
}

/// Draws the options of a text.
pub(super) fn options(ui: &mut egui::Ui, state: &mut PromptState) {
    let PromptState { options, on_cpu, .. } = state;
    ui.horizontal_wrapped(|ui| {
        let help = "Below 1 the text keeps to what is likely, above 1 it takes risks. 0 always \
                    takes the most likely token";
        let value = DragValue::new(&mut options.temperature).range(0.0..=2.0).speed(0.01);
        field(ui, "temperature", value.fixed_decimals(2), help);
        let help = "Draw only from this many of the most likely tokens; 0 draws from all";
        field(ui, "top-k", DragValue::new(&mut options.top_k).range(0..=MAX_TOP_K), help);
        let help = "Tokens to generate";
        field(ui, "length", DragValue::new(&mut options.tokens).range(1..=MAX_TOKENS), help);
        if *on_cpu {
            ui.weak("on the CPU, while another run trains");
        }
    });
}

fn field(ui: &mut egui::Ui, name: &str, value: DragValue<'_>, help: &str) {
    let label = ui.weak(name).on_hover_text(help);
    ui.add(value).labelled_by(label.id).on_hover_text(help);
}

/// Returns why no text can be generated now.
pub(super) fn obstacle(
    progress: &Progress,
    is_live: bool,
    state: &PromptState,
) -> Option<&'static str> {
    match progress.state {
        RunPhase::Starting | RunPhase::Recovering | RunPhase::Waiting { .. } => {
            Some("The run is starting.")
        }
        _ if progress.run.is_none() && !is_live => Some("Show a run or a model first, under Runs."),
        RunPhase::Finished(_) | RunPhase::Interrupted | RunPhase::Failed { .. }
            if progress.checkpoints.is_empty() =>
        {
            Some("This run has no checkpoint to generate from.")
        }
        _ if state.requested.is_some() => Some("A text is on its way."),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, StopReason};

    #[test]
    fn a_text_needs_a_model() {
        let state = PromptState::default();
        let mut progress = Progress::default();
        let reason = |progress: &Progress, state: &PromptState| obstacle(progress, false, state);
        assert_eq!(reason(&progress, &state), Some("Show a run or a model first, under Runs."));
        progress.run = Some("models/gpt2".into());
        assert_eq!(reason(&progress, &state), None);
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert!(reason(&progress, &state).unwrap().contains("no checkpoint"));
        let path = "out/a/checkpoints/00000010".into();
        progress.apply(&Event::Checkpoint { iter: 10, path, best: true });
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert_eq!(reason(&progress, &state), None);
        progress.starting();
        assert_eq!(reason(&progress, &state), Some("The run is starting."));
    }
}
