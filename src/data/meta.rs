//! `meta.json`, the description of a data folder.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DataError, Tokenizer};
use crate::disk;

/// The type of a token in a file, with its width in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenDtype {
    /// Two bytes, little-endian, as in nanoGPT and llm.c.
    U16 = 2,
    /// Four bytes, little-endian, for vocabularies above 65,536 tokens.
    U32 = 4,
}

impl TokenDtype {
    /// Returns the narrowest type for the ids of a vocabulary.
    pub(super) fn for_vocab(vocab_size: u32) -> Self {
        if vocab_size <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    pub fn width(self) -> u64 {
        self as u64
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationCounts {
    pub train: u64,
    pub val: u64,
    pub longest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub version: u32,
    pub tokenizer: Tokenizer,
    pub vocab_size: u32,
    pub dtype: TokenDtype,
    /// Documents in both splits.
    pub documents: u64,
    /// The documents are conversations: only what the assistant says counts in the loss. `None` for
    /// text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversations: Option<ConversationCounts>,
    pub train_tokens: u64,
    pub val_tokens: u64,
    /// Names of the input files, without their folders.
    pub sources: Vec<String>,
    /// BLAKE3 hash of `train.bin`, in hexadecimal.
    pub train_blake3: String,
    pub val_blake3: String,
}

impl Meta {
    /// The version of the format that this program reads and writes.
    pub(super) const VERSION: u32 = 1;

    pub(super) fn load(path: &Path) -> Result<Self, DataError> {
        let bad = |reason: String| DataError::meta(path, reason);
        let damaged = |error: serde_json::Error| DataError::meta(path, error);
        /// Parsed first, to distinguish a newer format from a damaged file.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let text = disk::read_regular(path).map_err(DataError::io("read", path))?;
        let Version { version } = serde_json::from_slice(&text).map_err(damaged)?;
        let known = Self::VERSION;
        if version != known {
            let reason = format!("it has version {version}, but this wgpt reads version {known}");
            let hint = "use a newer wgpt, or prepare the data again with --force";
            return Err(DataError::unusable(path, reason, hint));
        }
        let meta: Self = serde_json::from_slice(&text).map_err(damaged)?;
        let size = meta.vocab_size;
        let tokens = meta.tokenizer.vocab_size();
        if size != tokens {
            return Err(bad(format!("vocab_size is {size}, but its tokenizer has {tokens}")));
        }
        if meta.conversations.is_some() && meta.tokenizer.chat().is_none() {
            return Err(bad("it has conversations, but no chat template".to_owned()));
        }
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{META_JSON, folder};
    use super::*;
    use crate::protocol::Exit;

    #[test]
    fn errors_tell_damage_from_other_versions() {
        let text = META_JSON;
        let load = |text: &[u8]| {
            let folder = folder(&[("meta.json", text)]);
            Meta::load(&folder.path().join("meta.json"))
        };
        let meta = load(text.as_bytes()).unwrap();
        assert_eq!((meta.vocab_size, meta.dtype), (257, TokenDtype::for_vocab(257)));
        assert_eq!(serde_json::to_string(&meta).unwrap(), text);
        let conversations = r#""conversations":{"train":1,"val":1,"longest":3},"train_tokens""#;
        for (from, to, expected) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("257", "256", "vocab_size is 256, but its tokenizer has 257"),
            ("u16", "u8", "u8"),
            ("}", "", "EOF"),
            ("\"train_tokens\"", conversations, "but no chat template"),
        ] {
            let message = load(text.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("meta.json"), "{message}");
        }
        let error = load(&[b"\xff\xfe", text.as_bytes()].concat()).unwrap_err();
        assert_eq!(error.exit, Exit::BadData, "{error}");
    }

    #[test]
    fn the_narrowest_width_is_chosen() {
        assert_eq!([65_536, 65_537].map(TokenDtype::for_vocab), [TokenDtype::U16, TokenDtype::U32]);
    }
}
