//! Tokenizers: text and conversations to token ids and back.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bpe::Bpe;
use super::chat::WrittenTemplate;
use super::special_names::SpecialNames;
use super::spelling::END_OF_TEXT;
use super::text_tokenizer::decoded;
use super::{CharVocab, ChatTemplate, DataError, TextTokenizer};

/// A tokenizer.
///
/// In `meta.json` it is written as `{"kind":"gpt2"}`, `{"kind":"byte"}`,
/// `{"kind":"char","chars":"..."}`, with the characters in the order of their ids,
/// `{"kind":"bpe","file":"..."}`, with the text of a `tokenizer.json`, or
/// `{"kind":"chat","base":...}`, with the tokenizer of the text of conversations, and with the `template`
/// of a model folder if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "WrittenTokenizer", try_from = "WrittenTokenizer")]
pub enum Tokenizer {
    Text(TextTokenizer),
    /// A tokenizer of text with the tokens of conversations.
    Chat(Arc<ChatTemplate>),
}

impl From<TextTokenizer> for Tokenizer {
    fn from(base: TextTokenizer) -> Self {
        Self::Text(base)
    }
}

impl From<ChatTemplate> for Tokenizer {
    fn from(template: ChatTemplate) -> Self {
        Self::Chat(template.into())
    }
}

impl Tokenizer {
    pub const GPT2: Self = Self::Text(TextTokenizer::Gpt2);
    pub const BYTE: Self = Self::Text(TextTokenizer::Byte);

    /// Adds the tokens of conversations, unless it has them.
    pub(super) fn with_chat(self) -> Self {
        match self {
            Self::Text(base) => ChatTemplate::new(base).into(),
            chat => chat,
        }
    }

    /// Encodes `text`. A literal `<|endoftext|>` is ordinary text here, see
    /// [`Tokenizer::encode_prompt`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.base().encode(text)
    }

    /// Encodes a prompt. Like [`Tokenizer::encode`], but a literal `<|endoftext|>` becomes the
    /// end-of-text token if the tokenizer has one; alone, it prompts an unconditional sample.
    ///
    /// Begins with the token that the model's own program puts before a text, if it does.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let ids = match self.end_of_text() {
            Some(end) => {
                let parts = text.split(END_OF_TEXT).map(|part| self.encode(part));
                parts.collect::<Result<Vec<_>, _>>()?.join(&end)
            }
            None => self.encode(text)?,
        };
        Ok(if text == END_OF_TEXT { ids } else { self.with_begin(ids) })
    }

    /// Puts the token before the ids of a text that the model's own program puts there, if it does. It comes once,
    /// and not before nothing.
    pub fn with_begin(&self, ids: Vec<u32>) -> Vec<u32> {
        let begin = self.added_begin().filter(|begin| ids.first().is_some_and(|id| id != begin));
        begin.into_iter().chain(ids).collect()
    }

    /// Returns the default prompt of samples: a line break, or the first character of a vocabulary
    /// without line breaks.
    pub fn default_prompt(&self) -> String {
        if self.encode("\n").is_ok() { "\n".into() } else { self.decode(&[0]) }
    }

    /// Decodes `ids`. Ids outside the vocabulary and invalid UTF-8, like the first byte of a character
    /// whose second byte is not sampled yet, become U+FFFD. Appending ids never changes the text before a
    /// trailing U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        decoded(ids, |id| self.bytes(id))
    }

    /// Returns the bytes of a token, see [`TextTokenizer::bytes`].
    fn bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        match self.specials().find(|(special, _)| *special == id) {
            Some((_, name)) => Some(name.as_bytes().into()),
            None => self.base().bytes(id),
        }
    }

    /// Returns the tokens of conversations, none for a tokenizer of text.
    fn specials(&self) -> impl Iterator<Item = (u32, &str)> {
        self.chat().into_iter().flat_map(ChatTemplate::specials)
    }

    pub fn vocab_size(&self) -> u32 {
        match self {
            Self::Text(base) => base.vocab_size(),
            Self::Chat(template) => template.vocab_size,
        }
    }

    /// Returns the rows of an embedding that text and conversations need. A vocabulary may have more tokens, like
    /// one for padding, that a model was never trained with.
    pub fn rows(&self) -> usize {
        let of_chats = self.chat().map_or(0, ChatTemplate::rows) as usize;
        self.text_rows().max(of_chats)
    }

    /// Returns the rows of an embedding that text needs, with the end of a document.
    fn text_rows(&self) -> usize {
        let of_text = match self.base() {
            TextTokenizer::Bpe(bpe) => bpe.text_ids().max().map_or(0, |id| id + 1),
            base => base.vocab_size(),
        };
        let ends = [self.end_of_text(), self.added_begin()].into_iter().flatten();
        let of_ends = ends.max().map_or(0, |id| id + 1);
        of_text.max(of_ends) as usize
    }

    /// Checks that a model with so many rows of embeddings has one for each token that text and conversations can
    /// become. A model may have fewer rows than its tokenizer has tokens, and a chat template may still write one of
    /// the others: see [`DataError::token_without_row`].
    pub fn check_rows(&self, rows: usize) -> Result<(), DataError> {
        Self::check_need(self.rows(), rows)
    }

    /// The same for text alone: a model without the tokens of conversations can still continue texts.
    pub fn check_text_rows(&self, rows: usize) -> Result<(), DataError> {
        Self::check_need(self.text_rows(), rows)
    }

    fn check_need(need: usize, rows: usize) -> Result<(), DataError> {
        if need <= rows {
            return Ok(());
        }
        let problem =
            format!("the tokenizer needs a model with {need} tokens, but the model has {rows}");
        Err(DataError::usage(problem, "use the tokenizer that the model was trained with"))
    }

    /// Returns the token that ends a document, if the tokenizer has one.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end().map(|(id, _)| id)
    }

    /// Returns the token that ends a document, and its name.
    pub(super) fn end(&self) -> Option<(u32, &str)> {
        match self {
            // In wgpt's template it begins each conversation.
            Self::Chat(template) if !template.is_of_folder() => template.specials().next(),
            _ => self.base().end(),
        }
    }

    /// Returns the token that begins a text in the files of a model: its `bos_token`, else that of the end.
    pub fn begin(&self) -> Option<u32> {
        let named = self.chat().and_then(|template| template.named("bos_token"));
        named.or(self.base().named("bos_token")).or(self.end_of_text())
    }

    /// Returns the token of a role, like `pad_token`, if a model folder names one.
    pub fn named(&self, role: &str) -> Option<u32> {
        self.chat().and_then(|template| template.named(role)).or(self.base().named(role))
    }

    /// Returns the token that begins each text and prompt, for models that were trained with one.
    pub fn added_begin(&self) -> Option<u32> {
        let adds = self.base().names().is_some_and(|names| names.adds_begin);
        self.begin().filter(|_| adds)
    }

    /// Returns the tokens at which programs stop to generate: [`stop`](Self::stop) and the folder's own.
    pub fn stops(&self) -> Vec<u32> {
        let own = self.base().names().map_or(&[][..], |names| &names.stops);
        let missing = self.stop().filter(|stop| !own.contains(stop));
        missing.into_iter().chain(own.iter().copied()).collect()
    }

    /// Returns the keys and values by which the files of a model with so many rows of embeddings name the ids of its
    /// special tokens.
    pub fn special_ids(tokenizer: Option<&Self>, rows: usize) -> Vec<(&'static str, Value)> {
        let has_row = |id: &u32| (*id as usize) < rows;
        let stops: Vec<u32> =
            tokenizer.map(Self::stops).unwrap_or_default().into_iter().filter(has_row).collect();
        let eos = if let [stop] = stops[..] { json!(stop) } else { json!(stops) };
        let eos = if stops.is_empty() { Value::Null } else { eos };
        let padding = tokenizer.and_then(|tokenizer| tokenizer.named("pad_token")).filter(has_row);
        let padding = padding.map(|id| ("pad_token_id", json!(id)));
        let begin = tokenizer.and_then(Self::begin).filter(has_row);
        [("bos_token_id", json!(begin)), ("eos_token_id", eos)].into_iter().chain(padding).collect()
    }

    /// Returns the token at which a model stops, if the tokenizer has one: the end of a message in a
    /// conversation, else of a document.
    pub fn stop(&self) -> Option<u32> {
        self.chat().map(|template| template.end).or(self.end_of_text())
    }

    /// Returns the number of bytes of text that each token stands for, by id. The end of a document
    /// is no text.
    pub fn byte_lengths(&self) -> Vec<u32> {
        let is_text = |id: &u32| match self {
            Self::Chat(template) => !template.is_special(*id),
            Self::Text(_) => ![self.end_of_text(), self.added_begin()].contains(&Some(*id)),
        };
        let bytes = |id| Some(id).filter(is_text).and_then(|id| self.bytes(id));
        (0..self.vocab_size()).map(|id| bytes(id).map_or(0, |bytes| bytes.len() as u32)).collect()
    }

    pub fn chat(&self) -> Option<&ChatTemplate> {
        match self {
            Self::Chat(template) => Some(template),
            Self::Text(_) => None,
        }
    }

    /// Returns true if text has the same ids in both, and conversations too if both have their tokens.
    pub fn has_text_of(&self, other: &Self) -> bool {
        let is_text = self.chat().is_none() || other.chat().is_none();
        (is_text || self.specials().eq(other.specials())) && self.base().has_text_of(other.base())
    }

    /// Returns the tokenizer of text.
    pub fn base(&self) -> &TextTokenizer {
        match self {
            Self::Text(base) => base,
            Self::Chat(template) => &template.base,
        }
    }
}

/// A tokenizer as written in `meta.json`.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum WrittenTokenizer {
    Gpt2,
    Char {
        chars: String,
    },
    Byte,
    Bpe {
        file: String,
        #[serde(default, skip_serializing_if = "SpecialNames::is_empty")]
        names: SpecialNames,
    },
    Chat {
        base: Box<WrittenTokenizer>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template: Option<WrittenTemplate>,
    },
}

impl From<&TextTokenizer> for WrittenTokenizer {
    fn from(base: &TextTokenizer) -> Self {
        match base {
            TextTokenizer::Gpt2 => Self::Gpt2,
            TextTokenizer::Char(vocab) => Self::Char { chars: vocab.chars.iter().collect() },
            TextTokenizer::Byte => Self::Byte,
            TextTokenizer::Bpe(bpe) => {
                Self::Bpe { file: bpe.file.clone(), names: bpe.names.clone() }
            }
        }
    }
}

impl From<Tokenizer> for WrittenTokenizer {
    fn from(tokenizer: Tokenizer) -> Self {
        let base = tokenizer.base().into();
        match tokenizer.chat() {
            Some(chat) => Self::Chat { base: Box::new(base), template: chat.written().cloned() },
            None => base,
        }
    }
}

impl TryFrom<WrittenTokenizer> for Tokenizer {
    type Error = DataError;

    fn try_from(written: WrittenTokenizer) -> Result<Self, DataError> {
        let base = match written {
            WrittenTokenizer::Gpt2 => TextTokenizer::Gpt2,
            WrittenTokenizer::Char { chars } => TextTokenizer::Char(CharVocab::new(chars.chars())?),
            WrittenTokenizer::Byte => TextTokenizer::Byte,
            WrittenTokenizer::Bpe { file, names } => {
                let bpe = Bpe::parse(&file).map_err(DataError::vocabulary)?;
                TextTokenizer::Bpe(bpe.with_names(names, false).into())
            }
            WrittenTokenizer::Chat { base, template } => {
                return match (Self::try_from(*base)?, template) {
                    (Self::Text(base), Some(template)) => ChatTemplate::of_folder(base, template)
                        .map(Self::from)
                        .map_err(DataError::vocabulary),
                    (base, _) => Ok(base.with_chat()),
                };
            }
        };
        Ok(Self::Text(base))
    }
}

#[cfg(test)]
mod tests;
