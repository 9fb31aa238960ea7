//! Errors of the data layer. Each message says what went wrong, where, and what to do next.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of the data layer. It is cloneable, so that a front end can keep it and show it again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or folder that cannot be read or written.
    #[error("cannot {action} {}: {source}; check the path, its permissions and the free disk space", path.display())]
    Io {
        /// The verb of the message, as in "cannot read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: Arc<io::Error>,
    },

    /// A compressed file that is damaged or truncated.
    #[error("cannot decompress {}: {source}; the file is damaged or incomplete, download it again", path.display())]
    Decompress {
        /// The compressed file.
        path: PathBuf,
        /// The error of the decoder.
        #[source]
        source: Arc<io::Error>,
    },

    /// A file of a format that is not read in a browser.
    #[cfg(target_arch = "wasm32")]
    #[error("{}: a browser does not read this format; choose a text or a .jsonl file", path.display())]
    NotInBrowser {
        /// The file.
        path: PathBuf,
    },

    /// Inputs without any text file.
    #[error("no text files in {inputs}{}; give at least one file or folder with UTF-8 text", skipped_clause(*skipped))]
    NoInputs {
        /// The inputs as given.
        inputs: String,
        /// Number of files that are not UTF-8.
        skipped: usize,
    },

    /// Inputs without any text.
    #[error("the input contains no text ({files} file(s) read); give files that contain text")]
    NoText {
        /// Number of files read.
        files: usize,
    },

    /// Bytes that are not UTF-8.
    #[error("{}: not UTF-8 at byte {offset}; convert the file to UTF-8 (it may be UTF-16 or Latin-1), or leave it out if it is not text", path.display())]
    InvalidUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first invalid byte in the decompressed text.
        offset: u64,
    },

    /// A line of a .jsonl file that has no text.
    #[error("{}:{line}: {reason}; fix or remove the line, choose another field with --text-field, or leave such lines out with --skip-bad-lines", path.display())]
    JsonLine {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// A clause that says what is wrong.
        reason: String,
    },

    /// A line of a .jsonl file of conversations that is none.
    #[error("{}:{line}: {reason}; fix or remove the line, or leave such lines out with --skip-bad-lines", path.display())]
    BadConversation {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// A clause that says what is wrong.
        reason: String,
    },

    /// Inputs of which some have conversations and some have text.
    #[error("{} has conversations and {} has text, which cannot be in one data folder; prepare them apart", chat.display(), text.display())]
    MixedForms {
        /// The first file with conversations.
        chat: PathBuf,
        /// The first file with text.
        text: PathBuf,
    },

    /// A line of a .jsonl file that is too long.
    #[error("{}:{line}: the line is longer than {limit} bytes; a .jsonl file has one document per line", path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The limit in bytes.
        limit: u64,
    },

    /// A line of a file of questions that is no question.
    #[error("{}:{line}: {reason}; fix or remove the line, or leave such lines out with --skip-bad-lines", path.display())]
    BadQuestion {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// A clause that says what is wrong.
        reason: String,
    },

    /// A file of questions without any.
    #[error("{}: no questions; give a .jsonl file of HellaSwag, with `ctx`, `endings` and `label`", path.display())]
    NoQuestions {
        /// The file.
        path: PathBuf,
    },

    /// Questions for a model whose tokenizer is unknown.
    #[error("{}: its questions cannot be tokenized, because the tokenizer of {name} is unknown; prepare the data with `wgpt prepare`, or leave out hellaswag", path.display())]
    NoTokenizer {
        /// The file of questions.
        path: PathBuf,
        /// The data set.
        name: String,
    },

    /// A .parquet file that cannot be read.
    #[error("cannot read {}: {reason}; the file may be damaged or use a compression other than snappy, gzip, lz4 or zstd", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The error of the Parquet reader.
        reason: String,
    },

    /// A .parquet file without the requested text column.
    #[error("{}: no text column {column:?}; choose one of {available} with --text-field", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The requested column.
        column: String,
        /// The columns of the file.
        available: String,
    },

    /// A tokenizer that does not exist.
    #[error(
        "unknown tokenizer {name:?}; choose gpt2, char, byte, bpe:8192 for one trained on the text, or the path of a tokenizer.json"
    )]
    UnknownTokenizer {
        /// The requested name.
        name: String,
    },

    /// A vocabulary of byte pairs of an impossible size.
    #[error("{value:?}: a vocabulary of byte pairs has {least} to {most} tokens, like bpe:8192")]
    BadVocabularySize {
        /// The choice as given.
        value: String,
        /// The smallest size.
        least: u32,
        /// The largest size.
        most: u32,
    },

    /// A `tokenizer.json` that cannot be used.
    #[error("cannot use {}: {reason}; choose another tokenizer, or train one with bpe:8192", path.display())]
    BadTokenizer {
        /// The file.
        path: PathBuf,
        /// A clause that says what is wrong.
        reason: String,
    },

    /// A character outside a character vocabulary.
    #[error(
        "character {character:?} at byte {offset} is not one of the {vocab_size} characters in the vocabulary; remove it, or prepare the data again with text that contains it"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its byte offset in the text.
        offset: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },

    /// An invalid vocabulary.
    #[error("invalid vocabulary: {reason}; prepare the data again")]
    BadVocabulary {
        /// A clause that says what is wrong.
        reason: String,
    },

    /// Text that the byte-pair tokenizer cannot process.
    #[error("cannot tokenize the text: {reason}; check the input for binary data")]
    Tokenize {
        /// The error of the tokenizer.
        reason: String,
    },

    /// A validation fraction out of range.
    #[error("val_fraction = {value} is not allowed; use a number above 0 and below 1, like 0.1")]
    BadFraction {
        /// The value as given.
        value: f64,
    },

    /// A split without tokens.
    #[error(
        "the {split} split would be empty ({documents} document(s), {chars} character(s) read); add more text or change val_fraction"
    )]
    EmptySplit {
        /// `train` or `val`.
        split: &'static str,
        /// Documents read.
        documents: u64,
        /// Characters read.
        chars: u64,
    },

    /// Inputs that changed between the two passes.
    #[error(
        "the input changed while it was read; run the command again when no other program writes to it"
    )]
    InputChanged,

    /// An output folder that already holds data.
    #[error("{} already contains {found}; choose another folder, or replace the data with --force", path.display())]
    AlreadyPrepared {
        /// The output folder.
        path: PathBuf,
        /// The existing file.
        found: &'static str,
    },

    /// A data folder whose preparation was interrupted.
    #[error("{}: the preparation of this folder was interrupted; run `wgpt prepare ... -o {} --force` again", path.display(), path.display())]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },

    /// A missing data folder or file.
    #[error("no training data in {}: {missing}; create it with `{command}`, or give another folder with --data", path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
        /// A clause that says what is missing.
        missing: String,
        /// The command that creates it.
        command: String,
    },

    /// A built-in corpus that does not exist.
    #[error("unknown built-in corpus {name:?}; choose builtin:stories or builtin:chats")]
    UnknownBuiltin {
        /// The requested name.
        name: String,
    },

    /// An invalid `meta.json` or `meta.pkl`.
    #[error("cannot use {}: {reason}; prepare the data again", path.display())]
    BadMeta {
        /// The file.
        path: PathBuf,
        /// A clause that says what is wrong.
        reason: String,
    },

    /// A token file that ends within a token.
    #[error("{}: {bytes} bytes are not a whole number of {width}-byte tokens; the file is truncated, copy or prepare it again", path.display())]
    OddLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Bytes per token.
        width: u64,
    },

    /// A token file of the wrong length.
    #[error("{}: {source_of_count} gives {expected} tokens, but the file has {found}; it is truncated or was replaced, copy or prepare it again", path.display())]
    TokenCount {
        /// The file.
        path: PathBuf,
        /// The expected number of tokens.
        expected: i64,
        /// The file or header that gives this number.
        source_of_count: &'static str,
        /// The number of tokens in the file.
        found: u64,
    },

    /// A shard in a format other than GPT-2's.
    #[error("{}: unsupported shard header (magic {magic}, version {version}), expected magic 20240520, version 1; prepare the text with `wgpt prepare`", path.display())]
    BadShard {
        /// The file.
        path: PathBuf,
        /// The magic number of the file.
        magic: i32,
        /// The version of the file.
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

    /// A split that is shorter than a window.
    #[error(
        "{split} of {name} has {tokens} tokens, but block_size {block_size} needs {needed}; use more text or a smaller block_size"
    )]
    TooShort {
        /// `train` or `val`.
        split: &'static str,
        /// The data set.
        name: String,
        /// Tokens in the split.
        tokens: u64,
        /// The requested block size.
        block_size: u64,
        /// Tokens that a window and its targets need.
        needed: u64,
    },

    /// A split of conversations that does not begin with one.
    #[error(
        "{split}.bin does not begin with a conversation; it was replaced, prepare the data again"
    )]
    NoConversation {
        /// `train` or `val`.
        split: &'static str,
    },

    /// A window beyond the end of a split: a bug in the caller.
    #[error(
        "tokens {start}..{start}+{count} are outside a split of {len} tokens; please report this as a bug in wgpt"
    )]
    OutsideSplit {
        /// The first requested token.
        start: u64,
        /// The number of requested tokens.
        count: usize,
        /// Tokens in the split.
        len: u64,
    },
}

impl DataError {
    /// Wraps an I/O error, for `map_err`: "cannot `action` `path`".
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source: Arc::new(source) }
    }
}

fn skipped_clause(skipped: usize) -> String {
    match skipped {
        0 => String::new(),
        skipped => format!(" ({skipped} skipped, not UTF-8 text)"),
    }
}
