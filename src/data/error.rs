//! The error of the data layer.

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::disk;
use crate::protocol::{Exit, Failure};
use crate::text::excerpt;

/// An error of the data layer: what happened and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct DataError {
    pub(super) exit: Exit,
    /// True for data that does not exist. It may not be prepared yet.
    pub is_missing: bool,
    problem: String,
    hint: Cow<'static, str>,
}

pub(super) const FIX_LINE: &str = "fix or remove it, or leave such lines out with --skip-bad-lines";

/// The hint for a line that is no question. Training has no option that leaves it out.
const FIX_QUESTION: &str = "each line needs `ctx`, `endings` and `label`: fix or remove it; `wgpt eval` leaves \
                            such lines out with --skip-bad-lines";

/// The hint for files that were damaged or changed after `wgpt prepare` wrote them.
pub(super) const PREPARE_AGAIN: &str = "prepare the data again: --force replaces it";

/// The same for files that a copy may have cut short.
pub(super) const COPY_AGAIN: &str =
    "the file is truncated or was replaced: copy it again, or prepare it again with --force";

impl DataError {
    pub fn hint(&self) -> &str {
        &self.hint
    }

    pub(super) fn bad(problem: impl Into<String>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { exit: Exit::BadData, is_missing: false, problem: problem.into(), hint: hint.into() }
    }

    pub fn at(path: &Path, problem: impl Display, hint: impl Into<Cow<'static, str>>) -> Self {
        Self::bad(format!("{}: {}", path.display(), excerpt(problem)), hint)
    }

    /// Creates an error about a line of a file, counted from 1.
    pub(super) fn line(path: &Path, line: u64, reason: &str, hint: &'static str) -> Self {
        Self::bad(format!("{}:{line}: {}", path.display(), excerpt(reason)), hint)
    }

    /// Creates an error about a file of settings or tokens that cannot be used.
    pub(super) fn unusable(path: &Path, reason: impl Display, hint: &'static str) -> Self {
        Self::bad(format!("cannot use {}: {}", path.display(), excerpt(reason)), hint)
    }

    /// Creates an error about a damaged description of data, `meta.json` or `meta.pkl`.
    pub(super) fn meta(path: &Path, reason: impl Display) -> Self {
        Self::unusable(path, reason, PREPARE_AGAIN)
    }

    /// Creates an error about a vocabulary in a description of data.
    pub(super) fn vocabulary(reason: impl Display) -> Self {
        Self::bad(format!("invalid vocabulary: {}", excerpt(reason)), PREPARE_AGAIN)
    }

    /// Creates an error about the chat template of the model folder `path`.
    pub fn template(path: &Path, reason: impl Display) -> Self {
        let hint =
            "to use wgpt's own template, give the path of its tokenizer.json instead of the folder";
        let path = path.display();
        let reason = excerpt(reason);
        Self::bad(format!("cannot use the chat template of {path}: {reason}"), hint)
    }

    /// Creates an error about a token that a chat template writes and a model with so many rows of embeddings
    /// does not have.
    pub fn token_without_row(id: u32, rows: usize) -> Self {
        let problem =
            format!("the chat template writes token {id}, but the model has {rows} tokens");
        Self::bad(
            problem,
            "leave the system prompt out, or use the chat template that the model was trained with",
        )
    }

    pub(super) fn tokenize(reason: impl Display) -> Self {
        let problem = format!("cannot tokenize the text: {}", excerpt(reason));
        Self::bad(problem, "check the input for binary data")
    }

    /// Creates an error about a line of a `.jsonl` file, which is always UTF-8.
    pub(super) fn not_utf8(path: &Path, offset: u64) -> Self {
        let hint = "convert the file to UTF-8 (it may be UTF-16 or Latin-1)";
        Self::at(path, format!("not UTF-8 at byte {offset}"), hint)
    }

    /// Creates an error about plain text that is not in this encoding.
    pub(super) fn not_encoded(path: &Path, encoding: &str, offset: u64) -> Self {
        let hint = "name the encoding of the text, as in --encoding latin1, windows-1251 or utf-16le, \
                    or leave the file out if it is not text";
        Self::at(path, format!("not {encoding} at byte {offset}"), hint)
    }

    /// Creates an error about a token file whose length differs from the one in `source`.
    pub fn token_count(path: &Path, source: &str, expected: impl Display, found: u64) -> Self {
        let problem = format!("{source} says {expected} tokens, but the file has {found}");
        Self::at(path, problem, COPY_AGAIN)
    }

    /// Creates an error about data that does not exist in a folder.
    pub(super) fn missing(folder: &Path, reason: &str, hint: String) -> Self {
        let problem = format!("no training data in {}: {reason}", folder.display());
        Self { is_missing: true, ..Self::bad(problem, hint) }
    }

    pub(super) fn usage(problem: impl Into<String>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { exit: Exit::Usage, ..Self::bad(problem, hint) }
    }

    /// Wraps an I/O error, for `map_err`: "cannot `action` `path`".
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let exit = match source.kind() {
                io::ErrorKind::NotFound => Exit::BadData,
                _ => Exit::Failure,
            };
            let problem = format!("cannot {action} {}: {source}", path.display());
            let hint = disk::hint(&source)
                .unwrap_or("check the path, its permissions and the free disk space");
            Self { exit, ..Self::bad(problem, hint) }
        }
    }

    pub fn question(path: &Path, line: u64, reason: &str) -> Self {
        Self::line(path, line, reason, FIX_QUESTION)
    }

    /// Creates an error about a question that the tokenizer refuses.
    pub fn of_question(self, path: &Path, line: u64) -> Self {
        let problem = format!("{}:{line}: {}", path.display(), self.problem);
        Self { problem, ..self }
    }

    pub fn no_questions(path: &Path) -> Self {
        let hint = "give a .jsonl file of HellaSwag, with `ctx`, `endings` and `label`";
        Self::at(path, "no questions", hint)
    }

    /// Creates an error about questions for the data set `name`, whose tokenizer is unknown.
    pub fn no_tokenizer(path: &Path, name: &str) -> Self {
        let problem = format!(
            "its questions cannot be tokenized, because the tokenizer of {name} is unknown"
        );
        Self::at(path, problem, "prepare the data with `wgpt prepare`, or leave out hellaswag")
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Self::new(error.problem, error.hint).with_exit(error.exit)
    }
}
