//! Trains byte pairs on a stream of text, in bounded memory.

use std::collections::HashMap;

use fancy_regex::Regex;
use rayon::prelude::*;
use thread_local::ThreadLocal;
use tokenizers::models::bpe::{BPE, BpeTrainer};

use super::super::DataError;
use super::super::pieces::{PIECE, grow};
use super::super::tokenizer_files::{byte_character, byte_level_file, spell};
use super::Bpe;
use super::words::GPT2_WORDS;

/// The text that is counted, in bytes: the beginning of a longer one. The trainer counts pairs in 31
/// bits.
const MOST_TEXT: u64 = 1 << 30;

/// The most different words that are kept. Rare ones are dropped beyond it: they merge last.
const MOST_WORDS: usize = 1 << 21;

/// The longest word in bytes. Longer ones are cut, because the time of a merge grows with the square of a
/// word's length. Only base64, DNA, or text without spaces has them.
const MOST_WORD: usize = 1 << 10;

/// The bytes of all different words, beyond which no more text is counted. The trainer needs 32 bytes for
/// each. Words of a language stay far below, [`MOST_WORDS`] of long ones do not.
const MOST_WORD_BYTES: usize = 32 << 20;

/// The longest token in bytes, as in GPT-2. In a text that repeats itself without a space, tokens would
/// become as long as words, and checking their merges takes the square of their length.
const MOST_TOKEN: usize = 128;

/// Pieces of text that are counted at a time, by all threads.
const BATCH: usize = 32;

pub(in crate::data) struct WordCounts {
    /// For each thread, because threads that search with the same expression, or a clone of it, wait for its
    /// memory.
    words: ThreadLocal<Regex>,
    open: String,
    pieces: Vec<String>,
    counts: HashMap<String, u64>,
    bytes: u64,
    most_words: usize,
    word_bytes: usize,
    vocab_size: u32,
}

impl WordCounts {
    /// Counts words for a vocabulary of at most `vocab_size` tokens.
    pub fn new(vocab_size: u32) -> Result<Self, DataError> {
        Ok(Self {
            words: ThreadLocal::new(),
            open: String::new(),
            pieces: Vec::new(),
            counts: HashMap::new(),
            bytes: 0,
            most_words: MOST_WORDS,
            word_bytes: 0,
            vocab_size,
        })
    }

    /// Returns true if more text would not be counted.
    pub fn is_full(&self) -> bool {
        self.bytes >= MOST_TEXT || self.word_bytes >= MOST_WORD_BYTES
    }

    pub fn push(&mut self, text: &str) -> Result<(), DataError> {
        if self.is_full() {
            return Ok(());
        }
        self.bytes += text.len() as u64;
        grow(&mut self.open, text).into_iter().try_for_each(|piece| self.add(piece))
    }

    pub fn end_document(&mut self) -> Result<(), DataError> {
        // Short documents share a piece: two words are joined at most where they meet.
        if self.open.len() > PIECE / 2 {
            let piece = std::mem::take(&mut self.open);
            return self.add(piece);
        }
        self.open.push('\n');
        Ok(())
    }

    fn add(&mut self, piece: String) -> Result<(), DataError> {
        self.pieces.push(piece);
        if self.pieces.len() < BATCH { Ok(()) } else { self.count() }
    }

    fn count(&mut self) -> Result<(), DataError> {
        let of_piece = |piece: &String| -> Result<HashMap<String, u64>, DataError> {
            let words = self.words.get_or_try(|| Regex::new(GPT2_WORDS));
            let words = words.map_err(DataError::tokenize)?;
            let mut counts = HashMap::new();
            for word in words.find_iter(piece) {
                let mut rest = word.map_err(DataError::tokenize)?.as_str();
                while !rest.is_empty() {
                    let (word, after) = rest.split_at(rest.floor_char_boundary(MOST_WORD));
                    rest = after;
                    // Most words are known, so that their text need not be copied.
                    if let Some(count) = counts.get_mut(word) {
                        *count += 1;
                    } else {
                        counts.insert(word.to_owned(), 1);
                    }
                }
            }
            Ok(counts)
        };
        let counted: Vec<_> = self.pieces.par_iter().map(of_piece).collect::<Result<_, _>>()?;
        self.pieces.clear();
        for (word, count) in counted.into_iter().flatten() {
            *self.counts.entry(word).or_default() += count;
        }
        let mut rare = 1;
        while self.counts.len() > self.most_words {
            self.counts.retain(|_, count| *count > rare);
            rare *= 2;
        }
        self.word_bytes = self.counts.keys().map(String::len).sum();
        Ok(())
    }

    /// Trains a tokenizer: the 256 bytes, the merges, and the end of a document. A short text has fewer
    /// tokens.
    pub fn train(mut self) -> Result<Bpe, DataError> {
        self.pieces.push(std::mem::take(&mut self.open));
        self.count()?;
        let spelled = |(word, count): (String, u64)| (spell(word.as_bytes()).into(), count);
        let words = self.counts.into_iter().map(spelled);
        let trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(self.vocab_size as usize - 1)
            // A pair that occurs once is no pattern.
            .min_frequency(2)
            // It compares with "less".
            .max_token_length(Some(MOST_TOKEN + 1))
            .initial_alphabet((0..=u8::MAX).map(byte_character).collect())
            .build();
        let mut model = BPE::default();
        trainer.do_train(&words.collect(), &mut model).map_err(DataError::tokenize)?;
        let model = serde_json::to_value(&model).map_err(DataError::tokenize)?;
        let vocab = model["vocab"].as_object().cloned().unwrap_or_default();
        // The end of a document is the last token.
        Bpe::parse(&byte_level_file(vocab, &model["merges"], true)).map_err(DataError::tokenize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_words_are_dropped_beyond_the_limit() {
        let mut counts = WordCounts { most_words: 1000, ..WordCounts::new(300).unwrap() };
        for number in 0..60_000_u32 {
            let letter = char::from(b'a' + (number % 26) as u8);
            counts.push(&format!(" number{letter} common {}", spelled(number))).unwrap();
        }
        counts.end_document().unwrap();
        counts.count().unwrap();
        assert!(counts.counts.len() <= 1000, "{}", counts.counts.len());
        let bpe = counts.train().unwrap();
        let mut ids = Vec::new();
        bpe.encode_into(" common", &mut ids).unwrap();
        assert_eq!(ids.len(), 1);
    }

    /// A word of letters for each number.
    fn spelled(number: u32) -> String {
        number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
    }

    #[test]
    fn documents_and_parts_do_not_change_a_long_text() {
        let text = "It's a small text with 3 numbers: 1, 22 and 333.\n".repeat(20_000);
        let train = |part: usize| {
            let mut counts = WordCounts::new(320).unwrap();
            for part in text.as_bytes().chunks(part) {
                counts.push(str::from_utf8(part).unwrap()).unwrap();
            }
            counts.end_document().unwrap();
            counts.train().unwrap()
        };
        assert_eq!(train(1 << 20), train(777));
    }
}
