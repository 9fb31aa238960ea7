//! The texts that the model generates, a prompt for more, and a conversation.

use eframe::egui::{self, Ui};

use super::{conversation, inside, prompt, token_text};
use crate::gui::intent::Intent;
use crate::gui::state::{Before, PromptState, SampleState, SampleView, Selection, Shared};
use crate::gui::widgets::button;
use crate::protocol::{Progress, RunPhase, Sample, SampleInput, ScoredToken};
use crate::text::grouped;

/// Draws the choice of what is shown.
fn select_view(ui: &mut Ui, state: &mut SampleState) {
    if state.chat.is_offered {
        ui.selectable_value(&mut state.view, SampleView::Conversation, "Conversation");
    }
    ui.selectable_value(&mut state.view, SampleView::Texts, "Texts");
    ui.selectable_value(&mut state.view, SampleView::Inside, "Look inside a text");
}

/// Draws the switch, with a legend if it is on.
fn color_by_probability(ui: &mut Ui, state: &mut SampleState) {
    let is_on = &mut state.prompt.options.probabilities;
    let help = "Colour the tokens of the texts that you generate from now on by their \
                probability. Point at a token to see the likeliest ones in its place";
    ui.checkbox(is_on, "Colour by probability").on_hover_text(help);
    if *is_on {
        token_text::legend(ui);
    }
}

fn texts(
    ui: &mut Ui,
    state: &mut SampleState,
    progress: &Progress,
    on_cpu: bool,
) -> Option<Intent> {
    let mut requested = prompt::show(ui, &mut state.prompt, progress, &mut state.focus, on_cpu);
    if requested.is_some() {
        // The new text is the newest.
        state.selection.chosen = None;
    }
    let by_probability = state.prompt.options.probabilities;
    if let Some(Sample { prompt, text, tokens, .. }) = &state.prompt.writing {
        ui.separator();
        draw_before(ui, state.before.as_ref(), prompt);
        draw(ui, prompt, text, tokens, by_probability);
    } else if let Some(index) = state.selection.shown(progress.samples.len()) {
        selector(ui, progress, &mut state.selection, index);
        let sample = &progress.samples[index];
        if by_probability && sample.tokens.is_empty() {
            ui.horizontal_wrapped(|ui| {
                ui.weak("This text was generated without probabilities.");
                let obstacle = inside_obstacle(&state.prompt, progress);
                if button(ui, "Look inside", obstacle, "Compute them now") {
                    let text = format!("{}{}", sample.prompt, sample.text);
                    requested = Some(state.inside.look_into(text));
                    state.view = SampleView::Inside;
                }
            });
        }
        ui.separator();
        if index + 1 == progress.samples.len() {
            draw_before(ui, state.before.as_ref(), &sample.prompt);
        }
        draw(ui, &sample.prompt, &sample.text, &sample.tokens, by_probability);
    } else {
        ui.add_space(4.0);
        ui.weak(placeholder(progress));
    }
    requested
}

/// Returns why the model cannot score text now.
fn inside_obstacle(prompt: &PromptState, progress: &Progress) -> Option<&'static str> {
    match progress.state {
        RunPhase::Running | RunPhase::Paused => Some("You can look inside once the run has ended."),
        _ if prompt.writing.is_some() => Some("The model is generating a text."),
        _ => prompt.obstacle(progress),
    }
}

/// Draws the conversation with a model that was trained on some, else texts.
pub fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { shown, samples: state, .. } = shared;
    let progress = &shown.progress;
    let on_cpu = shown.generates_on_cpu();
    ui.horizontal_wrapped(|ui| {
        select_view(ui, state);
        if state.view == SampleView::Texts {
            ui.separator();
            color_by_probability(ui, state);
        }
    });
    match state.view {
        SampleView::Conversation => conversation::show(ui, state, progress, on_cpu),
        SampleView::Inside => {
            let obstacle = inside_obstacle(&state.prompt, progress);
            inside::show(ui, &mut state.inside, obstacle)
        }
        SampleView::Texts => {
            let scroll = egui::ScrollArea::vertical().id_salt("texts").auto_shrink(false);
            scroll.show(ui, |ui| texts(ui, state, progress, on_cpu)).inner
        }
    }
}

fn selector(ui: &mut Ui, progress: &Progress, selection: &mut Selection, mut index: usize) {
    let count = progress.samples.len();
    ui.horizontal_wrapped(|ui| {
        if count > 1 {
            let label = ui.label("Sample");
            ui.spacing_mut().slider_width = (ui.available_width() - 370.0).clamp(80.0, 320.0);
            let slider = egui::Slider::new(&mut index, 0..=count - 1).show_value(false);
            let slider = ui.add(slider).labelled_by(label.id);
            let is_newest = selection.chosen.is_none().then_some("This is the newest sample.");
            if button(ui, "Newest", is_newest, "Show each new sample as it arrives.") {
                selection.chosen = None;
            } else if slider.changed() {
                selection.choose(index, count);
            }
        }
        let sample = &progress.samples[index];
        if button(ui, "Copy", None, "Copy this sample to the clipboard.") {
            ui.ctx().copy_text(format!("{}{}", sample.prompt, sample.text));
        }
        // Padded to a constant width: a longer text after the slider would move it to another row.
        let iterations = progress.max_iters.max(progress.iteration);
        let grouped = |iteration: u64| grouped(iteration as f64, 0);
        let [count_width, iter_width] = [count.to_string().len(), grouped(iterations).len()];
        let iter = grouped(sample.iter);
        let number = index + 1;
        let text = format!("iteration {iter:>iter_width$}, {number:>count_width$} of {count}");
        ui.add(egui::Label::new(egui::RichText::new(text).monospace().weak()).extend());
    });
}

/// Draws a sample after its prompt. Its tokens are colored on request, if they are known.
fn draw(ui: &mut Ui, prompt: &str, text: &str, tokens: &[ScoredToken], by_probability: bool) {
    let mut job = token_text::prompt(ui, prompt);
    if by_probability && !tokens.is_empty() {
        return token_text::show(ui, job, tokens);
    }
    let text = if job.text.is_empty() { text.trim_start() } else { text };
    job.append(&token_text::readable(text), 0.0, token_text::format(ui));
    ui.add(egui::Label::new(job).wrap().selectable(true));
}

/// Draws how the model that the run began with continued `prompt`, if it was asked.
fn draw_before(ui: &mut Ui, before: Option<&Before>, prompt: &str) {
    if let Some(Before { input: SampleInput::Prompt(asked), text, .. }) = before
        && asked == prompt
    {
        ui.weak(conversation::BEFORE);
        draw(ui, prompt, text, &[], false);
        ui.add_space(8.0);
        ui.weak("After it");
    }
}

fn placeholder(progress: &Progress) -> &'static str {
    match &progress.state {
        RunPhase::Idle if progress.run.is_some() => "Type a prompt, and this model continues it.",
        _ if progress.has_ended() => "This run generated no samples.",
        RunPhase::Running | RunPhase::Paused => match &progress.config {
            Some(config) if config.sample_tokens == 0 => {
                "This run generates no samples by itself (sample_tokens is 0)."
            }
            _ => "No samples yet. The run begins with one.",
        },
        _ => "The run is starting.",
    }
}
