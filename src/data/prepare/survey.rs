//! The first pass: what must be known before anything is written.

use std::ops::ControlFlow;

use super::super::source::{Part, Sources};
use super::super::windows::hash;
use super::super::{CharVocab, DataError, Tokenizer, TokenizerKind};
use super::{Phase, Reporter, Router};

/// From this many documents on they need not be counted before they are split.
const MANY: u64 = 1_000;

/// Which text goes to which side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The first characters of the only document are train.
    Position { train_chars: u64 },
    /// Documents whose hash is below a bound are val.
    Documents { seed: u64, below: u64 },
}

/// What the first pass finds.
pub(super) struct Survey {
    documents: u64,
    chars: u64,
    /// All input was read; the counts are those of the whole.
    complete: bool,
    /// The characters that occur, sorted; only for a character vocabulary.
    alphabet: Vec<char>,
}

impl Survey {
    pub(super) fn of(
        sources: &Sources,
        kind: TokenizerKind,
        reporter: &mut Reporter<'_>,
    ) -> Result<Self, DataError> {
        let mut survey = Self { documents: 0, chars: 0, complete: true, alphabet: Vec::new() };
        let collect = kind == TokenizerKind::Char;
        // One flag a code point: 1.1 MB, and no hashing for each character.
        let mut seen = vec![false; if collect { char::MAX as usize + 1 } else { 0 }];
        sources.read(&mut |part, bytes| {
            match part {
                Part::Text(text) if collect => {
                    for character in text.chars() {
                        survey.chars += 1;
                        if let Some(flag) = seen.get_mut(character as usize) {
                            *flag = true;
                        }
                    }
                }
                Part::Text(text) => survey.chars += text.chars().count() as u64,
                Part::EndOfDocument => survey.documents += 1,
            }
            reporter.report_now_and_then(Phase::Survey, bytes, survey.documents);
            if survey.documents >= MANY && !collect {
                survey.complete = false;
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        survey.alphabet = (0_u32..)
            .zip(seen)
            .filter_map(|(code, seen)| char::from_u32(code).filter(|_| seen))
            .collect();
        if survey.documents == 0 {
            return Err(DataError::NoText { files: sources.len() });
        }
        Ok(survey)
    }

    pub(super) fn tokenizer(&self, kind: TokenizerKind) -> Result<Tokenizer, DataError> {
        Ok(match kind {
            TokenizerKind::Gpt2 => Tokenizer::Gpt2,
            TokenizerKind::Byte => Tokenizer::Byte,
            TokenizerKind::Char => Tokenizer::Char(CharVocab::new(self.alphabet.iter().copied())?),
        })
    }

    pub(super) fn rule(&self, val_fraction: f64, seed: u64) -> Rule {
        if self.documents == 1 {
            // The same rounding as nanoGPT's int(n * 0.9).
            let train_chars = (self.chars as f64 * (1.0 - val_fraction)) as u64;
            return Rule::Position { train_chars };
        }
        let mut hashes: Vec<u64> =
            (0..self.documents.min(MANY)).map(|document| hash([seed, document])).collect();
        hashes.sort_unstable();
        let wanted = (self.documents as f64 * val_fraction).round() as usize;
        let wanted = wanted.clamp(1, hashes.len() - 1);
        // The hash is a bijection of the index, so exactly `wanted` are below.
        let exact = hashes.get(wanted).copied().unwrap_or(u64::MAX);
        let below = if self.documents < MANY {
            exact
        } else {
            let first = hashes.first().copied().unwrap_or(0);
            let share = (val_fraction * 2_f64.powi(64)) as u64;
            share.max(first.saturating_add(1))
        };
        Rule::Documents { seed, below }
    }

    /// A file that grew between the passes would silently move the split.
    pub(super) fn check_same(&self, router: &Router) -> Result<(), DataError> {
        let same = (router.documents, router.chars) == (self.documents, self.chars);
        let more = router.documents >= self.documents && router.chars >= self.chars;
        if same || (!self.complete && more) { Ok(()) } else { Err(DataError::InputChanged) }
    }
}
