//! `meta.json`, the description of a data folder.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DataError, Tokenizer};
use crate::disk;

/// The supported version of `meta.json`.
const VERSION: u32 = 1;

/// The type of a token in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Two bytes, little-endian, as in nanoGPT and llm.c.
    U16,
    /// Four bytes, little-endian, for vocabularies above 65,536 tokens.
    U32,
}

impl Dtype {
    /// Returns the narrowest type for the ids of a vocabulary.
    pub(super) fn for_vocab(vocab_size: u32) -> Self {
        if vocab_size <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    /// Returns the bytes per token.
    pub fn width(self) -> u64 {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

/// The conversations of a data folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationCounts {
    /// Conversations in `train.bin`.
    pub train: u64,
    /// Conversations in `val.bin`.
    pub val: u64,
    /// Tokens of the longest.
    pub longest: u64,
}

/// The content of `meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of the format.
    pub version: u32,
    /// The tokenizer of the data.
    pub tokenizer: Tokenizer,
    /// Number of tokens in the vocabulary.
    pub vocab_size: u32,
    /// The type of a token in the files.
    pub dtype: Dtype,
    /// Documents in both splits.
    pub documents: u64,
    /// The documents are conversations: only what the assistant says counts in the loss. `None` for
    /// text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversations: Option<ConversationCounts>,
    /// Tokens in `train.bin`.
    pub train_tokens: u64,
    /// Tokens in `val.bin`.
    pub val_tokens: u64,
    /// Names of the input files, without their folders.
    pub sources: Vec<String>,
    /// BLAKE3 hash of `train.bin`, in hexadecimal.
    pub train_blake3: String,
    /// BLAKE3 hash of `val.bin`, in hexadecimal.
    pub val_blake3: String,
}

impl Meta {
    /// The version of a new `meta.json`.
    pub(super) const VERSION: u32 = VERSION;

    /// Reads and validates a `meta.json`.
    pub(super) fn load(path: &Path) -> Result<Self, DataError> {
        let bad = |reason: String| DataError::BadMeta { path: path.to_owned(), reason };
        /// Parsed first, to distinguish a newer format from a damaged file.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let text = disk::read(path).map_err(DataError::io("read", path))?;
        let Version { version } =
            serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        if version != VERSION {
            return Err(bad(format!(
                "it has version {version}, but this wgpt reads version {VERSION}"
            )));
        }
        let meta: Self = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        if meta.vocab_size != meta.tokenizer.vocab_size() {
            return Err(bad(format!(
                "vocab_size is {}, but its tokenizer has {}",
                meta.vocab_size,
                meta.tokenizer.vocab_size()
            )));
        }
        if meta.conversations.is_some() && meta.tokenizer.chat().is_none() {
            return Err(bad("it has conversations, but a tokenizer for text alone".to_owned()));
        }
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn errors_tell_damage_from_other_versions() {
        let meta = Meta {
            version: VERSION,
            tokenizer: Tokenizer::Byte,
            vocab_size: 257,
            dtype: Dtype::for_vocab(257),
            documents: 2,
            conversations: None,
            train_tokens: 3,
            val_tokens: 4,
            sources: vec!["a.txt".into()],
            train_blake3: "ab".into(),
            val_blake3: "cd".into(),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meta.json");
        let text = serde_json::to_string(&meta).unwrap();
        fs::write(&path, &text).unwrap();
        assert_eq!(Meta::load(&path).unwrap(), meta);
        for (from, to, expected) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("257", "256", "vocab_size is 256, but its tokenizer has 257"),
            ("u16", "u8", "u8"),
            ("}", "", "EOF"),
            (
                "\"train_tokens\"",
                "\"conversations\":{\"train\":1,\"val\":1,\"longest\":3},\"train_tokens\"",
                "a tokenizer for text alone",
            ),
        ] {
            fs::write(&path, text.replace(from, to)).unwrap();
            let message = Meta::load(&path).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("meta.json"), "{message}");
        }
        fs::write(&path, [b"\xff\xfe", text.as_bytes()].concat()).unwrap();
        let error = Meta::load(&path).unwrap_err();
        assert!(matches!(error, DataError::BadMeta { .. }), "{error}");
    }

    #[test]
    fn the_narrowest_width_is_chosen() {
        assert_eq!(Dtype::for_vocab(65_536), Dtype::U16);
        assert_eq!(Dtype::for_vocab(65_537), Dtype::U32);
    }
}
