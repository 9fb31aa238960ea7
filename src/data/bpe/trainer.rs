//! Trains byte pairs on a stream of text, in bounded memory.

use std::collections::HashMap;

use fancy_regex::Regex;
use rayon::prelude::*;
use thread_local::ThreadLocal;
use tokenizers::models::bpe::{BPE, BpeTrainer};

use super::super::DataError;
use super::super::pieces::{PIECE, grow};
use super::super::spelling::{byte_character, spell};
use super::super::tokenizer_json::byte_level_file;
use super::Bpe;
use super::words::GPT2_WORDS;

/// The bytes of text that are counted. The rest of a longer text is left out, because the trainer counts pairs
/// in 31 bits.
const MOST_TEXT: u64 = 1 << 30;

/// The most different words that are kept. Beyond this, rare words are dropped, which merge last.
const MOST_WORDS: usize = 1 << 21;

/// The longest word in bytes. Longer ones are cut, because the time of a merge grows with the square of a
/// word's length. Only base64, DNA, or text without spaces has them.
const MOST_WORD: usize = 1 << 10;

/// No language has words of more bytes than this.
const LONG_WORD: usize = 64;

/// The most bytes of all different long words. A merge searches every word that has its pair, and most long
/// words have most pairs: 4 MiB take seconds.
const MOST_LONG_WORDS: usize = 4 << 20;

/// The longest token in bytes, as in GPT-2. In text that repeats itself without spaces, tokens would become as
/// long as words, and the time to check their merges grows with the square of their length.
const MOST_TOKEN: usize = 128;

/// Pieces of text that are counted at a time, by all threads.
const BATCH: usize = 32;

pub(in crate::data) struct WordCounts {
    /// One for each thread, because threads that share an expression, or clones of it, wait for its memory.
    words: ThreadLocal<Regex>,
    open: String,
    pieces: Vec<String>,
    counts: HashMap<String, u64>,
    bytes: u64,
    most_words: usize,
    /// The bytes of the long words in `counts`.
    long_words: usize,
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
            long_words: 0,
            vocab_size,
        })
    }

    /// Returns true if more text would not be counted.
    pub fn is_full(&self) -> bool {
        self.bytes >= MOST_TEXT
    }

    pub fn push(&mut self, text: &str) -> Result<(), DataError> {
        if self.is_full() {
            return Ok(());
        }
        self.bytes += text.len() as u64;
        grow(&mut self.open, text).into_iter().try_for_each(|piece| self.add(piece))
    }

    pub fn end_document(&mut self) -> Result<(), DataError> {
        // Short documents share a piece. At worst, two words are joined where they meet.
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
        for counts in counted {
            // Decided for a whole piece, because its words have no order.
            let is_full = self.long_words >= MOST_LONG_WORDS;
            for (word, count) in counts {
                let is_long = word.len() > LONG_WORD;
                if let Some(known) = self.counts.get_mut(&word) {
                    *known += count;
                } else if !(is_long && is_full) {
                    self.long_words += if is_long { word.len() } else { 0 };
                    self.counts.insert(word, count);
                }
            }
        }
        let mut rare = 1;
        while self.counts.len() > self.most_words {
            self.counts.retain(|_, count| *count > rare);
            rare *= 2;
            let lengths = self.counts.keys().map(String::len);
            self.long_words = lengths.filter(|length| *length > LONG_WORD).sum();
        }
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
            // The trainer compares with "less".
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
    /// The counted words, longest first, of a text that arrives in one part.
    fn counted(text: &str) -> Vec<(String, u64)> {
        let mut counts = WordCounts::new(300).unwrap();
        counts.push(text).unwrap();
        counts.pieces.push(std::mem::take(&mut counts.open));
        counts.count().unwrap();
        let mut words: Vec<_> = counts.counts.into_iter().collect();
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        words
    }

    #[test]
    fn a_long_word_is_cut_at_characters() {
        let letters = "x".repeat(MOST_WORD);
        let words = counted(&"x".repeat(3 * MOST_WORD + 5));
        assert_eq!(words, [(letters, 3), ("xxxxx".to_owned(), 1)]);
        // 1024 is not a multiple of three.
        let [(cut, 2), (rest, 1)] = &counted(&"\u{4e2d}".repeat(700))[..] else {
            panic!("two words")
        };
        assert_eq!((cut.len(), rest.len()), (1023, 54));
    }

    #[test]
    fn long_words_are_bounded_and_others_are_not() {
        let mut text = String::new();
        while text.len() < 2 * MOST_LONG_WORDS {
            let word = spelled(text.len() as u32).repeat(MOST_WORD / 8);
            text += &format!("{word} and {} ", spelled(text.len() as u32));
        }
        let words = counted(&format!("{text} final final"));
        let long: usize =
            words.iter().map(|(word, _)| word.len()).filter(|length| *length > LONG_WORD).sum();
        assert!((MOST_LONG_WORDS..MOST_LONG_WORDS + PIECE).contains(&long), "{long}");
        assert!(words.contains(&(" final".to_owned(), 2)));
    }

    #[test]
    fn tokens_end_before_a_text_that_repeats_itself() {
        let mut counts = WordCounts::new(5000).unwrap();
        counts.push(&"x".repeat(2 * PIECE)).unwrap();
        counts.end_document().unwrap();
        let bpe = counts.train().unwrap();
        let mut ids = Vec::new();
        bpe.encode_into(&"x".repeat(MOST_TOKEN * 3), &mut ids).unwrap();
        assert_eq!(ids.len(), 3);
    }
}
