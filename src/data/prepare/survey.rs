//! The first pass over the input: measures documents and collects characters.

use super::super::bpe::trainer::WordCounts;
use super::super::source::{DocumentPart, Sources};
use super::super::windows::hash;
use super::super::{CharVocab, DataError, TextTokenizer, Tokenizer, TokenizerChoice};
use super::{Phase, Reporter, Router, is_off};

/// With this many documents, the split needs no exact count.
const MANY: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum SplitRule {
    /// The first characters of the text are train: this many.
    Position { train_chars: u64 },
    /// Documents whose hash is below a bound are val.
    Documents { seed: u64, below: u64 },
}

#[derive(Default)]
pub(super) struct Survey {
    documents: u64,
    /// True if they are conversations, which are never split.
    are_conversations: bool,
    chars: u64,
    before: u64,
    /// The characters of each document, below [`MANY`] documents.
    lengths: Vec<u64>,
    /// True if all of the input was read, so that the counts are exact.
    complete: bool,
    /// The code points that occur; only for a character vocabulary. A flag for each takes 1.1 MB and is
    /// faster than a hash set.
    seen: Vec<bool>,
    /// The words that byte pairs are trained on.
    words: Option<WordCounts>,
}

impl Survey {
    /// Reads the input, up to [`MANY`] documents unless all characters, or more words, are needed.
    pub(super) fn of(
        sources: &Sources,
        choice: &TokenizerChoice,
        reporter: &mut Reporter<'_>,
    ) -> Result<Self, DataError> {
        let collect = *choice == TokenizerChoice::Char;
        let mut survey = Self {
            are_conversations: sources.has_conversations,
            complete: true,
            seen: vec![false; if collect { char::MAX as usize + 1 } else { 0 }],
            words: match choice {
                TokenizerChoice::Trained(vocab_size) => Some(WordCounts::new(*vocab_size)?),
                _ => None,
            },
            ..Self::default()
        };
        sources.read(&mut |part, bytes| {
            match part {
                DocumentPart::Text(text) => survey.add_text(text)?,
                DocumentPart::Conversation(messages) => {
                    for message in messages {
                        survey.add_text(&message.content)?;
                        survey.end_text()?;
                    }
                    survey.end_document();
                }
                DocumentPart::EndOfDocument => {
                    survey.end_text()?;
                    survey.end_document();
                }
            }
            reporter.report_if_due(Phase::Survey, bytes, survey.documents);
            let enough = survey.words.as_ref().is_none_or(WordCounts::is_full);
            if survey.documents >= MANY && !collect && enough {
                survey.complete = false;
                return Err(None);
            }
            Ok(())
        })?;
        if survey.documents == 0 {
            return Err(DataError::bad(
                format!("the input contains no text ({} file(s) read)", sources.len()),
                "give files that contain text",
            ));
        }
        Ok(survey)
    }

    fn add_text(&mut self, text: &str) -> Result<(), DataError> {
        self.chars += text.chars().count() as u64;
        if !self.seen.is_empty() {
            text.chars().for_each(|character| self.seen[character as usize] = true);
        }
        self.words.as_mut().map_or(Ok(()), |words| words.push(text))
    }

    /// Ends a text. Its last word does not continue in the next.
    fn end_text(&mut self) -> Result<(), DataError> {
        self.words.as_mut().map_or(Ok(()), WordCounts::end_document)
    }

    fn end_document(&mut self) {
        self.documents += 1;
        if self.documents < MANY {
            self.lengths.push(self.chars - self.before);
        }
        self.before = self.chars;
    }

    /// Returns a tokenizer of the text's characters, or one trained on its words.
    pub(super) fn tokenizer(&mut self) -> Result<TextTokenizer, DataError> {
        Ok(match self.words.take() {
            Some(words) => TextTokenizer::Bpe(words.train()?.into()),
            None => {
                if self.documents > 1 && !self.are_conversations {
                    // It will separate them.
                    self.seen['\n' as usize] = true;
                }
                let codes = (0_u32..).zip(&self.seen).filter(|(_, seen)| **seen);
                let characters = codes.filter_map(|(code, _)| char::from_u32(code));
                TextTokenizer::Char(CharVocab::new(characters)?)
            }
        })
    }

    /// Returns what ends documents if the tokenizer has no token for it: a line break, if it has that.
    pub(super) fn separator(&self, tokenizer: &Tokenizer) -> Option<char> {
        let needed = self.documents > 1 && tokenizer.end_of_text().is_none();
        (needed && tokenizer.encode("\n").is_ok()).then_some('\n')
    }

    /// Chooses how to split, see [`super`].
    pub(super) fn rule(&self, val_fraction: f64, seed: u64) -> SplitRule {
        // Like nanoGPT's `int(n * 0.9)`.
        let train_chars = (self.chars as f64 * (1.0 - val_fraction)) as u64;
        let by_position = SplitRule::Position { train_chars };
        if self.documents == 1 {
            // A conversation is never split, so a single one goes to train.
            let train = SplitRule::Documents { seed, below: 0 };
            return if self.are_conversations { train } else { by_position };
        }
        let below = self.val_bound(val_fraction, seed);
        let of_val = (0..).zip(&self.lengths).filter(|(index, _)| hash([seed, *index]) < below);
        let val: u64 = of_val.map(|(_, length)| length).sum();
        let is_off = || is_off(val as f64 / self.chars as f64, val_fraction);
        if !self.are_conversations && self.documents < MANY && is_off() {
            return by_position;
        }
        SplitRule::Documents { seed, below }
    }

    /// Returns the bound below which the hash of a document sends it to val.
    fn val_bound(&self, val_fraction: f64, seed: u64) -> u64 {
        let mut hashes: Vec<u64> =
            (0..self.documents.min(MANY)).map(|document| hash([seed, document])).collect();
        hashes.sort_unstable();
        if self.documents < MANY {
            let wanted = (self.documents as f64 * val_fraction).round() as usize;
            let wanted = wanted.clamp(1, hashes.len() - 1);
            // The hash is a bijection of the index, so exactly `wanted` hashes are below.
            return hashes.get(wanted).copied().unwrap_or(u64::MAX);
        }
        let share = (val_fraction * 2_f64.powi(64)) as u64;
        share.max(hashes[0].saturating_add(1))
    }

    /// Returns an error if the input changed between the passes, which would move the split.
    pub(super) fn check_unchanged(&self, router: &Router<'_>) -> Result<(), DataError> {
        let same = (router.documents, router.chars) == (self.documents, self.chars);
        let more = router.documents >= self.documents && router.chars >= self.chars;
        if same || (!self.complete && more) {
            return Ok(());
        }
        let hint = "run the command again when no other program writes to it";
        Err(DataError::bad("the input changed while it was read", hint))
    }
}
