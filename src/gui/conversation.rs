//! A conversation with the shown model.

use eframe::egui::{self, Button, Frame, Key, Label, Margin, Modifiers, RichText, TextEdit, Ui};

use super::Intent;
use super::prompt::field;
use super::samples::SampleState;
use super::token_text::readable;
use super::widgets::{action, button, wrapped};
use crate::data::{Message, Role};
use crate::protocol::{Progress, Request, RunPhase, SampleInput};
use crate::runs::Introduction;

#[derive(Debug, Default)]
pub(super) struct ChatState {
    pub is_offered: bool,
    /// True if the conversation is shown in place of the samples.
    pub is_open: bool,
    pub introduction: Introduction,
    system: String,
    draft: String,
    /// The messages of both, without the system prompt.
    messages: Vec<Message>,
    writing: Option<String>,
    /// The oldest messages, for which the model had no room when it answered last.
    forgotten: usize,
}

impl ChatState {
    /// Offers a conversation if the shown model was trained on some, and opens it, unless the model
    /// is being trained: then its samples are what counts.
    pub fn offer(&mut self, is_offered: bool, is_training: bool) {
        if self.is_offered != is_offered {
            self.is_open = is_offered && !is_training;
        }
        self.is_offered = is_offered;
    }

    /// Forgets the conversation: another model is shown.
    pub fn clear(&mut self) {
        let (is_offered, is_open) = (self.is_offered, self.is_open);
        *self = Self { is_offered, is_open, ..Self::default() };
    }

    pub fn answered(&mut self, text: String, forgotten: usize, done: bool) {
        if self.writing.is_none() {
            // An answer that was ended has no conversation to belong to.
        } else if !done {
            self.writing = Some(text);
        } else if text.is_empty() {
            self.take_back();
        } else {
            self.writing = None;
            self.messages.push(Message::new(Role::Assistant, text));
            self.forgotten = forgotten;
        }
    }

    /// Returns the message that has no answer to its field. Returns true if there was one.
    pub fn take_back(&mut self) -> bool {
        let was_writing = self.writing.take().is_some();
        if was_writing
            && let Some(message) = self.messages.pop()
            && self.draft.is_empty()
        {
            self.draft = message.content;
        }
        was_writing
    }

    /// Adds the message that was typed. Returns the whole conversation.
    fn send(&mut self) -> Vec<Message> {
        let content = std::mem::take(&mut self.draft);
        self.messages.push(Message::new(Role::User, content));
        self.writing = Some(String::new());
        let system = self.system.trim();
        let system = (!system.is_empty()).then(|| Message::new(Role::System, system));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }
}

impl SampleState {
    /// Draws the conversation, the fields for a message and the system prompt, and the options.
    pub fn conversation(
        &mut self,
        ui: &mut Ui,
        progress: &Progress,
        on_cpu: bool,
    ) -> Option<Intent> {
        let reason = match progress.state {
            RunPhase::Running | RunPhase::Paused => {
                Some("You can write to it once the run has ended.")
            }
            _ => self.prompt.obstacle(progress),
        };
        let input = egui::Panel::bottom("message").frame(Frame::NONE).resizable(false);
        let Self { prompt, chat, focus, .. } = self;
        let intent = input.show(ui, |ui| {
            ui.add_space(4.0);
            let intent = message_field(ui, reason, chat, focus);
            ui.add_enabled_ui(chat.writing.is_none(), |ui| prompt.options.show(ui, on_cpu));
            intent
        });
        ui.horizontal(|ui| self.choice(ui));
        ui.horizontal(|ui| head(ui, &mut self.chat));
        ui.separator();
        let area = egui::ScrollArea::vertical().id_salt("conversation").stick_to_bottom(true);
        let example = area.auto_shrink(false).show(ui, |ui| messages(ui, &self.chat, reason));
        let example = example.inner.map(|example| {
            self.chat.draft = example;
            Intent::Generate(SampleInput::Conversation(self.chat.send()))
        });
        intent.inner.or(example)
    }
}

fn head(ui: &mut Ui, state: &mut ChatState) {
    let edit = TextEdit::singleline(&mut state.system).hint_text("none");
    let edit = field(ui, "System prompt", edit, &mut false);
    edit.on_hover_text("What the model is told before the conversation");
    let can_clear = !state.messages.is_empty() && state.writing.is_none();
    let clear = ui.add_enabled(can_clear, Button::new("Clear"));
    if clear.on_hover_text("Begin a new conversation").clicked() {
        state.messages.clear();
        state.forgotten = 0;
    }
}

fn message_field(
    ui: &mut Ui,
    reason: Option<&str>,
    state: &mut ChatState,
    focus: &mut bool,
) -> Option<Intent> {
    ui.horizontal(|ui| {
        // Enter is taken here: in the field it would be a line break.
        let line_break = egui::KeyboardShortcut::new(Modifiers::SHIFT, Key::Enter);
        let edit = TextEdit::multiline(&mut state.draft).desired_rows(1).return_key(line_break);
        let edit = field(ui, "Message", edit, focus);
        if state.writing.is_some() {
            let stop = button(ui, "Stop", None, "Keep the answer as it is");
            return stop.then_some(Intent::Ask(Request::StopSample));
        }
        let enter = |input: &egui::InputState| {
            input.key_pressed(Key::Enter) && input.modifiers == Modifiers::NONE
        };
        let entered = edit.has_focus() && ui.input(enter);
        let reason = reason.or(state.draft.trim().is_empty().then_some("Type a message first."));
        let help = "Send the message (Enter); Shift+Enter breaks the line";
        let clicked = button(ui, "Send", reason, help);
        (reason.is_none() && (clicked || entered)).then(|| {
            edit.request_focus();
            Intent::Generate(SampleInput::Conversation(state.send()))
        })
    })
    .inner
}

/// Draws the messages, or before the first one what the model knows, with examples as buttons. Returns the
/// example that was clicked.
fn messages(ui: &mut Ui, state: &ChatState, reason: Option<&str>) -> Option<String> {
    if state.messages.is_empty() {
        return introduction(ui, &state.introduction, reason);
    }
    for (index, message) in state.messages.iter().enumerate() {
        if index == state.forgotten && index > 0 {
            ui.weak("The model no longer reads the messages above: its context is full.");
        }
        draw(ui, message.role, &message.content);
    }
    if let Some(text) = &state.writing {
        draw(ui, Role::Assistant, if text.is_empty() { "..." } else { text });
    }
    None
}

fn introduction(
    ui: &mut Ui,
    Introduction { text, examples }: &Introduction,
    reason: Option<&str>,
) -> Option<String> {
    let unknown = "This model was trained on conversations: write to it.";
    wrapped(ui, if text.is_empty() { unknown } else { text });
    ui.horizontal_wrapped(|ui| {
        let clicked = examples.iter().filter(|example| {
            let chip = Button::new(example.as_str()).corner_radius(10).wrap();
            action(ui, chip, reason, "Send this message")
        });
        clicked.last().cloned()
    })
    .inner
}

/// Draws a message, with a background if the person wrote it.
fn draw(ui: &mut Ui, role: Role, text: &str) {
    let (name, fill) = match role {
        Role::User => ("You", ui.visuals().extreme_bg_color),
        _ => ("Model", egui::Color32::TRANSPARENT),
    };
    let frame = Frame::new().fill(fill).corner_radius(6).inner_margin(Margin::symmetric(8, 5));
    frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.weak(name);
        // As large as the samples: this is to be read.
        let size = egui::TextStyle::Body.resolve(ui.style()).size + 2.0;
        let text = RichText::new(readable(text)).size(size).strong();
        ui.add(Label::new(text).wrap().selectable(true));
    });
}

#[cfg(test)]
mod tests {
    use egui_kittest::Harness;
    use egui_kittest::kittest::{NodeT, Queryable};

    use super::*;

    /// The state that the panel is drawn from, and the intents that it returned.
    struct Drawn {
        progress: Progress,
        samples: SampleState,
        intents: Vec<Intent>,
    }

    fn panel() -> Harness<'static, Drawn> {
        let progress = Progress { run: Some("models/chat".into()), ..Progress::default() };
        let state = Drawn { progress, samples: SampleState::default(), intents: Vec::new() };
        let draw = |ui: &mut Ui, drawn: &mut Drawn| {
            drawn.intents.extend(drawn.samples.conversation(ui, &drawn.progress, false));
        };
        Harness::builder().with_size([600.0, 400.0]).build_ui_state(draw, state)
    }

    fn type_into(harness: &mut Harness<'static, Drawn>, field: &str, text: &str) {
        harness.get_by_label(field).focus();
        harness.step();
        harness.get_by_label(field).type_text(text);
        harness.run_steps(2);
    }

    #[test]
    fn enter_sends_the_conversation_and_the_answer_grows() {
        let mut harness = panel();
        harness.step();
        assert!(harness.get_by_label("Send").accesskit_node().is_disabled());
        type_into(&mut harness, "System prompt", "Be brief.");
        type_into(&mut harness, "Message", "Hello!");
        harness.key_press(Key::Enter);
        harness.run_steps(2);
        let sent = [Message::new(Role::System, "Be brief."), Message::new(Role::User, "Hello!")];
        let [Intent::Generate(SampleInput::Conversation(messages))] = &harness.state().intents[..]
        else {
            panic!("nothing was sent")
        };
        assert_eq!(messages[..], sent);
        assert_eq!(harness.state().samples.chat.draft, "", "the field keeps what was sent");
        assert!(harness.query_by_label("Hello!").is_some());
        assert!(harness.query_by_label("Send").is_none());

        for (answer, done) in [("Hi", false), ("Hi there.", true)] {
            harness.state_mut().samples.chat.answered(answer.into(), 0, done);
            harness.run_steps(2);
            assert!(harness.query_by_label(answer).is_some(), "{answer}");
        }

        type_into(&mut harness, "Message", "Bye.");
        harness.get_by_label("Send").click();
        harness.run_steps(2);
        harness.get_by_label("Stop").click();
        harness.run_steps(2);
        let intents = &harness.state().intents;
        let [
            _,
            Intent::Generate(SampleInput::Conversation(messages)),
            Intent::Ask(Request::StopSample),
        ] = &intents[..]
        else {
            panic!("{intents:?}")
        };
        assert_eq!((messages.len(), &messages[2].role), (4, &Role::Assistant));
        harness.state_mut().samples.chat.answered("B".into(), 2, true);
        harness.run_steps(2);
        assert!(harness.query_by_label_contains("no longer reads").is_some());
        harness.get_by_label("Clear").click();
        harness.run_steps(2);
        assert!(harness.query_by_label("Hello!").is_none());
    }

    #[test]
    fn an_example_is_sent_with_a_click() {
        let mut harness = panel();
        harness.state_mut().samples.chat.introduction = Introduction {
            text: "It knows animals.".into(),
            examples: vec!["What does a cow say?".into()],
        };
        harness.run_steps(2);
        assert!(harness.query_by_label("It knows animals.").is_some());
        harness.get_by_label("What does a cow say?").click();
        harness.run_steps(2);
        let sent = [Message::new(Role::User, "What does a cow say?")];
        let [Intent::Generate(SampleInput::Conversation(messages))] = &harness.state().intents[..]
        else {
            panic!("nothing was sent")
        };
        assert_eq!(messages[..], sent);
        assert!(harness.query_by_label("It knows animals.").is_none());
        let mut training = panel();
        training.state_mut().samples.chat.introduction.examples = vec!["Hi".into()];
        training.state_mut().progress.state = RunPhase::Running;
        training.run_steps(2);
        assert!(training.get_by_label("Hi").accesskit_node().is_disabled());
    }

    #[test]
    fn a_message_without_an_answer_returns_to_its_field() {
        let mut chat = ChatState { draft: "Hello!".into(), ..ChatState::default() };
        chat.send();
        chat.answered(String::new(), 0, true);
        assert_eq!((chat.draft.as_str(), chat.messages.len()), ("Hello!", 0));
        chat.send();
        chat.draft = "Next".into();
        chat.take_back();
        assert_eq!((chat.draft.as_str(), chat.messages.len()), ("Next", 0));
        assert!(chat.writing.is_none());
        // The reply to a conversation that is no longer shown.
        chat.answered("Hi".into(), 0, true);
        assert!(chat.messages.is_empty());
    }

    #[test]
    fn only_a_model_with_conversations_opens_one() {
        let mut chat = ChatState::default();
        chat.offer(false, false);
        assert!(!chat.is_open);
        chat.offer(true, false);
        assert!(chat.is_open);
        chat.is_open = false;
        chat.offer(true, false);
        assert!(!chat.is_open, "the samples were chosen");
        chat.offer(false, false);
        assert!(!chat.is_open && !chat.is_offered);
        chat.offer(true, true);
        assert!(!chat.is_open && chat.is_offered, "the model is being trained");
    }

    #[test]
    fn a_run_that_trains_has_no_time() {
        let mut harness = panel();
        harness.state_mut().progress.state = RunPhase::Running;
        type_into(&mut harness, "Message", "Hello!");
        assert!(harness.get_by_label("Send").accesskit_node().is_disabled());
    }
}
