//! What can go wrong with data: each variant says what, where and what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Every failure of the data layer.
///
/// The message is complete as it stands: what happened, in which file and at
/// which place, and what to do next. Cloneable, so that a front end can keep
/// it and show it again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused to read or write.
    #[error("cannot {action} {}: {source}; check that the path exists, that you may use it and that the disk has room", path.display())]
    Io {
        /// The verb, as in "cannot read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's own words.
        #[source]
        source: Arc<io::Error>,
    },

    /// A compressed stream is damaged or cut off.
    #[error("cannot unpack {}: {source}; the file is damaged or incomplete, fetch it again", path.display())]
    Unpack {
        /// The compressed file.
        path: PathBuf,
        /// The decoder's own words.
        #[source]
        source: Arc<io::Error>,
    },

    /// A file whose name does not say how to read it.
    #[error("{}: unknown kind of file; what is read: {accepted}", path.display())]
    UnknownExtension {
        /// The file.
        path: PathBuf,
        /// The endings that are read.
        accepted: &'static str,
    },

    /// The inputs hold no file that can be read.
    #[error("nothing to read in {inputs}; give at least one file or folder with {accepted}")]
    NoInputs {
        /// The inputs as they were given.
        inputs: String,
        /// The endings that are read.
        accepted: &'static str,
    },

    /// The inputs were read and held no text.
    #[error("the input holds no text ({files} file(s) read); give files with text in them")]
    NoText {
        /// How many files were read.
        files: usize,
    },

    /// Bytes that are not UTF-8.
    #[error("{}: not UTF-8 at byte {offset}; convert the file to UTF-8 (it may be UTF-16 or Latin-1)", path.display())]
    InvalidUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first bad byte in the text, after unpacking.
        offset: u64,
    },

    /// A line of a .jsonl file that is not what was expected.
    #[error("{}:{line}: {reason}; correct or remove the line, or name another field with --text-field", path.display())]
    JsonLine {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },

    /// A line so long that it cannot be meant.
    #[error("{}:{line}: the line is longer than {limit} bytes; a .jsonl file has one document a line", path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The limit in bytes.
        limit: u64,
    },

    /// A .parquet file that cannot be read.
    #[error("cannot read {}: {reason}; the file may be damaged or use a compression other than snappy, gzip, lz4 or zstd", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The reader's own words.
        reason: String,
    },

    /// A .parquet file without the column of text.
    #[error("{}: no text column {column:?}; it has {available}; choose one with --text-field", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column that was looked for.
        column: String,
        /// The columns that are there.
        available: String,
    },

    /// A tokenizer that does not exist.
    #[error("unknown tokenizer {name:?}; choose gpt2, char or byte")]
    UnknownTokenizer {
        /// What was asked for.
        name: String,
    },

    /// A character outside a character vocabulary.
    #[error(
        "character {character:?} at byte {offset} is not among the {vocab_size} characters of this vocabulary; leave it out, or prepare the data again with this character in it"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its byte offset in the text that was to be encoded.
        offset: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },

    /// A tokenizer description that makes no sense.
    #[error("bad character vocabulary: {reason}; prepare the data again")]
    BadVocabulary {
        /// What is wrong with it.
        reason: String,
    },

    /// The byte-pair tokenizer gave up on a text.
    #[error("cannot tokenise the text: {reason}; look for binary data in the input")]
    Tokenize {
        /// The tokenizer's own words.
        reason: String,
    },

    /// A fraction that does not split anything.
    #[error("val_fraction is {value}; give a number above 0 and below 1, such as 0.1")]
    BadFraction {
        /// What was given.
        value: f64,
    },

    /// One of the two splits came out empty.
    #[error(
        "the {split} split would be empty ({documents} document(s), {chars} character(s) read); give more text or another val_fraction"
    )]
    EmptySplit {
        /// `train` or `val`.
        split: &'static str,
        /// Documents read.
        documents: u64,
        /// Characters read.
        chars: u64,
    },

    /// The inputs changed between the two passes.
    #[error("the input changed while it was read; run the command again when nothing writes to it")]
    InputChanged,

    /// The output folder already holds data.
    #[error("{} already holds {found}; choose another folder, or give --force to replace it", path.display())]
    AlreadyPrepared {
        /// The output folder.
        path: PathBuf,
        /// The file that is in the way.
        found: &'static str,
    },

    /// A data folder whose preparation did not end.
    #[error("{}: preparing this folder was interrupted; run `wgpt prepare ... -o {} --force` again", path.display(), path.display())]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },

    /// There is no data where it was looked for.
    #[error("no training data in {}: {missing}; make it with `{command}`", path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        missing: String,
        /// The command that makes it.
        command: String,
    },

    /// A built-in corpus that does not exist.
    #[error("no built-in corpus {name:?}; there is builtin:stories")]
    UnknownBuiltin {
        /// What was asked for.
        name: String,
    },

    /// A `meta.json` or `meta.pkl` that cannot be used.
    #[error("cannot use {}: {reason}; prepare the data again", path.display())]
    BadMeta {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A token file of an impossible length.
    #[error("{}: {bytes} bytes are not a whole number of {width}-byte tokens; the file is cut off, copy or prepare it again", path.display())]
    OddLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Bytes a token.
        width: u64,
    },

    /// A token file with more or fewer tokens than announced.
    #[error("{}: {announced} tokens are announced in {announced_by}, the file holds {found}; it is cut off or was replaced, copy or prepare it again", path.display())]
    TokenCount {
        /// The file.
        path: PathBuf,
        /// Tokens announced.
        announced: i64,
        /// Where they are announced.
        announced_by: &'static str,
        /// Tokens in the file.
        found: u64,
    },

    /// A shard with a header that is not GPT-2's.
    #[error("{}: shard header (magic {magic}, version {version}) is not of the GPT-2 format (magic 20240520, version 1); prepare the text with wgpt", path.display())]
    BadShard {
        /// The file.
        path: PathBuf,
        /// The magic number found.
        magic: i32,
        /// The version found.
        version: i32,
    },

    /// A token outside the vocabulary.
    #[error("{}: token {id} at position {position} is outside the vocabulary of {vocab_size}; the file is damaged or was made with another tokenizer", path.display())]
    TokenOutOfRange {
        /// The file.
        path: PathBuf,
        /// Index of the token in that file.
        position: u64,
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        vocab_size: u32,
    },

    /// A split too short for one window.
    #[error(
        "{split} of {name} holds {tokens} tokens, a window of block_size {block_size} needs {needed}; use more text or a smaller block_size"
    )]
    TooShort {
        /// `train` or `val`.
        split: &'static str,
        /// The data set.
        name: String,
        /// Tokens in the split.
        tokens: u64,
        /// The block size asked for.
        block_size: u64,
        /// Tokens that it needs.
        needed: u64,
    },

    /// A window that reaches past the end: a fault in the caller.
    #[error(
        "tokens {start}..{start}+{count} were asked of a split of {len}; report this as a fault of wgpt"
    )]
    OutsideSplit {
        /// First token asked for.
        start: u64,
        /// How many.
        count: usize,
        /// Tokens in the split.
        len: u64,
    },
}

impl DataError {
    /// For `map_err`: "cannot `action` `path`".
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source: Arc::new(source) }
    }
}
