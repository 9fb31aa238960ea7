//! A prompt for the shown run or model, the options of the text, and its start and stop.

use eframe::egui::{DragValue, TextEdit, Ui};

use crate::config::GPT2_VOCABULARY;
use crate::gui::intent::Intent;
use crate::gui::state::{PromptState, TextOptions, model_before};
use crate::gui::widgets::{button, entered, field};
use crate::protocol::{Command, Progress, Request, RunPhase, SampleInput};

/// The largest options: text that takes minutes, and GPT-2's vocabulary.
const MAX_TOKENS: u32 = 10_000;
const MAX_TOP_K: u32 = GPT2_VOCABULARY;

const FIRST_PROMPT: &str = "Once upon a time";

pub(super) fn show(
    ui: &mut Ui,
    state: &mut PromptState,
    progress: &Progress,
    focus: &mut bool,
    on_cpu: bool,
) -> Option<Intent> {
    // A run that trains generates with its present weights, and its own options.
    let is_live = matches!(progress.state, RunPhase::Running | RunPhase::Paused);
    let answers = (progress.samples.len(), progress.log.len());
    state.requested = state.requested.filter(|&before| is_live && before == answers);
    let reason = state.obstacle(progress);
    let intent = ui.horizontal(|ui| {
        let edit = TextEdit::singleline(&mut state.text).hint_text(FIRST_PROMPT);
        let edit = field(ui, "Prompt", edit, focus);
        if state.writing.is_some() {
            let stop = button(ui, "Stop", None, "Keep the text as it is");
            return stop.then_some(Intent::Ask(Request::StopSample));
        }
        let clicked = button(ui, "Generate", reason, "Continue this text (Enter)");
        if !(clicked || entered(ui, &edit) && reason.is_none()) {
            return None;
        }
        // The next prompt is often a small change of this one.
        edit.request_focus();
        let text = if state.text.is_empty() { FIRST_PROMPT } else { &state.text };
        let prompt = text.to_string();
        Some(if is_live {
            state.requested = Some(answers);
            Intent::Send(Command::Sample { prompt, probabilities: state.options.probabilities })
        } else {
            Intent::Generate(SampleInput::Prompt(prompt))
        })
    });
    if state.requested.is_some() {
        ui.weak("The run generates the text after the current iteration.");
    } else if !is_live && progress.run.is_some() {
        let has_before = model_before(progress).is_some();
        ui.add_enabled_ui(state.writing.is_none(), |ui| {
            options(ui, &mut state.options, has_before, on_cpu);
        });
    }
    intent.inner
}

/// Draws the options. `has_before` is true for a run that began with a model, and `on_cpu` if the CPU generates
/// the text.
pub(super) fn options(ui: &mut Ui, options: &mut TextOptions, has_before: bool, on_cpu: bool) {
    let option = |ui: &mut Ui, name: &str, value: DragValue<'_>, help: &str| {
        let label = ui.weak(name).on_hover_text(help);
        ui.add(value).labelled_by(label.id).on_hover_text(help);
    };
    ui.horizontal_wrapped(|ui| {
        let help = "Below 1 the text keeps to what is likely, above 1 it takes risks. 0 always \
                    takes the most likely token";
        let value = DragValue::new(&mut options.temperature).range(0.0..=2.0).speed(0.01);
        option(ui, "temperature", value.fixed_decimals(2), help);
        let help = "Draw only from this many of the most likely tokens; 0 draws from all";
        option(ui, "top-k", DragValue::new(&mut options.top_k).range(0..=MAX_TOP_K), help);
        let value = DragValue::new(&mut options.tokens).range(1..=MAX_TOKENS);
        option(ui, "length", value, "Tokens to generate");
        if has_before {
            let help = "Write with the model that this run began with, too";
            ui.checkbox(&mut options.before, "before and after").on_hover_text(help);
        }
        if on_cpu {
            ui.weak("on the CPU, while another run trains");
        }
    });
}
