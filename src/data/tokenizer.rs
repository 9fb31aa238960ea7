//! Tokenizers: text to token ids and back.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tiktoken_rs::r50k_base_singleton;

use super::bpe::Bpe;
use super::chat::WrittenTemplate;
use super::error::PREPARE_AGAIN;
use super::pieces::pieces;
use super::{ChatTemplate, DataError, TokenizerKind};
use crate::config::GPT2_VOCABULARY;
use crate::disk;
use crate::text::excerpt;

pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

const BYTE_END_OF_TEXT: u32 = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenizerChoice {
    /// One that suits the size of the text, see [`TokenizerChoice::for_text`].
    #[default]
    Auto,
    Gpt2,
    Char,
    Byte,
    /// Byte pairs that are trained on the text, for a vocabulary of this many tokens.
    Trained(u32),
    /// That of a `tokenizer.json`, or of a folder with one.
    File(PathBuf),
}

/// The sizes of a vocabulary of byte pairs: the bytes and the end of a document at least. GPT-2 has
/// 50,257; more than a million is a typing error.
const BPE_VOCABULARIES: std::ops::RangeInclusive<u32> = BYTE_END_OF_TEXT + 1..=1 << 20;

/// Below this many bytes, a text is small enough that characters teach more than words.
const CHARACTERS: u64 = 5 << 20;

/// Below this many bytes, a text suits small models, in which GPT-2's embedding would have most weights.
const OWN_VOCABULARY: u64 = 256 << 20;

impl TokenizerChoice {
    /// Chooses by the bytes of a text. A browser trains no vocabulary.
    pub fn for_text(bytes: u64) -> Self {
        match bytes {
            0..CHARACTERS => Self::Char,
            CHARACTERS..OWN_VOCABULARY if cfg!(not(target_arch = "wasm32")) => Self::Trained(8192),
            _ => Self::Gpt2,
        }
    }
}

/// The name that `--tokenizer` takes.
impl fmt::Display for TokenizerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Gpt2 => f.write_str("gpt2"),
            Self::Char => f.write_str("char"),
            Self::Byte => f.write_str("byte"),
            Self::Trained(size) => write!(f, "bpe:{size}"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for TokenizerChoice {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        let path = Path::new(name);
        match (name, name.strip_prefix("bpe:")) {
            ("gpt2", _) => Ok(Self::Gpt2),
            ("char", _) => Ok(Self::Char),
            ("byte", _) => Ok(Self::Byte),
            (_, Some(size)) => match size.parse() {
                Ok(size) if BPE_VOCABULARIES.contains(&size) => Ok(Self::Trained(size)),
                _ => {
                    let (least, most) = BPE_VOCABULARIES.into_inner();
                    let rule = "a byte-pair vocabulary has";
                    let problem = format!("{name:?}: {rule} {least} to {most} tokens");
                    Err(DataError::usage(problem, "choose a size, as in bpe:8192"))
                }
            },
            _ if path.components().count() > 1
                || path.extension().is_some_and(|extension| extension == "json")
                || disk::exists(path) =>
            {
                Ok(Self::File(path.to_owned()))
            }
            _ => Err(DataError::usage(
                format!("unknown tokenizer {name:?}"),
                "choose gpt2, char, byte, bpe:8192 for one trained on the text, or the path of a \
                 tokenizer.json",
            )),
        }
    }
}

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
    /// GPT-2's byte pairs: 50,257 tokens, the last of which ends a document. The merge tables are
    /// compiled into the program and decoded at first use.
    Gpt2,
    /// A token per character. As in nanoGPT's character data, no token ends a document.
    Char(CharVocab),
    /// A token per byte: 257 tokens, the last of which ends a document.
    Byte,
    Bpe(Arc<Bpe>),
    /// One of the others, and the tokens of conversations.
    Chat(Arc<ChatTemplate>),
}

impl Tokenizer {
    /// Encodes `text`. A literal `<|endoftext|>` is ordinary text here, see
    /// [`Tokenizer::encode_prompt`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// Encodes a prompt. Like [`Tokenizer::encode`], but a literal `<|endoftext|>` becomes the
    /// end-of-text token if the tokenizer has one; alone, it prompts an unconditional sample.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let Some(end) = self.end_of_text() else { return self.encode(text) };
        let parts = text.split(END_OF_TEXT).map(|part| self.encode(part));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.join(&end))
    }

    /// Returns the default prompt of samples: a line break, or the first character of a vocabulary
    /// without line breaks.
    pub fn default_prompt(&self) -> String {
        if self.encode("\n").is_ok() { "\n".into() } else { self.decode(&[0]) }
    }

    pub(super) fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        match self {
            // Not `encode_ordinary`, which gives the same ids but panics if the regular expression
            // fails.
            Self::Gpt2 => pieces(text).try_for_each(|piece| {
                let tokens = r50k_base_singleton().encode(piece, &HashSet::new());
                ids.extend(tokens.map_err(|error| DataError::tokenize(error.message))?.0);
                Ok(())
            }),
            Self::Char(vocab) => vocab.encode_into(text, ids),
            Self::Byte => {
                ids.extend(text.bytes().map(u32::from));
                Ok(())
            }
            Self::Bpe(bpe) => pieces(text).try_for_each(|piece| bpe.encode_into(piece, ids)),
            Self::Chat(template) => template.base().encode_into(text, ids),
        }
    }

    /// Decodes `ids`. Ids outside the vocabulary and invalid UTF-8, like the first byte of a character
    /// whose second byte is not sampled yet, become U+FFFD. Appending ids never changes the text before a
    /// trailing U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len());
        for &id in ids {
            // A model may have more rows than the vocabulary, often 50,304.
            bytes.extend_from_slice(&self.bytes(id).unwrap_or("\u{fffd}".as_bytes().into()));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the bytes of a token; `None` for an id outside the vocabulary. Tokens that are not text
    /// have the bytes of their names.
    fn bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        Some(match self {
            Self::Gpt2 => r50k_base_singleton().decode_bytes(&[id]).ok()?.into(),
            Self::Char(vocab) => vocab.chars.get(id as usize)?.to_string().into_bytes().into(),
            Self::Byte if id == BYTE_END_OF_TEXT => END_OF_TEXT.as_bytes().into(),
            Self::Byte => vec![u8::try_from(id).ok()?].into(),
            Self::Bpe(bpe) => bpe.bytes(id)?.into(),
            Self::Chat(template) => match template.specials().find(|(at, _)| *at == id) {
                Some((_, name)) => name.as_bytes().into(),
                None => template.base().bytes(id)?,
            },
        })
    }

    pub fn vocab_size(&self) -> u32 {
        match self {
            Self::Gpt2 => GPT2_VOCABULARY,
            Self::Char(vocab) => vocab.len(),
            Self::Byte => BYTE_END_OF_TEXT + 1,
            Self::Bpe(bpe) => bpe.vocab_size(),
            Self::Chat(template) => template.vocab_size(),
        }
    }

    /// Returns the token that ends a document, if the tokenizer has one.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end().map(|(id, _)| id)
    }

    /// Returns the token that ends a document, and its name.
    pub(super) fn end(&self) -> Option<(u32, &str)> {
        match self {
            Self::Gpt2 => Some((GPT2_VOCABULARY - 1, END_OF_TEXT)),
            Self::Char(_) => None,
            Self::Byte => Some((BYTE_END_OF_TEXT, END_OF_TEXT)),
            Self::Bpe(bpe) => bpe.end.as_ref().map(|(id, name)| (*id, name.as_str())),
            // It begins each conversation of wgpt's template.
            Self::Chat(template) if !template.is_of_folder() => template.specials().next(),
            Self::Chat(template) => template.base().end(),
        }
    }

    /// Returns the tokens that text never becomes, with their names.
    pub(super) fn specials(&self) -> Vec<(u32, String)> {
        match self.base() {
            Self::Bpe(bpe) => bpe.specials(),
            base => base.end().map(|(id, name)| (id, name.to_owned())).into_iter().collect(),
        }
    }

    /// Returns the token that ends what a model writes, if the tokenizer has one: a message in a
    /// conversation, else a document.
    pub fn stop(&self) -> Option<u32> {
        self.chat().map(ChatTemplate::end).or(self.end_of_text())
    }

    /// Returns the number of bytes of text that each token stands for, by id. The end of a document
    /// is no text.
    pub fn byte_lengths(&self) -> Vec<u32> {
        let is_text = |id: &u32| match self {
            Self::Chat(template) => !template.is_special(*id),
            _ => Some(*id) != self.end_of_text(),
        };
        let bytes = |id| Some(id).filter(is_text).and_then(|id| self.bytes(id));
        (0..self.vocab_size()).map(|id| bytes(id).map_or(0, |bytes| bytes.len() as u32)).collect()
    }

    pub fn chat(&self) -> Option<&ChatTemplate> {
        match self {
            Self::Chat(template) => Some(template),
            _ => None,
        }
    }

    /// Returns true if every id stands for the same text as in `other`.
    pub fn has_tokens_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bpe(a), Self::Bpe(b)) => a.has_tokens_of(b),
            (Self::Chat(a), Self::Chat(b)) => {
                a.base().has_tokens_of(b.base()) && a.specials().eq(b.specials())
            }
            _ => self == other,
        }
    }

    /// Returns true if text has the same ids in both, and conversations too if both have their tokens.
    pub fn has_text_of(&self, other: &Self) -> bool {
        if let (Self::Chat(a), Self::Chat(b)) = (self, other)
            && !a.specials().eq(b.specials())
        {
            return false;
        }
        match (self.base(), other.base()) {
            (Self::Bpe(a), Self::Bpe(b)) => a.has_text_of(b),
            // Models that were trained on from GPT-2 often have a few tokens more.
            (Self::Gpt2, Self::Bpe(bpe)) | (Self::Bpe(bpe), Self::Gpt2) => bpe.has_text_of_gpt2(),
            (a, b) => a == b,
        }
    }

    /// Returns the tokenizer of text.
    pub fn base(&self) -> &Self {
        match self {
            Self::Chat(template) => template.base(),
            _ => self,
        }
    }

    pub fn kind(&self) -> TokenizerKind {
        match self {
            Self::Gpt2 => TokenizerKind::Gpt2,
            Self::Char(_) => TokenizerKind::Char,
            Self::Byte => TokenizerKind::Byte,
            Self::Bpe(_) => TokenizerKind::Bpe,
            Self::Chat(template) => template.base().kind(),
        }
    }
}

fn invalid_vocabulary(reason: &str) -> DataError {
    DataError::bad(format!("invalid vocabulary: {}", excerpt(reason)), PREPARE_AGAIN)
}

/// The vocabulary of a character tokenizer. The id of a character is its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharVocab {
    pub(super) chars: Vec<char>,
    ids: HashMap<char, u32>,
}

impl CharVocab {
    pub fn new(chars: impl IntoIterator<Item = char>) -> Result<Self, DataError> {
        let mut vocab = Self { chars: Vec::new(), ids: HashMap::new() };
        for (id, character) in (0..).zip(chars) {
            if vocab.ids.insert(character, id).is_some() {
                return Err(invalid_vocabulary(&format!("character {character:?} occurs twice")));
            }
            vocab.chars.push(character);
        }
        if vocab.chars.is_empty() {
            return Err(invalid_vocabulary("it is empty"));
        }
        Ok(vocab)
    }

    /// Creates a vocabulary of the characters with these ids; `None` if the ids are not 0, 1, 2 and so
    /// on, once each.
    pub(super) fn of_ids(mut pairs: Vec<(i64, char)>) -> Option<Self> {
        pairs.sort_unstable();
        let is_complete = (0..).zip(&pairs).all(|(expected, (id, _))| expected == *id);
        Self::new(pairs.into_iter().map(|(_, c)| c)).ok().filter(|_| is_complete)
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.chars.len()).unwrap_or(u32::MAX)
    }

    fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        ids.reserve(text.len());
        for (offset, character) in text.char_indices() {
            let Some(id) = self.ids.get(&character) else {
                let known = self.chars.len();
                return Err(DataError::bad(
                    format!(
                        "character {character:?} at byte {offset} is not one of the {known} \
                         characters in the vocabulary"
                    ),
                    "remove it, or prepare the data again with text that contains it",
                ));
            };
            ids.push(*id);
        }
        Ok(())
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
    },
    Chat {
        base: Box<WrittenTokenizer>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template: Option<WrittenTemplate>,
    },
}

impl From<Tokenizer> for WrittenTokenizer {
    fn from(tokenizer: Tokenizer) -> Self {
        match tokenizer {
            Tokenizer::Gpt2 => Self::Gpt2,
            Tokenizer::Char(vocab) => Self::Char { chars: vocab.chars.into_iter().collect() },
            Tokenizer::Byte => Self::Byte,
            Tokenizer::Bpe(bpe) => Self::Bpe { file: bpe.file.clone() },
            Tokenizer::Chat(chat) => {
                Self::Chat { base: Box::new(chat.base().clone().into()), template: chat.written() }
            }
        }
    }
}

impl TryFrom<WrittenTokenizer> for Tokenizer {
    type Error = DataError;

    fn try_from(spec: WrittenTokenizer) -> Result<Self, DataError> {
        Ok(match spec {
            WrittenTokenizer::Gpt2 => Self::Gpt2,
            WrittenTokenizer::Char { chars } => Self::Char(CharVocab::new(chars.chars())?),
            WrittenTokenizer::Byte => Self::Byte,
            WrittenTokenizer::Bpe { file } => {
                Self::Bpe(Bpe::parse(&file).map_err(|reason| invalid_vocabulary(&reason))?.into())
            }
            WrittenTokenizer::Chat { base, template } => {
                let base = Self::try_from(*base)?;
                let chat = match template {
                    Some(template) => ChatTemplate::of_folder(base, template)
                        .map_err(|reason| invalid_vocabulary(&reason))?,
                    None => ChatTemplate::new(base),
                };
                Self::Chat(chat.into())
            }
        })
    }
}

#[cfg(test)]
mod tests;
