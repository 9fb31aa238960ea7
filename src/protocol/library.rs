//! Data sets, models and storage, as lists show them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::words;
use crate::plan::Architecture;

words! {
    #[derive(Default)]
    pub enum TokenizerKind {
        /// GPT-2's 50,257 byte pairs.
        #[default]
        Gpt2 = "gpt2",
        /// A token per character; the vocabulary is the set of characters in the text.
        Char = "char",
        Byte = "byte",
        Bpe = "bpe",
    }
}

/// The size of a data set, and its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DataInfo {
    pub vocab_size: u32,
    pub train_tokens: u64,
    pub val_tokens: u64,
    /// The kind of the tokenizer, if it is known.
    pub tokenizer: Option<TokenizerKind>,
    /// The beginning of the training split; empty without a tokenizer.
    pub excerpt: String,
    /// The bits per byte of the validation split under a Markov model, where they were computed.
    pub markov_bits: Option<f64>,
}

/// A data set in the browser's storage: `data/NAME` for `--data`, and its display name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredData {
    pub spec: String,
    pub name: String,
}

/// An imported model in the browser's storage, `models/NAME`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredModel {
    pub path: PathBuf,
    pub name: String,
    /// Its shapes. A run that begins with it needs the same.
    pub architecture: Architecture,
    /// True if its tokenizer is known, so that it can generate text.
    pub has_tokenizer: bool,
}

/// The space that the browser's storage uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StorageUsage {
    /// The most that it may use; 0 where nothing is stored.
    pub quota: u64,
    /// The part in use.
    pub used: u64,
    /// True if the browser asks before it clears the storage.
    pub persisted: bool,
}
