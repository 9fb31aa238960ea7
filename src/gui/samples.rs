//! The texts that the model generates, a prompt for more, and a conversation.

use eframe::egui::{self, Ui};

use super::conversation::ChatState;
use super::inside::InsideState;
use super::prompt::{PromptState, Written};
use super::token_text;
use super::widgets::button;
use super::{Intent, Shared};
use crate::protocol::{Progress, RunPhase, ScoredToken};
use crate::text::grouped;

#[derive(Debug, Default)]
pub(super) struct SampleState {
    pub selection: Selection,
    pub prompt: PromptState,
    pub chat: ChatState,
    pub inside: InsideState,
    /// True to give the field for a prompt or a message, whichever is shown, the focus in the next
    /// frame.
    pub focus: bool,
}

/// The content of the panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleView {
    Conversation,
    Texts,
    Inside,
}

impl SampleState {
    fn view(&self) -> SampleView {
        if self.inside.is_open {
            SampleView::Inside
        } else if self.chat.is_offered && self.chat.is_open {
            SampleView::Conversation
        } else {
            SampleView::Texts
        }
    }

    /// Draws the choice of what the panel shows.
    pub fn choice(&mut self, ui: &mut Ui) {
        let mut view = self.view();
        if self.chat.is_offered {
            ui.selectable_value(&mut view, SampleView::Conversation, "Conversation");
        }
        ui.selectable_value(&mut view, SampleView::Texts, "Texts");
        ui.selectable_value(&mut view, SampleView::Inside, "Look inside a text");
        self.inside.is_open = view == SampleView::Inside;
        if view != SampleView::Inside {
            self.chat.is_open = view == SampleView::Conversation;
        }
    }

    /// Draws the switch, with a legend if it is on.
    fn color_by_probability(&mut self, ui: &mut Ui) {
        let is_on = &mut self.prompt.options.probabilities;
        let help = "Colour the tokens of the texts that you generate from now on by their \
                    probability. Point at a token to see the likeliest ones in its place";
        ui.checkbox(is_on, "Colour by probability").on_hover_text(help);
        if *is_on {
            token_text::legend(ui);
        }
    }

    fn texts(&mut self, ui: &mut Ui, progress: &Progress, on_cpu: bool) -> Option<Intent> {
        let mut requested = self.prompt.show(ui, progress, &mut self.focus, on_cpu);
        if requested.is_some() {
            // The new text is the newest.
            self.selection.chosen = None;
        }
        let by_probability = self.prompt.options.probabilities;
        if let Some(Written { prompt, text, tokens }) = &self.prompt.writing {
            ui.separator();
            draw(ui, prompt, text, tokens, by_probability);
        } else if let Some(index) = self.selection.shown(progress.samples.len()) {
            selector(ui, progress, &mut self.selection, index);
            let sample = &progress.samples[index];
            if by_probability && sample.tokens.is_empty() {
                ui.horizontal_wrapped(|ui| {
                    ui.weak("This text was generated without probabilities.");
                    let obstacle = inside_obstacle(&self.prompt, progress);
                    if button(ui, "Look inside", obstacle, "Compute them now") {
                        let text = format!("{}{}", sample.prompt, sample.text);
                        requested = Some(self.inside.look_into(text));
                    }
                });
            }
            ui.separator();
            draw(ui, &sample.prompt, &sample.text, &sample.tokens, by_probability);
        } else {
            ui.add_space(4.0);
            ui.weak(placeholder(progress));
        }
        requested
    }
}

/// Returns why the model cannot read a text now.
fn inside_obstacle(prompt: &PromptState, progress: &Progress) -> Option<&'static str> {
    match progress.state {
        RunPhase::Running | RunPhase::Paused => Some("You can look inside once the run has ended."),
        _ if prompt.writing.is_some() => Some("The model is generating a text."),
        _ => prompt.obstacle(progress),
    }
}

/// Draws the conversation with a model that was trained on some, else texts.
pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { shown, samples: state, .. } = shared;
    let (progress, on_cpu) = (&shown.progress, shown.generates_on_cpu());
    if state.view() == SampleView::Conversation {
        return state.conversation(ui, progress, on_cpu);
    }
    ui.horizontal_wrapped(|ui| {
        state.choice(ui);
        if state.view() == SampleView::Texts {
            ui.separator();
            state.color_by_probability(ui);
        }
    });
    if state.view() == SampleView::Inside {
        return state.inside.show(ui, inside_obstacle(&state.prompt, progress));
    }
    let scroll = egui::ScrollArea::vertical().id_salt("texts").auto_shrink(false);
    scroll.show(ui, |ui| state.texts(ui, progress, on_cpu)).inner
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
        let (iter, number) = (grouped(sample.iter), index + 1);
        let text = format!("iteration {iter:>iter_width$}, {number:>count_width$} of {count}");
        ui.add(egui::Label::new(egui::RichText::new(text).monospace().weak()).extend());
    });
}

/// Draws a sample after its prompt, with its tokens colored if that is wanted and they are known.
fn draw(ui: &mut Ui, prompt: &str, text: &str, tokens: &[ScoredToken], by_probability: bool) {
    let mut job = token_text::prompt(ui, prompt);
    if by_probability && !tokens.is_empty() {
        return token_text::show(ui, job, tokens);
    }
    let text = if job.text.is_empty() { text.trim_start() } else { text };
    job.append(&token_text::readable(text), 0.0, token_text::format(ui));
    ui.add(egui::Label::new(job).wrap().selectable(true));
}

fn placeholder(progress: &Progress) -> &'static str {
    match &progress.state {
        RunPhase::Idle if progress.run.is_some() => "Type a prompt, and this model continues it.",
        RunPhase::Idle => "No run yet. Start one on the left.",
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

/// The sample that the panels show: the sample under the pointer, else the chosen sample, else the
/// newest. Samples are counted from 0.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// `None` shows each new sample as it arrives.
    chosen: Option<usize>,
    pointed_at: Option<usize>,
    /// The sample under the pointer in the pass that is being drawn.
    pub next: Option<usize>,
}

impl Selection {
    /// Returns the shown one of `count` samples.
    pub fn shown(&self, count: usize) -> Option<usize> {
        // The run displayed now may have fewer samples than the one before.
        let known = self.pointed_at.or(self.chosen).filter(|&index| index < count);
        known.or(count.checked_sub(1))
    }

    /// Shows one of `count` samples until another is chosen; the newest follows new ones.
    pub fn choose(&mut self, index: usize, count: usize) {
        self.chosen = Some(index).filter(|&index| index + 1 < count);
    }

    /// Ends a pass over all panels. The sample under the pointer is shown from the next pass on, so
    /// that panels drawn earlier and later agree.
    pub fn end_pass(&mut self, ctx: &egui::Context) {
        let next = self.next.take();
        if self.pointed_at != next {
            self.pointed_at = next;
            ctx.request_repaint();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pointer_comes_before_the_choice_and_that_before_the_newest() {
        let (mut selection, ctx) = (Selection::default(), egui::Context::default());
        assert_eq!((selection.shown(0), selection.shown(5)), (None, Some(4)));
        selection.choose(1, 5);
        selection.next = Some(2);
        assert_eq!(selection.shown(5), Some(1), "not before the pass ends");
        selection.end_pass(&ctx);
        assert_eq!(selection.shown(5), Some(2));
        selection.end_pass(&ctx);
        assert_eq!((selection.shown(5), selection.chosen), (Some(1), Some(1)));
        assert_eq!(selection.shown(1), Some(0), "another run has fewer");
        selection.choose(4, 5);
        assert_eq!(selection.chosen, None);
    }
}
