//! The samples that are shown, a prompt for more, and a conversation.

use eframe::egui;

use super::chat::ChatState;
use super::prompt::PromptState;
use crate::gui::intent::Intent;
use crate::protocol::{SampleInput, SampleRequest, ScoredToken};

#[derive(Debug, Default)]
pub struct SampleState {
    pub view: SampleView,
    pub selection: Selection,
    pub prompt: PromptState,
    pub chat: ChatState,
    pub inside: InsideState,
    pub before: Option<Before>,
    /// True to give the field for a prompt or a message, whichever is shown, the focus in the next
    /// frame.
    pub focus: bool,
}

/// The answer of the run's base model to the newest prompt or message.
#[derive(Debug)]
pub struct Before {
    pub input: SampleInput,
    pub text: String,
    /// The request to the trained model, which follows this text.
    pub then: Option<SampleRequest>,
}

impl Before {
    pub fn new(then: SampleRequest) -> Self {
        Self { input: then.input.clone(), text: String::new(), then: Some(then) }
    }
}

/// What is shown of a model's texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleView {
    Conversation,
    #[default]
    Texts,
    Inside,
}

impl SampleState {
    /// Drops what the trained model was to write after the one before it, which is being stopped.
    pub fn end_before(&mut self) {
        if self.before.as_mut().is_some_and(|before| before.then.take().is_some()) {
            self.prompt.writing = None;
            self.chat.take_back();
        }
    }

    /// Forgets the texts of the shown model: another one is shown.
    pub fn forget(&mut self) {
        let PromptState { text, options, .. } = std::mem::take(&mut self.prompt);
        *self =
            Self { prompt: PromptState { text, options, ..Default::default() }, ..Self::default() };
    }

    /// Offers a conversation if the shown model was trained on some, and opens it, unless the model
    /// is being trained: then its samples are what counts.
    pub fn offer_chat(&mut self, is_offered: bool, is_training: bool) {
        let is_new = std::mem::replace(&mut self.chat.is_offered, is_offered) != is_offered;
        if is_new && self.view != SampleView::Inside {
            self.open_texts(!is_training);
        }
    }

    /// Shows the conversation if there is one and it is preferred, else the texts.
    pub fn open_texts(&mut self, prefers_chat: bool) {
        let is_chat = prefers_chat && self.chat.is_offered;
        self.view = if is_chat { SampleView::Conversation } else { SampleView::Texts };
    }
}

/// Text that the shown model scores, token by token.
#[derive(Debug, Default)]
pub struct InsideState {
    pub text: String,
    pub tokens: Vec<ScoredToken>,
    pub is_reading: bool,
}

impl InsideState {
    /// Adds tokens, unless the text is no longer being read.
    pub fn scored(&mut self, tokens: Vec<ScoredToken>, done: bool) {
        if self.is_reading {
            self.tokens.extend(tokens);
            self.is_reading = !done;
        }
    }

    /// Ends the reading; the tokens so far stay. Returns true if text was being read.
    pub fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_reading)
    }

    /// Begins to read `text`, and requests its tokens.
    pub fn look_into(&mut self, text: String) -> Intent {
        *self = Self { is_reading: true, text: text.clone(), tokens: Vec::new() };
        Intent::Generate(SampleInput::Text(text))
    }
}

/// The sample that is shown: the sample under the pointer, else the chosen sample, else the
/// newest. Samples are counted from 0.
#[derive(Debug, Default)]
pub struct Selection {
    /// `None` shows each new sample as it arrives.
    pub chosen: Option<usize>,
    pub pointed_at: Option<usize>,
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

    /// Ends a pass over the window. The sample under the pointer is shown from the next pass on, so
    /// that what is drawn earlier and later agrees.
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
        let mut selection = Selection::default();
        let ctx = egui::Context::default();
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

    #[test]
    fn only_a_model_with_conversations_opens_one() {
        let mut state = SampleState::default();
        state.offer_chat(false, false);
        assert_eq!(state.view, SampleView::Texts);
        state.offer_chat(true, false);
        assert_eq!(state.view, SampleView::Conversation);
        state.view = SampleView::Texts;
        state.offer_chat(true, false);
        assert_eq!(state.view, SampleView::Texts, "the samples were chosen");
        state.offer_chat(false, false);
        assert!(state.view == SampleView::Texts && !state.chat.is_offered);
        state.offer_chat(true, true);
        assert_eq!(state.view, SampleView::Texts, "the model is being trained");
        assert!(state.chat.is_offered);
    }
}
