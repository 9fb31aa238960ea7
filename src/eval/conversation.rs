//! Conversations with a model: prompts that fit its context, and answers as they are generated.
//!
//! The terminal, the window and the page talk to a model through this module. A [`Conversation`] has
//! a system prompt and turns, each a user message and its answer. When it no longer fits the context,
//! it forgets its oldest turns. It forgets whole turns, so that the rest still has the form that the
//! model was trained on. The system prompt stays.

use std::collections::VecDeque;
use std::path::Path;

use thiserror::Error;

use crate::data::{ChatTemplate, DataError, Message, Role, TextStream, Tokenizer};
use crate::model::{Architecture, Gpt, SampleOptions, Sampler};
use crate::ops::OpsMode;

/// The tokens that a message has in addition to its text: its role and its end.
const MESSAGE_FRAME: usize = 2;

/// The tokens that a prompt has in addition to its messages: the beginning, and the role of the answer.
const PROMPT_FRAME: usize = 2;

#[derive(Debug, Error)]
pub enum ChatError {
    #[error("{model}: this model was not trained on conversations")]
    NoTemplate { model: String },
    #[error(
        "the tokenizer has {tokens} tokens, including the ones for conversations, but the model has \
         only {model}"
    )]
    Vocabulary { tokens: usize, model: usize },
    #[error("the message cannot be tokenized: {0}")]
    Text(#[from] DataError),
    /// The message leaves no token for its answer.
    #[error("the {role} message has {tokens} tokens, but the model's context has room for {most}")]
    TooLong { role: Role, tokens: usize, most: usize },
    #[error("a conversation can begin with a system message, and it must end with a user message")]
    Order,
}

impl ChatError {
    pub fn hint(&self) -> &'static str {
        match self {
            ChatError::NoTemplate { .. } | ChatError::Vocabulary { .. } => {
                "train it on conversations, as `wgpt train --preset=chat` does, or continue texts with \
                 `wgpt sample`"
            }
            ChatError::Text(_) => "use only characters that the model was trained on",
            ChatError::TooLong { role: Role::System, .. } => "give a shorter system prompt",
            ChatError::TooLong { .. } => "shorten it, or the system prompt if there is one",
            ChatError::Order => "put the message to answer last",
        }
    }
}

#[derive(Debug)]
pub struct Conversation {
    template: ChatTemplate,
    context: usize,
    /// The tokens of the system prompt; empty without one.
    system: Vec<u32>,
    turns: VecDeque<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    ids: Vec<u32>,
    messages: usize,
}

/// The tokens that the model continues with an answer.
#[derive(Debug, PartialEq)]
pub struct Prompt {
    ids: Vec<u32>,
    room: usize,
    /// The number of old messages that the conversation forgot to make room.
    pub forgotten: usize,
}

impl Conversation {
    pub fn new(
        path: &Path,
        tokenizer: Option<&Tokenizer>,
        model: &Architecture,
    ) -> Result<Self, ChatError> {
        let Some(template) = tokenizer.and_then(Tokenizer::chat) else {
            return Err(ChatError::NoTemplate { model: path.display().to_string() });
        };
        let tokens = template.vocab_size() as usize;
        if tokens > model.vocab_size {
            return Err(ChatError::Vocabulary { tokens, model: model.vocab_size });
        }
        Ok(Self::with(template.clone(), model.block_size))
    }

    fn with(template: ChatTemplate, context: usize) -> Self {
        Self { template, context, system: Vec::new(), turns: VecDeque::new() }
    }

    /// Sets the system prompt. An empty text removes it.
    ///
    /// # Errors
    /// If it leaves no room for a message and its answer, or cannot be tokenized. The conversation
    /// then keeps its previous system prompt.
    pub fn set_system(&mut self, text: &str) -> Result<(), ChatError> {
        self.system = match text {
            "" => Vec::new(),
            // Leaves room for a message of one token and an answer of one token.
            text => self.encode(Role::System, text, PROMPT_FRAME + MESSAGE_FRAME + 2)?,
        };
        Ok(())
    }

    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Replaces the conversation by `messages`, except for the last one, which is returned to be asked.
    ///
    /// # Errors
    /// If they are not in the order of a conversation, or if one is too long or cannot be tokenized.
    pub fn load<'m>(&mut self, messages: &'m [Message]) -> Result<&'m str, ChatError> {
        let (system, messages) = match messages {
            [first, rest @ ..] if first.role == Role::System => (first.content.as_str(), rest),
            all => ("", all),
        };
        self.set_system(system)?;
        self.clear();
        let (last, earlier) = messages.split_last().ok_or(ChatError::Order)?;
        if last.role != Role::User || earlier.iter().any(|message| message.role == Role::System) {
            return Err(ChatError::Order);
        }
        for message in earlier {
            let ids = self.template.message(message)?;
            match self.turns.back_mut().filter(|_| message.role == Role::Assistant) {
                Some(turn) => {
                    turn.ids.extend(ids);
                    turn.messages += 1;
                }
                None => self.turns.push_back(Turn { ids, messages: 1 }),
            }
        }
        Ok(&last.content)
    }

    /// Adds a user message. Returns the prompt for its answer of up to `most` tokens. Forgets old turns
    /// until the answer has room for half of the context, or for what the message leaves of it.
    ///
    /// # Errors
    /// If the message leaves no room for an answer, or cannot be tokenized. It is not added then.
    pub fn ask(&mut self, text: &str, most: usize) -> Result<Prompt, ChatError> {
        let around = PROMPT_FRAME + self.system.len();
        let ids = self.encode(Role::User, text, around + 1)?;
        let left = self.context - around - ids.len();
        let reserve = most.min(self.context / 2).min(left);
        self.turns.push_back(Turn { ids, messages: 1 });
        let mut forgotten = 0;
        while self.len() + reserve > self.context {
            forgotten += self.turns.pop_front().map_or(0, |turn| turn.messages);
        }
        let mut ids = vec![self.template.begin()];
        ids.extend(&self.system);
        ids.extend(self.turns.iter().flat_map(|turn| &turn.ids));
        ids.push(self.template.opening(Role::Assistant));
        let room = most.min(self.context - ids.len());
        Ok(Prompt { ids, room, forgotten })
    }

    pub fn answer<'a>(
        &'a self,
        prompt: &Prompt,
        model: &'a Gpt,
        options: SampleOptions,
        mode: OpsMode,
    ) -> Answer<'a> {
        Answer {
            template: &self.template,
            sampler: Sampler::new(model, &prompt.ids, options, mode),
            room: prompt.room,
            ids: Vec::new(),
            text: TextStream::default(),
            has_ended: false,
        }
    }

    /// Adds the tokens of an answer, which may be cut off. An empty one removes the message before it.
    pub fn record(&mut self, answer: &[u32]) {
        if answer.is_empty() {
            self.turns.pop_back();
        } else if let Some(turn) = self.turns.back_mut() {
            turn.ids.push(self.template.opening(Role::Assistant));
            turn.ids.extend(answer);
            turn.ids.push(self.template.end());
            turn.messages += 1;
        }
    }

    fn len(&self) -> usize {
        let turns: usize = self.turns.iter().map(|turn| turn.ids.len()).sum();
        PROMPT_FRAME + self.system.len() + turns
    }

    /// Returns the tokens of a message that shares the context with `others` tokens.
    fn encode(&self, role: Role, text: &str, others: usize) -> Result<Vec<u32>, ChatError> {
        let ids = self.template.message(&Message::new(role, text))?;
        if ids.len() + others > self.context {
            let (tokens, most) = (ids.len(), self.context.saturating_sub(others + MESSAGE_FRAME));
            return Err(ChatError::TooLong { role, tokens: tokens - MESSAGE_FRAME, most });
        }
        Ok(ids)
    }
}

pub struct Answer<'a> {
    template: &'a ChatTemplate,
    sampler: Sampler<'a>,
    room: usize,
    pub ids: Vec<u32>,
    text: TextStream,
    has_ended: bool,
}

impl Answer<'_> {
    /// Returns the next characters. The text may be empty, since a token can be a part of a
    /// character. Returns `None` at the end of the answer.
    pub async fn next(&mut self) -> Option<String> {
        if self.has_ended || self.is_cut() {
            return None;
        }
        let id = self.sampler.next_token().await;
        // A badly trained model may leave out the end token and begin the next message.
        self.has_ended = self.template.is_special(id);
        if self.has_ended {
            return None;
        }
        self.ids.push(id);
        Some(self.text.push(self.template.base(), id))
    }

    /// Returns true if the answer has reached its most tokens before the model ended it.
    pub fn is_cut(&self) -> bool {
        !self.has_ended && self.ids.len() >= self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Tokenizer;

    /// A conversation in bytes: a token per letter.
    fn conversation(context: usize) -> Conversation {
        Conversation::with(ChatTemplate::new(Tokenizer::Byte), context)
    }

    fn text(prompt: &Prompt) -> String {
        Tokenizer::Chat(ChatTemplate::new(Tokenizer::Byte).into()).decode(&prompt.ids)
    }

    fn answer(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn the_oldest_turns_go_first_and_whole() {
        // A turn is `<|user|>q1<|end|><|assistant|>a1<|end|>`: 8 tokens.
        let mut conversation = conversation(34);
        conversation.set_system("sys").unwrap();
        for turn in 1..=2 {
            let prompt = conversation.ask(&format!("q{turn}"), 4).unwrap();
            assert_eq!((prompt.forgotten, prompt.room), (0, 4));
            conversation.record(&answer(&format!("a{turn}")));
        }
        let third = conversation.ask("q3", 4).unwrap();
        assert_eq!(
            text(&third),
            "<|endoftext|><|system|>sys<|end|><|user|>q1<|end|><|assistant|>a1<|end|><|user|>q2<|end|>\
             <|assistant|>a2<|end|><|user|>q3<|end|><|assistant|>"
        );
        // The next one wants half of the context for its answer.
        assert_eq!((third.ids.len(), third.room, third.forgotten), (27, 4, 0));
        conversation.record(&answer("a3"));
        let fourth = conversation.ask("q4", 100).unwrap();
        assert_eq!(
            text(&fourth),
            "<|endoftext|><|system|>sys<|end|><|user|>q4<|end|><|assistant|>"
        );
        assert_eq!((fourth.room, fourth.forgotten), (23, 6));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut conversation = conversation(16);
        let error = conversation.ask(&"x".repeat(12), 5).unwrap_err();
        let said = "the user message has 12 tokens, but the model's context has room for 11";
        assert_eq!(error.to_string(), said);
        let longest = conversation.ask(&"x".repeat(11), 5).unwrap();
        assert_eq!((longest.ids.len(), longest.room), (15, 1));
        conversation.record(&[]);
        assert!(conversation.turns.is_empty(), "a message without an answer stays");

        let error = conversation.set_system(&"x".repeat(9)).unwrap_err();
        let said = "the system message has 9 tokens, but the model's context has room for 8";
        assert_eq!(error.to_string(), said);
        conversation.set_system(&"x".repeat(8)).unwrap();
        assert_eq!(conversation.ask("y", 5).unwrap().room, 1);
        assert!(conversation.ask("yy", 5).is_err());
        conversation.set_system("").unwrap();
        conversation.clear();
        assert_eq!(conversation.ask("yy", 5).unwrap().room, 5);
    }

    /// Contexts that have no room for anything.
    #[test]
    fn tiny_contexts_are_errors() {
        for context in 0..7 {
            let mut conversation = conversation(context);
            assert!(conversation.ask("xy", 1).is_err(), "{context}");
            assert!(conversation.set_system("x").is_err(), "{context}");
        }
        assert_eq!(conversation(7).ask("xy", 0).unwrap().room, 0);
    }

    #[test]
    fn messages_become_turns() {
        let mut conversation = conversation(64);
        let message = |role, text: &str| Message::new(role, text);
        let (system, user, assistant) = (Role::System, Role::User, Role::Assistant);
        let messages = [
            message(system, "s"),
            message(assistant, "hi"),
            message(user, "q"),
            message(assistant, "a"),
            message(user, "r"),
        ];
        assert_eq!(conversation.load(&messages).unwrap(), "r");
        let prompt = conversation.ask("r", 8).unwrap();
        assert_eq!(
            text(&prompt),
            "<|endoftext|><|system|>s<|end|><|assistant|>hi<|end|><|user|>q<|end|><|assistant|>a<|end|>\
             <|user|>r<|end|><|assistant|>"
        );
        assert_eq!(conversation.turns.len(), 3);
        for bad in [&messages[..0], &messages[..1], &messages[..4]] {
            assert!(matches!(conversation.load(bad), Err(ChatError::Order)));
        }
        let late = [message(user, "q"), message(system, "s"), message(user, "r")];
        assert!(matches!(conversation.load(&late), Err(ChatError::Order)));
        // A new conversation has nothing of the former.
        conversation.load(&messages[4..]).unwrap();
        let prompt = conversation.ask("r", 8).unwrap();
        assert_eq!(text(&prompt), "<|endoftext|><|user|>r<|end|><|assistant|>");
    }
}
