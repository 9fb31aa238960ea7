//! A prompt for the shown run or model, the options of the text, and its start and stop.

use eframe::egui::{DragValue, Response, TextEdit, Ui};

use super::Intent;
use super::widgets::{button, entered};
use crate::config::GPT2_VOCABULARY;
use crate::protocol::{Command, Progress, Request, RunPhase, SampleInput, ScoredToken};

#[derive(Debug, Default)]
pub(super) struct PromptState {
    text: String,
    pub options: TextOptions,
    /// The text that is being generated while the run does not train.
    pub writing: Option<Written>,
    /// The number of samples and log lines that the run had when a text was requested from it while
    /// it trains. It answers with one of the two.
    requested: Option<(usize, usize)>,
}

/// A text that is being generated, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub prompt: String,
    pub text: String,
    /// The tokens of the text, if their probabilities were requested.
    pub tokens: Vec<ScoredToken>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TextOptions {
    /// The divisor of the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Draws from this many of the most likely tokens; 0 draws from all.
    pub top_k: u32,
    pub tokens: u32,
    /// True to get the probability of each token.
    pub probabilities: bool,
}

impl Default for TextOptions {
    /// The options of a run's own samples, with as many tokens as fill the panel.
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 200, tokens: 300, probabilities: false }
    }
}

/// The largest options: a text that takes minutes, and GPT-2's vocabulary.
const MAX_TOKENS: u32 = 10_000;
const MAX_TOP_K: u32 = GPT2_VOCABULARY;

const FIRST_PROMPT: &str = "Once upon a time";

/// Width of the button next to a field, in points.
const BUTTON_WIDTH: f32 = 66.0;

impl PromptState {
    pub fn show(
        &mut self,
        ui: &mut Ui,
        progress: &Progress,
        focus: &mut bool,
        on_cpu: bool,
    ) -> Option<Intent> {
        // A run that trains generates with its present weights, and its own options.
        let is_live = matches!(progress.state, RunPhase::Running | RunPhase::Paused);
        let answers = (progress.samples.len(), progress.log.len());
        self.requested = self.requested.filter(|&before| is_live && before == answers);
        let reason = self.obstacle(progress);
        let intent = ui.horizontal(|ui| {
            let edit = TextEdit::singleline(&mut self.text).hint_text(FIRST_PROMPT);
            let edit = field(ui, "Prompt", edit, focus);
            if self.writing.is_some() {
                let stop = button(ui, "Stop", None, "Keep the text as it is");
                return stop.then_some(Intent::Ask(Request::StopSample));
            }
            let clicked = button(ui, "Generate", reason, "Continue this text (Enter)");
            if !(clicked || entered(ui, &edit) && reason.is_none()) {
                return None;
            }
            // The next prompt is often a small change of this one.
            edit.request_focus();
            let text = if self.text.is_empty() { FIRST_PROMPT } else { &self.text };
            let prompt = text.to_string();
            Some(if is_live {
                self.requested = Some(answers);
                Intent::Send(Command::Sample { prompt, probabilities: self.options.probabilities })
            } else {
                Intent::Generate(SampleInput::Prompt(prompt))
            })
        });
        if self.requested.is_some() {
            ui.weak("The run generates the text after the current iteration.");
        } else if !is_live && progress.run.is_some() {
            let options = &mut self.options;
            ui.add_enabled_ui(self.writing.is_none(), |ui| options.show(ui, on_cpu));
        }
        intent.inner
    }

    /// Returns why no text can be generated now.
    pub fn obstacle(&self, progress: &Progress) -> Option<&'static str> {
        match progress.state {
            RunPhase::Starting | RunPhase::Recovering | RunPhase::Waiting(_) => {
                Some("The run is starting.")
            }
            RunPhase::Running | RunPhase::Paused => {
                self.requested.map(|_| "The run is generating a text.")
            }
            _ if progress.run.is_none() => Some("Show a run or a model first, under Runs."),
            _ if progress.has_ended() && progress.checkpoints.is_empty() => {
                Some("This run has no checkpoint to generate from.")
            }
            _ => None,
        }
    }
}

/// Draws a field with room for a button next to it, and gives it the focus if that is requested.
pub(super) fn field(ui: &mut Ui, name: &str, edit: TextEdit<'_>, focus: &mut bool) -> Response {
    let label = ui.label(name);
    let width = ui.available_width() - BUTTON_WIDTH - ui.spacing().item_spacing.x;
    let edit = ui.add(edit.desired_width(width.max(60.0))).labelled_by(label.id);
    if std::mem::take(focus) {
        edit.request_focus();
    }
    edit
}

impl TextOptions {
    /// Draws the options. `on_cpu` is true if the CPU generates the text.
    pub fn show(&mut self, ui: &mut Ui, on_cpu: bool) {
        let option = |ui: &mut Ui, name: &str, value: DragValue<'_>, help: &str| {
            let label = ui.weak(name).on_hover_text(help);
            ui.add(value).labelled_by(label.id).on_hover_text(help);
        };
        ui.horizontal_wrapped(|ui| {
            let help = "Below 1 the text keeps to what is likely, above 1 it takes risks. 0 always \
                        takes the most likely token";
            let value = DragValue::new(&mut self.temperature).range(0.0..=2.0).speed(0.01);
            option(ui, "temperature", value.fixed_decimals(2), help);
            let help = "Draw only from this many of the most likely tokens; 0 draws from all";
            option(ui, "top-k", DragValue::new(&mut self.top_k).range(0..=MAX_TOP_K), help);
            let value = DragValue::new(&mut self.tokens).range(1..=MAX_TOKENS);
            option(ui, "length", value, "Tokens to generate");
            if on_cpu {
                ui.weak("on the CPU, while another run trains");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Checkpoint, Event, StopReason};

    #[test]
    fn a_text_needs_a_model() {
        let state = PromptState::default();
        let mut progress = Progress::default();
        assert_eq!(state.obstacle(&progress), Some("Show a run or a model first, under Runs."));
        progress.run = Some("models/gpt2".into());
        assert_eq!(state.obstacle(&progress), None);
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert!(state.obstacle(&progress).unwrap().contains("no checkpoint"));
        let path = "out/a/checkpoints/00000010".into();
        progress.apply(&Event::Checkpoint(Checkpoint { iter: 10, path, best: true }));
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert_eq!(state.obstacle(&progress), None);
        progress.starting();
        assert_eq!(state.obstacle(&progress), Some("The run is starting."));
    }
}
