//! `meta.json`: what a prepared folder says about itself.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DataError, Tokenizer};
use crate::disk;

/// The version of `meta.json` that is written and read.
const VERSION: u32 = 1;

/// How a token is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Two bytes, little-endian, as nanoGPT and llm.c store them.
    U16,
    /// Four bytes, little-endian, for more than 65,536 tokens.
    U32,
}

impl Dtype {
    /// The narrowest that holds every id of a vocabulary.
    pub fn for_vocab(vocab_size: u32) -> Self {
        if vocab_size <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    /// Bytes a token.
    pub fn width(self) -> u64 {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

/// The content of `meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of this format.
    pub version: u32,
    /// What made the tokens, and what turns them back into text.
    pub tokenizer: Tokenizer,
    /// Number of different tokens.
    pub vocab_size: u32,
    /// How a token is stored.
    pub dtype: Dtype,
    /// Documents in both splits together.
    pub documents: u64,
    /// Tokens in `train.bin`.
    pub train_tokens: u64,
    /// Tokens in `val.bin`.
    pub val_tokens: u64,
    /// Names of the files that were read, without their folders.
    pub sources: Vec<String>,
    /// BLAKE3 of `train.bin`, in hexadecimal.
    pub train_blake3: String,
    /// BLAKE3 of `val.bin`, in hexadecimal.
    pub val_blake3: String,
}

impl Meta {
    /// The version to put into a new `meta.json`.
    pub(super) const VERSION: u32 = VERSION;

    /// Reads and checks a `meta.json`.
    pub(super) fn load(path: &Path) -> Result<Self, DataError> {
        let bad = |reason: String| DataError::BadMeta { path: path.to_owned(), reason };
        /// Read first, so that a later format is told from a damaged file.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let text = disk::read_to_string(path).map_err(DataError::io("read", path))?;
        let Version { version } =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        if version != VERSION {
            return Err(bad(format!(
                "it has version {version}, this wgpt reads version {VERSION}"
            )));
        }
        let meta: Self = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        if meta.vocab_size != meta.tokenizer.vocab_size() {
            return Err(bad(format!(
                "vocab_size is {}, its tokenizer has {}",
                meta.vocab_size,
                meta.tokenizer.vocab_size()
            )));
        }
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn damage_and_other_versions_are_told_apart() {
        let meta = Meta {
            version: VERSION,
            tokenizer: Tokenizer::Byte,
            vocab_size: 257,
            dtype: Dtype::for_vocab(257),
            documents: 2,
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
            ("257", "256", "vocab_size is 256, its tokenizer has 257"),
            ("u16", "u8", "u8"),
            ("}", "", "EOF"),
        ] {
            fs::write(&path, text.replace(from, to)).unwrap();
            let message = Meta::load(&path).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("meta.json"), "{message}");
        }
    }

    #[test]
    fn the_narrowest_width_is_chosen() {
        assert_eq!(Dtype::for_vocab(65_536), Dtype::U16);
        assert_eq!(Dtype::for_vocab(65_537), Dtype::U32);
    }
}
