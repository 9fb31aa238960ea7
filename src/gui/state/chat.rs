//! A conversation with the shown model.

use crate::data::{Message, Role};
use crate::runs::Introduction;

#[derive(Debug, Default)]
pub struct ChatState {
    pub is_offered: bool,
    pub introduction: Introduction,
    pub system: String,
    pub draft: String,
    /// The messages of both, without the system prompt.
    pub messages: Vec<Message>,
    pub writing: Option<String>,
    /// The oldest messages, for which the model had no room when it answered last.
    pub forgotten: usize,
}

impl ChatState {
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
    pub fn send(&mut self) -> Vec<Message> {
        let content = std::mem::take(&mut self.draft);
        self.messages.push(Message::new(Role::User, content));
        self.writing = Some(String::new());
        let system = self.system.trim();
        let system = (!system.is_empty()).then(|| Message::new(Role::System, system));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
