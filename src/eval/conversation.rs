//! Conversations with a model: prompts that fit its context, and answers as they are generated.
//!
//! The terminal, the window and the page talk to a model through this module. A [`Conversation`] has
//! a system prompt and turns, each a user message and its answer. When it no longer fits the context,
//! it forgets its oldest turns. It forgets whole turns, so that the rest still has the form that the
//! model was trained on. The system prompt stays.

use std::collections::VecDeque;
use std::path::Path;

use thiserror::Error;

use crate::data::{ChatTemplate, DataError, Ending, Message, Role, TextStream, Tokenizer};
use crate::model::{Architecture, Gpt, SampleOptions, Sampler};
use crate::ops::OpsMode;
use crate::protocol::Failure;

#[derive(Debug, Error)]
pub enum ChatError {
    #[error("{model}: this model was not trained on conversations")]
    NoTemplate { model: String },
    #[error("{model}: the tokenizer of the model is unknown")]
    NoTokenizer { model: String },
    /// The model lacks tokens of its tokenizer.
    #[error("{0}")]
    Vocabulary(DataError),
    #[error("the message cannot be tokenized: {0}")]
    Text(#[from] DataError),
    /// The message leaves no token for its answer.
    #[error("the {role} message has {tokens} tokens, but the model's context has room for {most}")]
    TooLong { role: Role, tokens: usize, most: usize },
    #[error("a conversation can begin with a system message, and it must end with a user message")]
    Order,
}

impl ChatError {
    pub fn hint(&self) -> &str {
        match self {
            ChatError::Vocabulary(error) => error.hint(),
            ChatError::NoTemplate { .. } => {
                "train it on conversations, as `wgpt train --preset=chat` does, or continue texts with \
                 `wgpt sample`"
            }
            ChatError::NoTokenizer { .. } => {
                "copy its tokenizer.json into its folder; wgpt reads byte-level BPE, as GPT-2, Llama 3 and \
                 Qwen3 have it"
            }
            ChatError::Text(_) => {
                "use only characters that the model was trained on, in an order that its template allows"
            }
            ChatError::TooLong { role: Role::System, .. } => "give a shorter system prompt",
            ChatError::TooLong { .. } => "shorten it, or the system prompt if there is one",
            ChatError::Order => "put the message to answer last",
        }
    }
}

impl From<ChatError> for Failure {
    fn from(error: ChatError) -> Self {
        Self::usage(error.to_string(), error.hint())
    }
}

#[derive(Debug)]
pub struct Conversation {
    template: ChatTemplate,
    context: usize,
    /// The rows of the model's embedding: tokens without one are refused.
    rows: usize,
    /// False if prompts have an empty thought, for models that think before they answer.
    pub thinks: bool,
    system: Option<Utterance>,
    turns: VecDeque<Vec<Utterance>>,
}

/// A message of the conversation, with its tokens in wgpt's template: those of an answer are the ones that
/// the model has drawn. A model folder's template writes the whole conversation anew for each answer.
#[derive(Clone, Debug)]
struct Utterance {
    message: Message,
    ids: Option<Vec<u32>>,
}

/// The tokens that the model continues with an answer.
#[derive(Debug, PartialEq)]
pub struct ChatPrompt {
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
        let model_name = || path.display().to_string();
        let Some(tokenizer) = tokenizer else {
            return Err(ChatError::NoTokenizer { model: model_name() });
        };
        let Some(template) = tokenizer.chat() else {
            return Err(ChatError::NoTemplate { model: model_name() });
        };
        tokenizer.check_rows(model.vocab_size).map_err(ChatError::Vocabulary)?;
        Ok(Self::with(template.clone(), model.block_size, model.vocab_size))
    }

    fn with(template: ChatTemplate, context: usize, rows: usize) -> Self {
        Self { template, context, rows, thinks: true, system: None, turns: VecDeque::new() }
    }

    /// Sets the system prompt. An empty text removes it.
    ///
    /// # Errors
    /// If it leaves no room for a message and its answer, or cannot be tokenized. The conversation
    /// then keeps its previous system prompt.
    pub fn set_system(&mut self, text: &str) -> Result<(), ChatError> {
        self.system = match text {
            "" => None,
            text => {
                let system = self.said(Message::new(Role::System, text))?;
                let user = self.said(Message::new(Role::User, ""))?;
                // Leaves room for a message of one token and an answer of one token.
                self.check(&system, &[&system, &user], 2)?;
                Some(system)
            }
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
            let said = self.said(message.clone())?;
            match self.turns.back_mut().filter(|_| message.role == Role::Assistant) {
                Some(turn) => turn.push(said),
                None => self.turns.push_back(vec![said]),
            }
        }
        Ok(&last.content)
    }

    /// Adds a user message. Returns the prompt for its answer of up to `most` tokens. Forgets old turns
    /// until the answer has room for half of the context, or for what the message leaves of it.
    ///
    /// # Errors
    /// If the message leaves no room for an answer, or cannot be tokenized. It is not added then.
    pub fn ask(&mut self, text: &str, most: usize) -> Result<ChatPrompt, ChatError> {
        let said = self.said(Message::new(Role::User, text))?;
        let alone: Vec<_> = self.system.iter().chain([&said]).collect();
        let left = self.check(&said, &alone, 1)? + 1;
        let reserve = most.min(self.context / 2).min(left);
        self.turns.push_back(vec![said]);
        let mut forgotten = 0;
        loop {
            let all: Vec<_> = self.system.iter().chain(self.turns.iter().flatten()).collect();
            let ids = match self.prompt(&all) {
                Ok(ids) => ids,
                Err(error) => {
                    self.turns.pop_back();
                    return Err(error);
                }
            };
            if ids.len() + reserve <= self.context || self.turns.len() == 1 {
                let room = most.min(self.context.saturating_sub(ids.len()));
                return Ok(ChatPrompt { ids, room, forgotten });
            }
            forgotten += self.turns.pop_front().map_or(0, |turn| turn.len());
        }
    }

    pub fn answer<'a>(
        &'a self,
        prompt: &ChatPrompt,
        model: &'a Gpt,
        options: SampleOptions,
        mode: OpsMode,
    ) -> ChatAnswer<'a> {
        ChatAnswer {
            template: &self.template,
            sampler: Sampler::new(model, &prompt.ids, options, mode)
                .drawing_from(self.template.vocab_size as usize),
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
            let text = self.template.base.decode(answer);
            let ids = [&self.template.opening, answer, &[self.template.end]].concat();
            turn.push(Utterance { message: Message::new(Role::Assistant, text), ids: Some(ids) });
        }
    }

    fn said(&self, message: Message) -> Result<Utterance, ChatError> {
        Ok(Utterance { ids: self.template.message(&message)?, message })
    }

    /// Returns the tokens that the answer to some messages follows.
    fn prompt(&self, said: &[&Utterance]) -> Result<Vec<u32>, ChatError> {
        if !self.template.is_of_folder() {
            let messages = said.iter().flat_map(|said| said.ids.as_deref().unwrap_or_default());
            let begin = std::iter::once(self.template.begin);
            let opening = &self.template.opening;
            return Ok(begin.chain(messages.copied()).chain(opening.iter().copied()).collect());
        }
        let messages: Vec<_> = said.iter().map(|said| said.message.clone()).collect();
        let ending = if self.thinks { Ending::Answer } else { Ending::AnswerWithoutThought };
        let ids = self.template.prompt(&messages, ending)?;
        match ids.iter().find(|id| **id as usize >= self.rows) {
            Some(&id) => Err(ChatError::Vocabulary(DataError::token_without_row(id, self.rows))),
            None => Ok(ids),
        }
    }

    /// Checks that the prompt of `all` messages leaves room for `others` tokens; `said` is the one that was
    /// added. Returns the tokens that are left then.
    fn check(
        &self,
        said: &Utterance,
        all: &[&Utterance],
        others: usize,
    ) -> Result<usize, ChatError> {
        let prompt = self.prompt(all)?.len();
        self.context.checked_sub(prompt + others).ok_or_else(|| {
            let Message { role, content } = &said.message;
            let tokens = self.template.base.encode(content).map_or(0, |ids| ids.len());
            let around = prompt.saturating_sub(tokens) + others;
            ChatError::TooLong { role: *role, tokens, most: self.context.saturating_sub(around) }
        })
    }
}

pub struct ChatAnswer<'a> {
    template: &'a ChatTemplate,
    sampler: Sampler<'a>,
    room: usize,
    pub ids: Vec<u32>,
    text: TextStream,
    has_ended: bool,
}

impl ChatAnswer<'_> {
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
        Some(self.text.push(|ids| self.template.base.decode(ids), id))
    }

    /// Returns true if the answer has reached its most tokens before the model ended it.
    pub fn is_cut(&self) -> bool {
        !self.has_ended && self.ids.len() >= self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::testing::{chat_ml, padded_chat};
    use crate::data::{TextTokenizer, Tokenizer};

    /// A conversation in bytes: a token per letter.
    fn conversation(context: usize) -> Conversation {
        Conversation::with(ChatTemplate::new(TextTokenizer::Byte), context, 261)
    }

    fn text(prompt: &ChatPrompt) -> String {
        Tokenizer::from(ChatTemplate::new(TextTokenizer::Byte)).decode(&prompt.ids)
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

    /// A conversation with a model that thinks, in bytes. Its folder's template leaves out earlier thoughts.
    fn thinking(context: usize) -> Conversation {
        let text = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif \
                    %}{{ '<|im_start|>' + m.role + '\n' + m.content.split('</think>')[-1] + '<|im_end|>' \
                    }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if \
                    enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}{% \
                    endif %}";
        let base = serde_json::to_value(chat_ml()).unwrap();
        let chat = serde_json::json!({"kind": "chat", "base": base, "template": {"text": text}});
        let tokenizer: Tokenizer = serde_json::from_value(chat).unwrap();
        Conversation::with(tokenizer.chat().unwrap().clone(), context, 261)
    }

    #[test]
    fn a_folders_template_writes_the_conversation_anew() {
        let mut conversation = thinking(60);
        let text = |prompt: ChatPrompt| chat_ml().decode(&prompt.ids);
        let first = conversation.ask("q1", 4).unwrap();
        assert_eq!(text(first), "<|im_start|>user\nq1<|im_end|><|im_start|>assistant\n");
        conversation.record(&chat_ml().encode("<think>hm</think>a1").unwrap());
        conversation.thinks = false;
        let second = conversation.ask("q2", 4).unwrap();
        assert_eq!((second.ids.len(), second.room, second.forgotten), (45, 4, 0));
        assert_eq!(
            text(second),
            "<|im_start|>user\nq1<|im_end|><|im_start|>assistant\na1<|im_end|><|im_start|>user\nq2<|im_end|>\
             <|im_start|>assistant\n<think></think>"
        );
        conversation.record(&[]);
        let long = conversation.ask(&"q".repeat(30), 4).unwrap();
        assert_eq!((long.ids.len(), long.room, long.forgotten), (50, 4, 2));
        conversation.clear();
        let error = conversation.ask(&"q".repeat(40), 4).unwrap_err().to_string();
        assert!(
            error.contains("has 40 tokens, but the model's context has room for 39"),
            "{error}"
        );
        let error = conversation.set_system("s").unwrap_err().to_string();
        assert!(error.contains("the chat template refuses it: line 1: no system"), "{error}");
        assert!(conversation.system.is_none() && conversation.turns.is_empty());
    }

    /// Of 262 tokens, the template writes the last one before a system prompt only.
    #[test]
    fn a_token_without_a_row_is_refused_when_it_is_used() {
        let tokenizer = padded_chat();
        let with = |vocab_size| {
            let model = Architecture { vocab_size, block_size: 60, ..Architecture::tiny() };
            Conversation::new(Path::new("m"), Some(&tokenizer), &model)
        };
        let error = with(260).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the tokenizer needs a model with 261 tokens, but the model has 260"
        );
        let mut conversation = with(261).unwrap();
        assert!(conversation.ask("q", 4).is_ok());
        let error = conversation.set_system("s").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the chat template writes token 261, but the model has 261 tokens"
        );
        with(262).unwrap().set_system("s").unwrap();
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
