//! The chat template: conversations as tokens, and the tokens that a model learns.
//!
//! A model folder may have its own template, for example ChatML. Other models get wgpt's: a conversation begins
//! with the token that ends a document, so that a model knows that the text before it was another document.
//! Each message is the token of its role, its text, and `<|end|>`:
//!
//! ```text
//! <|endoftext|><|system|>Be brief.<|end|><|user|>Hello!<|end|><|assistant|>Hi.<|end|>
//!                                                                          ~~~~~~~~~~ counted
//! ```
//!
//! Roles are tokens and not words as in ChatML, because a vocabulary of characters may lack the letters of a
//! word. The tokens come after the last token of the vocabulary, for GPT-2 from 50,257 on, which keeps the
//! padded shape of its embedding.
//!
//! In any template, text never becomes a special token, whatever it spells. So the tokens alone show what counts
//! in the loss, and data needs no second file for that: see [`ChatTemplate::counted`].
//!
//! The template of a model folder is rendered as in transformers, and the text is split at its special tokens.
//! To find the answers, the text before an answer must contain a special token, and a longer conversation must
//! begin with the text of a shorter one. An answer is tokenized separately from the text that opens it, because a
//! model has read the opening when it answers. That matters only if an answer begins with white space. If
//! conversations do not begin with a token that they contain only once, the token that ends a document separates
//! them in data. It is not part of a prompt.
//!
//! ```text
//! let template = tokenizer.chat()?;                // None: the model knows no conversations
//! let prompt = template.prompt(&messages)?;        // ends with <|assistant|>
//! // Sample until template.is_special(id), which is template.end unless the model errs.
//! ```

pub(super) mod file;
mod go;
mod jinja;
mod specials;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::spelling::END_OF_TEXT;
use super::{DataError, Message, Role, TextTokenizer};
use crate::text::excerpt;
pub use jinja::Ending;
use jinja::Jinja;
pub(super) use specials::Span;
use specials::{Hidden, Specials};

pub const END_OF_MESSAGE: &str = "<|end|>";

/// A tokenizer with the tokens of conversations.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    /// The tokenizer of text.
    pub base: TextTokenizer,
    /// The tokens that are not text. In wgpt's template: the beginning of a conversation, the roles in the order
    /// of [`Role::ALL`], and the end of a message.
    specials: Vec<(u32, String)>,
    /// The token at the beginning of each conversation in data.
    pub begin: u32,
    /// The tokens before an answer, from the first special one on.
    pub opening: Vec<u32>,
    /// The token at the end of a message, where sampling stops.
    pub end: u32,
    pub vocab_size: u32,
    /// The template of a model folder; `None` for wgpt's.
    folder: Option<FolderTemplate>,
}

#[derive(Clone, Debug)]
struct FolderTemplate {
    jinja: Jinja,
    specials: Specials,
    /// The text of [`ChatTemplate::opening`].
    opening: String,
    /// True if [`ChatTemplate::begin`] only separates conversations in data, and is not part of them.
    is_separated: bool,
    /// The highest id of the special tokens around ordinary messages.
    highest: u32,
}

/// Everything else follows from these two.
impl PartialEq for ChatTemplate {
    fn eq(&self, other: &Self) -> bool {
        self.base == other.base && self.written() == other.written()
    }
}

impl Eq for ChatTemplate {}

/// The template of a model folder, as in `meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenTemplate {
    pub text: String,
    /// Special tokens by the names that templates use, such as `bos_token`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Adds the tokens of conversations after the last token of `base`, or uses its special tokens of the same
    /// names.
    pub fn new(base: TextTokenizer) -> Self {
        let special = |name: &str| match &base {
            TextTokenizer::Bpe(bpe) => bpe.special(name),
            _ => None,
        };
        let begin = base.end().map_or(END_OF_TEXT, |(_, name)| name).to_owned();
        let [system, user, assistant] = Role::ALL.map(|role| special(role.token()));
        let known =
            [base.end().map(|(id, _)| id), system, user, assistant, special(END_OF_MESSAGE)];
        let mut vocab_size = base.vocab_size();
        let ids = known.map(|known| {
            known.unwrap_or_else(|| {
                vocab_size += 1;
                vocab_size - 1
            })
        });
        let names = Role::ALL.map(Role::token).into_iter().chain([END_OF_MESSAGE]);
        let names = std::iter::once(begin).chain(names.map(str::to_owned));
        Self {
            base,
            specials: ids.into_iter().zip(names).collect(),
            begin: ids[0],
            opening: vec![ids[3]],
            end: ids[4],
            vocab_size,
            folder: None,
        }
    }

    /// Creates the template of a model folder, around the tokenizer `base` of its text. The error is a
    /// clause that says why it is not supported.
    pub fn of_folder(base: TextTokenizer, written: WrittenTemplate) -> Result<Self, String> {
        let specials = base.specials();
        let is_used = |name: &str| {
            written.text.contains(name) || written.names.values().any(|token| token == name)
        };
        if let TextTokenizer::Bpe(bpe) = &base
            && let Some(name) = bpe.bound().find(|name| is_used(name))
        {
            return Err(format!("its token {name} removes the spaces around it"));
        }
        let jinja = Jinja::parse(written)?;
        let message = |role| Message::new(role, "Hello");
        let [user, assistant] = [Role::User, Role::Assistant].map(message);
        let turns = [user.clone(), assistant.clone(), user, assistant];
        let closed = jinja.render(&turns[..1], Ending::Nothing)?;
        let open = jinja.render(&turns[..1], Ending::Answer)?;
        let found = Specials::new(specials.clone())?;
        let opening = open
            .strip_prefix(&closed)
            .ok_or("it writes a message differently when an answer follows")?;
        let opening = found.first_in(opening).map(|at| opening[at..].to_owned());
        let opening = opening.ok_or("it opens an answer without a special token, as text could")?;
        let mut spans = Vec::new();
        found.split(&opening, &Hidden::none(&[]), &mut spans)?;
        let opening_ids = encode(&base, &spans).map_err(|error| error.to_string())?;
        let mut folder =
            FolderTemplate { jinja, specials: found, opening, is_separated: false, highest: 0 };
        let (spans, answers) = folder.spans(&turns)?;
        let end = answers.first().and_then(|at| spans[*at..].iter().find_map(|span| span.after));
        let end = end.ok_or("it ends an answer without a special token")?;
        let ids: Vec<u32> = spans.iter().filter_map(|span| span.after).collect();
        let is_once = |id: &u32| ids.iter().filter(|other| *other == id).count() == 1;
        let first = ids.first().filter(|id| spans[0].text.is_empty() && is_once(id));
        folder.is_separated = first.is_none();
        folder.highest = ids.iter().copied().max().unwrap_or(0);
        let begin = first.copied().or(base.end().map(|(id, _)| id).filter(|id| !ids.contains(id)));
        let template = Self {
            begin: begin.ok_or("no token marks where a conversation begins")?,
            opening: opening_ids,
            end,
            vocab_size: base.vocab_size(),
            base,
            specials,
            folder: Some(folder),
        };
        template.spans(&turns)?;
        Ok(template)
    }

    /// Returns the rows of an embedding that the special tokens of ordinary conversations need. A model folder
    /// may have more of them, for tools or for padding.
    pub(super) fn rows(&self) -> u32 {
        let highest = match &self.folder {
            Some(folder) => folder.highest.max(self.begin),
            None => self.specials().map(|(id, _)| id).max().unwrap_or(0),
        };
        highest + 1
    }

    /// Returns the template of a model folder; `None` for wgpt's.
    pub(super) fn written(&self) -> Option<&WrittenTemplate> {
        self.folder.as_ref().map(|folder| &folder.jinja.written)
    }

    pub fn is_of_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Returns true if [`begin`](Self::begin) only separates conversations in data, and is not part of them.
    pub fn is_separated(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.is_separated)
    }

    /// Returns the token that a model folder calls, for example, `bos_token`.
    pub fn named(&self, name: &str) -> Option<u32> {
        let name = self.written()?.names.get(name)?;
        self.specials().find(|(_, special)| special == name).map(|(id, _)| id)
    }

    /// Returns true for a token of conversations, which is not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.iter().any(|(special, _)| *special == id)
    }

    /// Returns the tokens of conversations with their ids.
    pub fn specials(&self) -> impl Iterator<Item = (u32, &str)> {
        self.specials.iter().map(|(id, name)| (*id, name.as_str()))
    }

    pub fn added(&self) -> impl Iterator<Item = (u32, &str)> {
        let first = self.base.vocab_size();
        self.specials().filter(move |(id, _)| *id >= first)
    }

    /// Returns the tokens of a conversation, without the token that separates conversations in data.
    pub fn conversation(&self, messages: &[Message]) -> Result<Vec<u32>, DataError> {
        encode(&self.base, &self.spans(messages).map_err(refused)?)
    }

    /// Returns the tokens of a message in wgpt's template, from its role to its end. A conversation is
    /// [`begin`](Self::begin) and its messages, so a long one can drop the oldest. Returns `None` for the
    /// template of a model folder, where a message depends on the others.
    pub fn message(&self, message: &Message) -> Result<Option<Vec<u32>>, DataError> {
        if self.folder.is_some() {
            Ok(None)
        } else {
            encode(&self.base, &self.own_spans(message)).map(Some)
        }
    }

    /// Returns the tokens of a conversation for the model to continue, up to the opening of its answer.
    pub fn prompt(&self, messages: &[Message], ending: Ending) -> Result<Vec<u32>, DataError> {
        let Some(FolderTemplate { jinja, specials, .. }) = &self.folder else {
            return Ok([self.conversation(messages)?, self.opening.clone()].concat());
        };
        let mut spans = Vec::new();
        let hidden = specials.hide(messages).map_err(refused)?;
        let text = jinja.render(&hidden.messages, ending).map_err(refused)?;
        specials.split(&text, &hidden, &mut spans).map_err(refused)?;
        encode(&self.base, &spans)
    }

    /// Returns the parts of a conversation. The error is a clause that says why the template refuses it.
    pub(super) fn spans<'a>(&self, messages: &'a [Message]) -> Result<Vec<Span<'a>>, String> {
        let Some(folder) = &self.folder else {
            let begin = Span { text: "".into(), after: Some(self.begin) };
            let messages = messages.iter().flat_map(|message| self.own_spans(message));
            return Ok(std::iter::once(begin).chain(messages).collect());
        };
        let (spans, answers) = folder.spans(messages)?;
        let ends = |at: usize| spans[at..].iter().find_map(|span| span.after) == Some(self.end);
        if !answers.into_iter().all(ends) {
            return Err("it does not end every answer with the same token".to_owned());
        }
        let begins = spans.iter().filter(|span| span.after == Some(self.begin)).count();
        if begins != usize::from(!folder.is_separated) {
            return Err("it repeats the token that begins a conversation".to_owned());
        }
        Ok(spans)
    }

    fn own_spans<'a>(&self, message: &'a Message) -> [Span<'a>; 2] {
        let role = self.specials[1 + message.role as usize].0;
        [("", role), (message.content.as_str(), self.end)]
            .map(|(text, after)| Span { text: Cow::Borrowed(text), after: Some(after) })
    }

    /// Returns for each token of whole conversations whether its prediction counts in the loss: the text of the
    /// assistant and its end do.
    pub fn counted(&self, ids: &[u32]) -> Vec<bool> {
        let mut is_open = false;
        let mut counts = |(at, &id): (usize, &u32)| {
            let counts = is_open && (id == self.end || !self.is_special(id));
            is_open &= !self.is_special(id);
            is_open |= ids[..=at].ends_with(&self.opening);
            counts
        };
        ids.iter().enumerate().map(&mut counts).collect()
    }

    /// Returns the text of the last message before an answer that `prompt` opens.
    pub fn question(&self, prompt: &[u32]) -> String {
        let before = &prompt[..prompt.len().saturating_sub(self.opening.len())];
        let texts = before.split(|id| self.is_special(*id)).rev();
        let mut texts = texts.map(|ids| self.base.decode(ids));
        if self.folder.is_none() {
            return texts.find(|text| !text.is_empty()).unwrap_or_default();
        }
        let text = texts.find(|text| !text.trim().is_empty()).unwrap_or_default();
        let role = Role::User.to_string();
        text.strip_prefix(&role).unwrap_or(&text).trim().to_owned()
    }

    /// Returns the template in the language of Hugging Face's `chat_template`.
    pub fn jinja(&self) -> String {
        if let Some(written) = self.written() {
            return written.text.clone();
        }
        let role = |role: Role| format!("message['role'] == '{role}'");
        let [system, user, assistant] = Role::ALL.map(role);
        format!(
            "{{{{ bos_token }}}}{{% for message in messages %}}{{% if {system} or {user} or \
             {assistant} %}}{{{{ '<|' + message['role'] + '|>' + message['content'] + \
             '{END_OF_MESSAGE}' }}}}{{% else %}}{{{{ raise_exception('unknown role ' + \
             message['role']) }}}}{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ \
             '{}' }}}}{{% endif %}}",
            Role::Assistant.token()
        )
    }
}

fn encode(base: &TextTokenizer, spans: &[Span<'_>]) -> Result<Vec<u32>, DataError> {
    let mut ids = Vec::new();
    for Span { text, after } in spans {
        base.encode_into(text, &mut ids)?;
        ids.extend(after);
    }
    Ok(ids)
}

/// Returns the clause that a template refuses a conversation.
pub(super) fn refusal(reason: &str) -> String {
    format!("the chat template refuses it: {}", excerpt(reason))
}

pub(super) fn refused(reason: String) -> DataError {
    let hint = "change the messages, or the chat template of the model's folder";
    DataError::bad(refusal(&reason), hint)
}

impl FolderTemplate {
    /// Returns the parts of a conversation, and the index of the first part of each answer.
    fn spans(&self, messages: &[Message]) -> Result<(Vec<Span<'static>>, Vec<usize>), String> {
        let hidden = self.specials.hide(messages)?;
        let messages = &hidden.messages;
        let whole = self.jinja.render(messages, Ending::Nothing)?;
        let mut spans = Vec::new();
        let mut answers = Vec::new();
        let mut start = 0;
        for (index, _) in messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant) {
            let before = self.jinja.render(&messages[..index], Ending::Answer)?;
            let opens = whole.starts_with(&before) && before.ends_with(&self.opening);
            let between = whole.get(start..before.len()).filter(|_| opens).ok_or_else(|| {
                let number = index + 1;
                format!("its prompt for message {number} differs from the text of the conversation")
            })?;
            self.specials.split(between, &hidden, &mut spans)?;
            answers.push(spans.len());
            start = before.len();
        }
        self.specials.split(&whole[start..], &hidden, &mut spans)?;
        Ok((spans, answers))
    }
}

#[cfg(test)]
mod tests;
