//! A conversation with the shown model.

use eframe::egui::{self, Button, Frame, Key, Label, Margin, Modifiers, RichText, TextEdit, Ui};

use super::prompt;
use super::token_text::readable;
use crate::data::Role;
use crate::gui::intent::Intent;
use crate::gui::state::{Before, ChatState, SampleState, model_before};
use crate::gui::widgets::{action, button, field, wrapped};
use crate::protocol::{Progress, Request, RunPhase, SampleInput};
use crate::runs::Introduction;

/// The name of the model that a run began with.
pub(super) const BEFORE: &str = "Before the training";
const YOU: &str = "You";

/// Draws the conversation, the fields for a message and the system prompt, and the options.
pub(super) fn show(
    ui: &mut Ui,
    state: &mut SampleState,
    progress: &Progress,
    on_cpu: bool,
) -> Option<Intent> {
    let SampleState { prompt, chat, before, focus, .. } = state;
    let reason = match progress.state {
        RunPhase::Running | RunPhase::Paused => Some("You can write to it once the run has ended."),
        _ => prompt.obstacle(progress),
    };
    let input = egui::Panel::bottom("message").frame(Frame::NONE).resizable(false);
    let intent = input.show(ui, |ui| {
        ui.add_space(4.0);
        let intent = message_field(ui, reason, chat, focus);
        ui.add_enabled_ui(chat.writing.is_none(), |ui| {
            let has_before = model_before(progress).is_some();
            prompt::options(ui, &mut prompt.options, has_before, on_cpu);
        });
        intent
    });
    ui.horizontal(|ui| head(ui, chat));
    ui.separator();
    let area = egui::ScrollArea::vertical().id_salt("conversation").stick_to_bottom(true);
    let example =
        area.auto_shrink(false).show(ui, |ui| messages(ui, chat, before.as_ref(), reason));
    let example = example.inner.map(|example| {
        chat.draft = example;
        Intent::Generate(SampleInput::Conversation(chat.send()))
    });
    intent.inner.or(example)
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
/// example that was clicked. `before` is the answer of the model that the run began with to the last message.
fn messages(
    ui: &mut Ui,
    state: &ChatState,
    before: Option<&Before>,
    reason: Option<&str>,
) -> Option<String> {
    if state.messages.is_empty() {
        return introduction(ui, state, reason);
    }
    let before = before.filter(|before| matches!(before.input, SampleInput::Conversation(_)));
    let last_of_user = state.messages.iter().rposition(|message| message.role == Role::User);
    for (index, message) in state.messages.iter().enumerate() {
        if index == state.forgotten && index > 0 {
            ui.weak("The model no longer reads the messages above: its context is full.");
        }
        draw(ui, name(message.role), &message.content);
        if last_of_user == Some(index)
            && let Some(before) = before
        {
            draw(ui, BEFORE, if before.text.is_empty() { "..." } else { &before.text });
        }
    }
    if let Some(text) = &state.writing {
        draw(ui, name(Role::Assistant), if text.is_empty() { "..." } else { text });
    }
    None
}

fn introduction(ui: &mut Ui, state: &ChatState, reason: Option<&str>) -> Option<String> {
    let Introduction { text, examples } = &state.introduction;
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

fn name(role: Role) -> &'static str {
    if role == Role::User { YOU } else { "Model" }
}

/// Draws a message, with a background if the person wrote it.
fn draw(ui: &mut Ui, name: &str, text: &str) {
    let fill = if name == YOU { ui.visuals().extreme_bg_color } else { egui::Color32::TRANSPARENT };
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
    use crate::data::Message;

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
            drawn.intents.extend(show(ui, &mut drawn.samples, &drawn.progress, false));
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
        let sent = [Intent::Generate(SampleInput::Conversation(sent.into()))];
        assert_eq!(harness.state().intents, sent);
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
        let sent = [Intent::Generate(SampleInput::Conversation(sent.into()))];
        assert_eq!(harness.state().intents, sent);
        assert!(harness.query_by_label("It knows animals.").is_none());
    }

    #[test]
    fn a_run_that_trains_has_no_time() {
        let mut harness = panel();
        harness.state_mut().progress.state = RunPhase::Running;
        harness.state_mut().samples.chat.introduction.examples = vec!["Hi".into()];
        type_into(&mut harness, "Message", "Hello!");
        for button in ["Send", "Hi"] {
            assert!(harness.get_by_label(button).accesskit_node().is_disabled(), "{button}");
        }
    }
}
