//! `wgpt prepare`: text files into a folder of tokens, in bounded memory.
//!
//! Two passes. The survey looks for what must be known beforehand: the
//! characters of a character vocabulary, and how many documents there are.
//! The second pass tokenises and writes.
//!
//! How text is split into train and val:
//! - **one document**: by position. The first `1 - val_fraction` of its
//!   characters are train, the rest is val, as nanoGPT splits Shakespeare;
//! - **several**: by document. A hash of its index and the seed puts each on
//!   one side. Below 1,000 documents exactly the share asked for goes to val
//!   (at least one and not all), above it is that share on average.

mod survey;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use super::encode::{Batcher, Encoded, Pool, Side};
use super::output::{Output, check_free};
use super::pieces::PIECE;
use super::source::{Part, Sources};
use super::windows::hash;
use super::{DataError, Dtype, Meta, Tokenizer, TokenizerKind};
use survey::{Rule, Survey};

/// How to prepare.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareOptions {
    /// The tokenizer to use.
    pub tokenizer: TokenizerKind,
    /// The field of `.jsonl` and the column of `.parquet` that holds the text.
    pub text_field: String,
    /// The share that goes to val, above 0 and below 1.
    pub val_fraction: f64,
    /// Chooses which of several documents go to val.
    pub seed: u64,
    /// Replace a folder that already holds data.
    pub force: bool,
    /// Threads that tokenise; all the machine has where it is not given. The
    /// result does not depend on it.
    pub threads: Option<NonZeroUsize>,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self {
            tokenizer: TokenizerKind::default(),
            text_field: "text".to_owned(),
            val_fraction: 0.1,
            seed: 1337,
            force: false,
            threads: None,
        }
    }
}

/// What `prepare` is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// First pass: counting documents, collecting characters. Ends early where
    /// nothing more has to be known.
    Survey,
    /// Second pass: tokenising and writing.
    Tokenize,
    /// Everything is written.
    Done,
}

/// How far `prepare` has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareProgress {
    /// What is being done.
    pub phase: Phase,
    /// Bytes read in this phase, as the files lie on disk (packed).
    pub bytes_read: u64,
    /// Bytes of all files together.
    pub bytes_total: u64,
    /// Complete documents read in this phase.
    pub documents: u64,
    /// Tokens written so far, in both splits.
    pub tokens: u64,
    /// Files in the input folders that are of no kind that is read.
    pub skipped_files: usize,
}

/// Tokenises `inputs` (files, or folders of files) into the folder `out`:
/// `train.bin`, `val.bin` and `meta.json`.
///
/// An end-of-text token follows each document where the tokenizer has one.
/// Memory does not grow with the input, except that one `.jsonl` line or
/// `.parquet` value is held whole. `progress` is called about every 256 KiB.
///
/// # Errors
/// Any [`DataError`] about the inputs or the folder. The folder is then as it
/// was before, or marked as unfinished if the very last step failed.
pub fn prepare(
    inputs: &[PathBuf],
    out: &Path,
    options: &PrepareOptions,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Meta, DataError> {
    if !(options.val_fraction > 0.0 && options.val_fraction < 1.0) {
        return Err(DataError::BadFraction { value: options.val_fraction });
    }
    check_free(out, options.force)?;
    let sources = Sources::find(inputs, &options.text_field)?;
    let mut reporter = Reporter::new(&sources, progress);
    let survey = Survey::of(&sources, options.tokenizer, &mut reporter)?;
    let tokenizer = survey.tokenizer(options.tokenizer)?;
    let rule = survey.rule(options.val_fraction, options.seed);
    let dtype = Dtype::for_vocab(tokenizer.vocab_size());
    let mut output = Output::create(out, dtype)?;
    let threads = options
        .threads
        .unwrap_or_else(|| thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));

    let router = tokenize(&sources, &tokenizer, rule, &mut output, threads, &mut reporter)?;
    survey.check_same(&router)?;
    let (train_tokens, val_tokens) = output.tokens();
    for (split, tokens) in [("train", train_tokens), ("val", val_tokens)] {
        if tokens == 0 {
            return Err(DataError::EmptySplit {
                split,
                documents: router.documents,
                chars: router.chars,
            });
        }
    }
    let meta = output.finish(|train_blake3, val_blake3| Meta {
        version: Meta::VERSION,
        vocab_size: tokenizer.vocab_size(),
        tokenizer,
        dtype,
        documents: router.documents,
        train_tokens,
        val_tokens,
        sources: sources.names(),
        train_blake3,
        val_blake3,
    })?;
    reporter.last.tokens = train_tokens.saturating_add(val_tokens);
    reporter.report(Phase::Done, sources.bytes(), router.documents);
    Ok(meta)
}

/// The second pass.
fn tokenize(
    sources: &Sources,
    tokenizer: &Tokenizer,
    rule: Rule,
    output: &mut Output,
    threads: NonZeroUsize,
    reporter: &mut Reporter<'_>,
) -> Result<Router, DataError> {
    thread::scope(|scope| {
        let mut pool = Pool::start(scope, tokenizer, threads);
        let mut router = Router::new(rule);
        let mut write = |encoded: &Encoded, reporter: &mut Reporter<'_>| {
            let tokens = encoded.train.len() + encoded.val.len();
            reporter.last.tokens += tokens as u64;
            output.write(encoded)
        };
        sources.read(&mut |part, bytes| {
            router.take(part);
            for batch in router.batcher.ready.drain(..) {
                if let Some(encoded) = pool.submit(batch)? {
                    write(&encoded, reporter)?;
                }
                reporter.report(Phase::Tokenize, bytes, router.documents);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        router.batcher.finish();
        for batch in router.batcher.ready.drain(..) {
            if let Some(encoded) = pool.submit(batch)? {
                write(&encoded, reporter)?;
            }
        }
        while let Some(encoded) = pool.next()? {
            write(&encoded, reporter)?;
        }
        Ok(router)
    })
}

/// Sends the text of each document to its side.
struct Router {
    rule: Rule,
    batcher: Batcher,
    documents: u64,
    chars: u64,
}

impl Router {
    fn new(rule: Rule) -> Self {
        Self { rule, batcher: Batcher::default(), documents: 0, chars: 0 }
    }

    fn take(&mut self, part: Part<'_>) {
        let side = self.side();
        match part {
            Part::EndOfDocument => {
                self.batcher.end(side, true);
                self.documents += 1;
            }
            Part::Text(text) => {
                let chars = text.chars().count() as u64;
                let before = self.chars;
                self.chars += chars;
                match self.rule {
                    // The text on both sides is tokenised by itself.
                    Rule::Position { train_chars }
                        if side == Side::Train && self.chars >= train_chars =>
                    {
                        let (train, val) = split_at_char(text, train_chars - before);
                        self.batcher.push(train, Side::Train);
                        self.batcher.end(Side::Train, false);
                        self.batcher.push(val, Side::Val);
                    }
                    _ => self.batcher.push(text, side),
                }
            }
        }
    }

    /// The side of the next character.
    fn side(&self) -> Side {
        let train = match self.rule {
            Rule::Position { train_chars } => self.chars < train_chars,
            Rule::Documents { seed, below } => hash([seed, self.documents]) >= below,
        };
        if train { Side::Train } else { Side::Val }
    }
}

/// `text` before and from its character number `index`.
fn split_at_char(text: &str, index: u64) -> (&str, &str) {
    let at = usize::try_from(index)
        .ok()
        .and_then(|index| text.char_indices().nth(index))
        .map_or(text.len(), |(at, _)| at);
    text.split_at(at)
}

/// Hands progress out.
struct Reporter<'a> {
    last: PrepareProgress,
    progress: &'a mut dyn FnMut(PrepareProgress),
}

impl<'a> Reporter<'a> {
    fn new(sources: &Sources, progress: &'a mut dyn FnMut(PrepareProgress)) -> Self {
        Self {
            last: PrepareProgress {
                phase: Phase::Survey,
                bytes_read: 0,
                bytes_total: sources.bytes(),
                documents: 0,
                tokens: 0,
                skipped_files: sources.skipped,
            },
            progress,
        }
    }

    fn report(&mut self, phase: Phase, bytes_read: u64, documents: u64) {
        self.last.phase = phase;
        self.last.bytes_read = bytes_read;
        self.last.documents = documents;
        (self.progress)(self.last);
    }

    fn report_now_and_then(&mut self, phase: Phase, bytes_read: u64, documents: u64) {
        if bytes_read >= self.last.bytes_read.saturating_add(PIECE as u64) {
            self.report(phase, bytes_read, documents);
        }
    }
}

#[cfg(test)]
mod tests;
