//! The tokenizers of text, without the tokens of conversations.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use super::bpe::Bpe;
use super::pieces::pieces;
use super::special_names::SpecialNames;
use super::spelling::END_OF_TEXT;
use super::tokenizer_json::{byte_ids, byte_level_file, tokenizer_file};
use super::{CharVocab, DataError, TokenizerKind, gpt2};
use crate::config::GPT2_VOCABULARY;

const BYTE_END_OF_TEXT: u32 = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextTokenizer {
    Gpt2,
    /// A token per character. As in nanoGPT's character data, no token ends a document.
    Char(CharVocab),
    /// A token per byte: 257 tokens. The last one ends a document.
    Byte,
    Bpe(Arc<Bpe>),
}

impl TextTokenizer {
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    pub(super) fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        match self {
            Self::Gpt2 => pieces(text).try_for_each(|piece| gpt2::encode_into(piece, ids)),
            Self::Char(vocab) => vocab.encode_into(text, ids),
            Self::Byte => {
                ids.extend(text.bytes().map(u32::from));
                Ok(())
            }
            Self::Bpe(bpe) => pieces(text).try_for_each(|piece| bpe.encode_into(piece, ids)),
        }
    }

    /// Decodes `ids`, see [`Tokenizer::decode`](super::Tokenizer::decode).
    pub fn decode(&self, ids: &[u32]) -> String {
        decoded(ids, |id| self.bytes(id))
    }

    /// Returns the bytes of a token; `None` for an id outside the vocabulary. Tokens that are not text
    /// have the bytes of their names.
    pub(super) fn bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        Some(match self {
            Self::Gpt2 => gpt2::bytes(id)?.into(),
            Self::Char(vocab) => vocab.chars.get(id as usize)?.to_string().into_bytes().into(),
            Self::Byte if id == BYTE_END_OF_TEXT => END_OF_TEXT.as_bytes().into(),
            Self::Byte => vec![u8::try_from(id).ok()?].into(),
            Self::Bpe(bpe) => bpe.bytes(id)?.into(),
        })
    }

    pub fn vocab_size(&self) -> u32 {
        match self {
            Self::Gpt2 => GPT2_VOCABULARY,
            Self::Char(vocab) => vocab.len(),
            Self::Byte => BYTE_END_OF_TEXT + 1,
            Self::Bpe(bpe) => bpe.vocab_size(),
        }
    }

    /// Returns the token that ends a document, and its name.
    pub(super) fn end(&self) -> Option<(u32, &str)> {
        match self {
            Self::Gpt2 => Some((gpt2::END, END_OF_TEXT)),
            Self::Char(_) => None,
            Self::Byte => Some((BYTE_END_OF_TEXT, END_OF_TEXT)),
            Self::Bpe(bpe) => bpe.end.as_ref().map(|(id, name)| (*id, name.as_str())),
        }
    }

    /// Returns the names of special tokens of a model folder; `None` for tokenizers without.
    pub(super) fn names(&self) -> Option<&SpecialNames> {
        if let Self::Bpe(bpe) = self {
            Some(&bpe.names).filter(|names| !names.is_empty())
        } else {
            None
        }
    }

    /// Takes the names of special tokens from the folder of a tokenizer that was just read.
    pub(super) fn with_names(self, names: SpecialNames, has_template: bool) -> Self {
        let Self::Bpe(bpe) = self else { return self };
        match Arc::try_unwrap(bpe) {
            Ok(bpe) => Self::Bpe(bpe.with_names(names, has_template).into()),
            Err(shared) => Self::Bpe(shared),
        }
    }

    /// Returns the token of a role, like `pad_token`, if a model folder names one.
    pub(super) fn named(&self, role: &str) -> Option<u32> {
        if let Self::Bpe(bpe) = self { bpe.named(role) } else { None }
    }

    /// Returns the tokens that text never becomes, with their names.
    pub(super) fn specials(&self) -> Vec<(u32, String)> {
        match self {
            Self::Bpe(bpe) => bpe.specials(),
            _ => self.end().map(|(id, name)| (id, name.to_owned())).into_iter().collect(),
        }
    }

    /// Returns true if text has the same ids in both.
    pub(super) fn has_text_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bpe(a), Self::Bpe(b)) => a.has_text_of(b),
            // Models that were trained on from GPT-2 often have a few tokens more.
            (Self::Gpt2, Self::Bpe(bpe)) | (Self::Bpe(bpe), Self::Gpt2) => gpt2::has_text_of(bpe),
            (a, b) => a == b,
        }
    }

    pub fn kind(&self) -> TokenizerKind {
        match self {
            Self::Gpt2 => TokenizerKind::Gpt2,
            Self::Char(_) => TokenizerKind::Char,
            Self::Byte => TokenizerKind::Byte,
            Self::Bpe(_) => TokenizerKind::Bpe,
        }
    }

    /// Returns the text of its `tokenizer.json`.
    pub(super) fn json_file(&self) -> String {
        match self {
            Self::Gpt2 => {
                let (ids, merges) = gpt2::pairs();
                byte_level_file(ids, &json!(merges), true)
            }
            // Byte pairs start from characters: without a pre-tokenizer the whole text is one word, and
            // without merges its tokens are its characters. Without a decoder, spaces join tokens.
            Self::Char(vocab) => {
                let ids = vocab.chars.iter().zip(0_u32..).map(|(c, id)| (c.to_string(), json!(id)));
                let fuse = json!({ "type": "Fuse" });
                tokenizer_file(ids.collect(), &json!([]), &[], &Value::Null, &Value::Null, &fuse)
            }
            Self::Byte => byte_level_file(byte_ids(), &json!([]), false),
            Self::Bpe(bpe) => bpe.file.clone(),
        }
    }

    /// Reads a `tokenizer.json`, given as text and parsed. The error is a clause that says what is wrong or not
    /// supported.
    pub(super) fn parse(json: &Value, file: &str) -> Result<Self, String> {
        if let Some(simple) = Self::without_merges(json) {
            return Ok(simple);
        }
        let bpe = Bpe::parse(file)?;
        Ok(if gpt2::is_gpt2(&bpe) { Self::Gpt2 } else { Self::Bpe(bpe.into()) })
    }

    /// Returns the tokenizer of a file without merges, if it is one of characters or bytes.
    fn without_merges(file: &Value) -> Option<Self> {
        let model = &file["model"];
        let merges = model["merges"].as_array().map_or(0, Vec::len);
        if model["type"] != "BPE" || merges > 0 || !file["normalizer"].is_null() {
            return None;
        }
        let ids = model["vocab"].as_object()?;
        let added = file["added_tokens"].as_array().map_or(0, Vec::len);
        let mut bytes = byte_ids();
        bytes.insert(END_OF_TEXT.to_owned(), json!(BYTE_END_OF_TEXT));
        if *ids == bytes && file["decoder"]["type"] == "ByteLevel" && added < 2 {
            return Some(Self::Byte);
        }
        let pair = |(token, id): (&String, &Value)| Some((id.as_i64()?, token.parse().ok()?));
        let vocab = CharVocab::of_ids(ids.iter().map(pair).collect::<Option<_>>()?);
        vocab.filter(|_| file["pre_tokenizer"].is_null() && added == 0).map(Self::Char)
    }
}

/// Returns the text of the bytes that each id stands for.
pub(super) fn decoded<'a>(ids: &[u32], bytes: impl Fn(u32) -> Option<Cow<'a, [u8]>>) -> String {
    let mut text = Vec::with_capacity(ids.len());
    for &id in ids {
        // A model may have more rows than the vocabulary, often 50,304.
        text.extend_from_slice(&bytes(id).unwrap_or("\u{fffd}".as_bytes().into()));
    }
    String::from_utf8_lossy(&text).into_owned()
}
