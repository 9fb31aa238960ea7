//! Tokenizes text files into a data folder, in bounded memory: `wgpt prepare`.
//!
//! The first pass, the survey, counts the documents and collects the characters of a character
//! vocabulary, or the words that byte pairs are trained on. The second pass tokenizes and writes.
//!
//! Text is split into train and val as follows:
//! - **one document**: by position. The first `1 - val_fraction` of its characters are train and the rest is
//!   val, as nanoGPT splits Shakespeare;
//! - **several documents**: by document, with a hash of the index and the seed. Below 1,000 documents
//!   exactly `val_fraction` of them go to val, from there on `val_fraction` on average.
//!
//! Below 1,000 documents all their lengths are known: if a split by document would give val less than
//! half or more than double of its share, because a few documents are most of the text, the split is by
//! position in all of the text. So at most one document is cut, and each end of a document is a real one.
//! Conversations are never split.

mod router;
mod stop;
mod survey;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use super::encode::EncoderPool;
use super::pieces::PIECE;
use super::source::{BadLines, Sources, TextEncoding};
use super::writer::{FolderWriter, check_vacant};
use super::{DataError, Meta, TokenDtype, Tokenizer, TokenizerChoice};
use crate::text::percent;
use router::Router;
pub use stop::StopRequest;
use survey::Survey;

#[derive(Clone, Debug)]
pub struct PrepareOptions {
    pub tokenizer: TokenizerChoice,
    /// The encoding of plain text.
    pub encoding: TextEncoding,
    /// The field of `.jsonl` files and column of `.parquet` files that holds the text.
    pub text_field: String,
    /// Leave out unusable lines of `.jsonl` files, instead of ending with an error at the first.
    pub skip_bad_lines: bool,
    /// The fraction of the data that goes to val, above 0 and below 1.
    pub val_fraction: f64,
    pub seed: u64,
    pub force: bool,
    pub stop: StopRequest,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self {
            tokenizer: TokenizerChoice::default(),
            encoding: TextEncoding::default(),
            text_field: "text".to_owned(),
            skip_bad_lines: false,
            val_fraction: 0.1,
            seed: 1337,
            force: false,
            stop: StopRequest::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    /// Copies stdin, which cannot be read twice. The total is the bytes so far.
    Stdin,
    /// First pass: counts documents and collects characters. Ends early once it has enough.
    Survey,
    /// Trains byte pairs on the words that the first pass has counted.
    Vocabulary,
    /// Second pass: tokenizes and writes.
    Tokenize,
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrepareProgress {
    pub phase: Phase,
    /// Bytes read in this phase, before decompression.
    pub bytes_read: u64,
    /// Bytes of all files, before decompression.
    pub bytes_total: u64,
    /// Complete documents read in this phase.
    pub documents: u64,
    /// Tokens written so far, in both splits.
    pub tokens: u64,
}

impl PrepareProgress {
    /// Returns the share of all phases that is done, from 0 to 1.
    pub fn share(&self) -> f32 {
        let share = self.bytes_read as f32 / self.bytes_total.max(1) as f32;
        match self.phase {
            // The length of stdin is unknown.
            Phase::Stdin => 0.0,
            Phase::Survey => share / 2.0,
            Phase::Vocabulary => 0.5,
            Phase::Tokenize => 0.5 + share / 2.0,
            Phase::Done => 1.0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub meta: Meta,
    pub files: usize,
    /// Bytes of the text that was read, decompressed and as UTF-8.
    pub text_bytes: u64,
    /// The chosen tokenizer and the reason, if none was given.
    pub chosen: Option<(TokenizerChoice, &'static str)>,
    /// A sentence for each form of data that the names of the files do not show.
    pub recognised: Vec<String>,
    /// Sentences about skipped files and lines and the shares of the splits.
    pub warnings: Vec<String>,
}

/// Tokenizes `inputs` (files, folders of files, or `-` for stdin) into the folder `out`:
/// `train.bin`, `val.bin` and `meta.json`, and with byte pairs or conversations a `tokenizer.json`.
///
/// Each document ends with an end-of-text token if the tokenizer has one. `.jsonl` files of conversations are
/// tokenized with the chat template of the tokenizer's folder, or else wgpt's own. Memory does not grow with the
/// input, except for the longest `.jsonl` line or `.parquet` value. `progress` is called about every 256 KiB.
pub fn prepare(
    inputs: &[PathBuf],
    out: &Path,
    options: &PrepareOptions,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Prepared, DataError> {
    if !(options.val_fraction > 0.0 && options.val_fraction < 1.0) {
        return Err(DataError::usage(
            format!("val_fraction = {} is not allowed", options.val_fraction),
            "use a number above 0 and below 1, like 0.1",
        ));
    }
    check_vacant(out, options.force)?;
    let mut refused = None;
    let mut opened = None;
    if let TokenizerChoice::File(path) = &options.tokenizer {
        let found = Tokenizer::open(path)?;
        refused = found.refused.map(|reason| DataError::template(path, reason));
        opened = Some(found.tokenizer);
    }
    let mut reporter = Reporter { last: PrepareProgress::default(), progress };
    let mut sources = Sources::find(inputs, options, out, &mut |bytes| {
        reporter.last.bytes_total = bytes;
        reporter.report(Phase::Stdin, bytes, 0);
    })?;
    (reporter.last.bytes_read, reporter.last.bytes_total) = (0, sources.bytes());
    if let Some(error) = refused.filter(|_| sources.has_conversations) {
        return Err(error);
    }
    let chosen = (options.tokenizer == TokenizerChoice::Auto).then(|| choose(&sources));
    let choice = chosen.as_ref().map_or(&options.tokenizer, |(choice, _)| choice);
    let known = match choice {
        TokenizerChoice::Gpt2 => Some(Tokenizer::GPT2),
        TokenizerChoice::Byte => Some(Tokenizer::BYTE),
        _ => opened,
    };
    sources.template = known.as_ref().and_then(Tokenizer::chat).cloned();
    let mut survey = Survey::of(&sources, choice, &mut reporter)?;
    if matches!(choice, TokenizerChoice::Trained(_)) {
        reporter.report(Phase::Vocabulary, sources.bytes(), 0);
    }
    let mut tokenizer = known.map_or_else(|| survey.tokenizer().map(Tokenizer::from), Ok)?;
    if sources.has_conversations {
        tokenizer = tokenizer.with_chat();
    }
    let rule = survey.rule(options.val_fraction, options.seed);
    let dtype = TokenDtype::for_vocab(tokenizer.vocab_size());
    let begin = tokenizer.chat().filter(|_| sources.has_conversations).map(|chat| chat.begin);
    if !options.stop.begin_writing() {
        return Err(stopped());
    }
    let mut output = FolderWriter::create(out, dtype, begin)?;

    let stop = &options.stop;
    let router = Router::new(rule, &tokenizer, survey.separator(&tokenizer));
    let (router, bad) = tokenize(&sources, router, &mut output, stop, &mut reporter)?;
    survey.check_unchanged(&router)?;
    let joined = router.joins_documents();
    let Router { documents, chars, bytes: text_bytes, .. } = router;
    for (split, tokens) in [("train", output.train.tokens), ("val", output.val.tokens)] {
        if tokens == 0 {
            return Err(DataError::bad(
                format!(
                    "the {split} split would be empty ({documents} document(s), {chars} \
                     character(s) read)"
                ),
                "add more text, or change --val-fraction",
            ));
        }
    }
    let meta = output.finish(tokenizer, documents, sources.names())?;
    reporter.last.tokens = meta.train_tokens + meta.val_tokens;
    reporter.report(Phase::Done, sources.bytes(), documents);
    let skipped = sources.skipped_files().into_iter().map(|files| format!("skipped {files}"));
    let others = [
        skipped_lines(&bad),
        nulls(&bad),
        joined,
        off_share(&meta, options),
        few_pairs(&meta, choice),
    ];
    let warnings = skipped.chain(others.into_iter().flatten()).collect();
    let recognised = sources.recognised();
    Ok(Prepared { meta, files: sources.len(), text_bytes, chosen, recognised, warnings })
}

fn stopped() -> DataError {
    DataError::usage("stopped: nothing was written", "run the command again")
}

/// Chooses a tokenizer by the size of the text, with the reason. Conversations get GPT-2's, because few people
/// have enough of them to train a model from scratch.
fn choose(sources: &Sources) -> (TokenizerChoice, &'static str) {
    if sources.has_conversations {
        return (TokenizerChoice::Gpt2, "conversations are usually for fine-tuning GPT-2");
    }
    let choice = TokenizerChoice::for_text(sources.text_bytes());
    let reason = match choice {
        TokenizerChoice::Char => "the text is short",
        TokenizerChoice::Trained(_) => {
            "a text of this size suits a small model, which needs a small vocabulary"
        }
        _ => "the text is long",
    };
    (choice, reason)
}

fn few_pairs(meta: &Meta, choice: &TokenizerChoice) -> Option<String> {
    let TokenizerChoice::Trained(wanted) = *choice else { return None };
    let tokens = meta.tokenizer.base().vocab_size();
    (tokens < wanted).then(|| {
        format!(
            "the vocabulary has {tokens} tokens instead of {wanted}: no other pair of tokens occurs \
             twice in the text"
        )
    })
}

fn skipped_lines(bad: &BadLines) -> Option<String> {
    let first = bad.first.as_ref()?;
    Some(match bad.count {
        1 => format!("skipped 1 bad line: {first}"),
        count => format!("skipped {count} bad lines, the first: {first}"),
    })
}

fn nulls(bad: &BadLines) -> Option<String> {
    match bad.nulls {
        0 => None,
        1 => Some("skipped 1 text that is null".to_owned()),
        count => Some(format!("skipped {count} texts that are null")),
    }
}

fn off_share(meta: &Meta, options: &PrepareOptions) -> Option<String> {
    let share = meta.val_tokens as f64 / (meta.train_tokens + meta.val_tokens) as f64;
    is_off(share, options.val_fraction).then(|| {
        format!(
            "the validation split has {} of the tokens instead of {}: the text is short, or a few \
             documents are most of it; try more text, another --seed or another --val-fraction",
            percent(share, 1),
            percent(options.val_fraction, 1),
        )
    })
}

/// Returns true if one of the splits has less than half or more than double of its share.
fn is_off(share: f64, wanted: f64) -> bool {
    let off = |share: f64, wanted: f64| share < wanted / 2.0 || share > wanted * 2.0;
    off(share, wanted) || off(1.0 - share, 1.0 - wanted)
}

fn tokenize<'a>(
    sources: &Sources,
    mut router: Router<'a>,
    output: &mut FolderWriter,
    stop: &StopRequest,
    reporter: &mut Reporter<'_>,
) -> Result<(Router<'a>, BadLines), DataError> {
    thread::scope(|scope| {
        let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let mut pool = EncoderPool::new(scope, router.tokenizer, threads);
        let bad = sources.read(&mut |part, bytes| {
            router.route(part)?;
            for batch in router.batcher.ready.drain(..) {
                if stop.is_stopped() {
                    return Err(Some(stopped()));
                }
                if let Some(encoded) = pool.submit(batch)? {
                    output.write(&encoded)?;
                }
                reporter.last.tokens = output.train.tokens + output.val.tokens;
                reporter.report(Phase::Tokenize, bytes, router.documents);
            }
            Ok(())
        })?;
        if let Some(encoded) = pool.submit(router.batcher.finish())? {
            output.write(&encoded)?;
        }
        while let Some(encoded) = pool.next()? {
            output.write(&encoded)?;
        }
        // From here on the folder is completed.
        if stop.is_stopped() {
            return Err(stopped());
        }
        Ok((router, bad))
    })
}

struct Reporter<'a> {
    last: PrepareProgress,
    progress: &'a mut dyn FnMut(PrepareProgress),
}

impl Reporter<'_> {
    fn report(&mut self, phase: Phase, bytes_read: u64, documents: u64) {
        self.last.phase = phase;
        self.last.bytes_read = bytes_read;
        self.last.documents = documents;
        (self.progress)(self.last);
    }

    /// Reports progress if another [`PIECE`] bytes have been read.
    fn report_if_due(&mut self, phase: Phase, bytes_read: u64, documents: u64) {
        if bytes_read >= self.last.bytes_read.saturating_add(PIECE as u64) {
            self.report(phase, bytes_read, documents);
        }
    }
}

#[cfg(test)]
mod tests;
