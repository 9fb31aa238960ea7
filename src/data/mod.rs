//! Text in, windows of tokens out.
//!
//! ```text
//! source    .txt .jsonl .parquet (.gz .zst) -> documents, streamed
//! pieces    a document -> pieces that can be tokenised one by one
//! tokenizer pieces -> token ids: GPT-2's byte pairs, characters or bytes
//! prepare   all of the above -> train.bin, val.bin, meta.json, in bounded memory
//! tokens    token files -> random access to one split
//! dataset   a folder, or the built-in corpus -> train and val splits
//! windows   (seed, step, sequence) -> where a training window starts
//! stories   the built-in corpus, whose entropy is known exactly
//! ```
//!
//! Nothing here knows a tensor, a device or a front end. Progress goes out
//! through a callback, failures as [`DataError`].

mod dataset;
mod encode;
mod error;
mod grammar;
mod hugging_face;
mod meta;
mod output;
mod pieces;
mod prepare;
mod source;
pub mod stories;
mod tokenizer;
mod tokens;
pub mod windows;

pub use dataset::Dataset;
pub use error::DataError;
pub use meta::{Dtype, Meta};
pub use prepare::{Phase, PrepareOptions, PrepareProgress, prepare};
pub use tokenizer::{CharVocab, Tokenizer, TokenizerKind};
pub use tokens::Split;
