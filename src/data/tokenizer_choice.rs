//! The choice of a tokenizer for data that is prepared.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::DataError;
use crate::disk;

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
    /// The tokenizer of a `tokenizer.json`, or of a folder with one.
    File(PathBuf),
}

/// The sizes of a vocabulary of byte pairs: the bytes and the end of a document at least. GPT-2 has
/// 50,257; more than a million is a typing error.
const BPE_VOCABULARIES: std::ops::RangeInclusive<u32> = 257..=1 << 20;

/// Below this many bytes, text is so small that characters teach more than words.
const CHARACTERS: u64 = 5 << 20;

/// Below this many bytes, text suits small models, in which GPT-2's embedding would have most of the weights.
const OWN_VOCABULARY: u64 = 256 << 20;

impl TokenizerChoice {
    /// Chooses by the size of the text in bytes. A browser trains no vocabulary.
    pub fn for_text(bytes: u64) -> Self {
        match bytes {
            0..CHARACTERS => Self::Char,
            CHARACTERS..OWN_VOCABULARY if cfg!(not(target_arch = "wasm32")) => Self::Trained(8192),
            _ => Self::Gpt2,
        }
    }
}

/// The argument of `--tokenizer`.
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
