//! The first pass over the input: counts documents and collects characters.

use std::ops::ControlFlow;

use super::super::source::{Part, Sources};
use super::super::windows::hash;
use super::super::{CharVocab, DataError, Tokenizer, TokenizerKind};
use super::{Phase, Reporter, Router};

/// With this many documents, the split needs no exact count.
const MANY: u64 = 1_000;

/// The rule that assigns text to the splits.
#[derive(Clone, Copy, Debug)]
pub(super) enum SplitRule {
    /// The first characters of the only document are train.
    Position { train_chars: u64 },
    /// Documents whose hash is below a bound are val.
    Documents { seed: u64, below: u64 },
}

/// The results of the first pass.
pub(super) struct Survey {
    documents: u64,
    chars: u64,
    /// True if all of the input was read, so that the counts are exact.
    complete: bool,
    /// The distinct characters, sorted; only for a character vocabulary.
    alphabet: Vec<char>,
}

impl Survey {
    /// Reads the input, up to [`MANY`] documents unless all characters are needed.
    pub(super) fn of(
        sources: &Sources,
        kind: TokenizerKind,
        reporter: &mut Reporter<'_>,
    ) -> Result<Self, DataError> {
        let mut survey = Self { documents: 0, chars: 0, complete: true, alphabet: Vec::new() };
        let collect = kind == TokenizerKind::Char;
        // A flag for each code point takes 1.1 MB and is faster than a hash set.
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
            reporter.report_if_due(Phase::Survey, bytes, survey.documents);
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

    pub(super) fn rule(&self, val_fraction: f64, seed: u64) -> SplitRule {
        if self.documents == 1 {
            // Rounds like nanoGPT's int(n * 0.9).
            let train_chars = (self.chars as f64 * (1.0 - val_fraction)) as u64;
            return SplitRule::Position { train_chars };
        }
        let mut hashes: Vec<u64> =
            (0..self.documents.min(MANY)).map(|document| hash([seed, document])).collect();
        hashes.sort_unstable();
        let wanted = (self.documents as f64 * val_fraction).round() as usize;
        let wanted = wanted.clamp(1, hashes.len() - 1);
        // The hash is a bijection of the index, so exactly `wanted` hashes are below.
        let exact = hashes.get(wanted).copied().unwrap_or(u64::MAX);
        let below = if self.documents < MANY {
            exact
        } else {
            let first = hashes.first().copied().unwrap_or(0);
            let share = (val_fraction * 2_f64.powi(64)) as u64;
            share.max(first.saturating_add(1))
        };
        SplitRule::Documents { seed, below }
    }

    /// Returns an error if the input changed between the passes, which would move the split.
    pub(super) fn check_unchanged(&self, router: &Router) -> Result<(), DataError> {
        let same = (router.documents, router.chars) == (self.documents, self.chars);
        let more = router.documents >= self.documents && router.chars >= self.chars;
        if same || (!self.complete && more) { Ok(()) } else { Err(DataError::InputChanged) }
    }
}
