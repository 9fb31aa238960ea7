//! How well a text can be predicted from a few tokens before each: the scale on which the losses of
//! different texts compare.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::windows::hash;
use super::{DataError, Dataset, Split, Tokenizer};

/// The tokens before a token that predict it.
const ORDER: usize = 4;

/// The tokens that are counted of the training split and predicted of the validation split, in so many parts
/// that are evenly spread.
const COUNTED: u64 = 1 << 18;
const PREDICTED: u64 = 1 << 15;
const PARTS: u64 = 16;

/// Returns the bits per byte of the validation split under a Markov model of order 4 with Witten-Bell smoothing (Witten
/// and Bell 1991, "The zero-frequency problem") that has seen a part of the training split. `None` if the bytes of the
/// tokens are unknown, and for conversations.
pub fn markov_bits(dataset: &Dataset) -> Result<Option<f64>, DataError> {
    // In conversations only a part of the tokens counts.
    let tokenizer = dataset.tokenizer.as_ref().filter(|_| !dataset.val.has_conversations());
    let Some(lengths) = tokenizer.map(Tokenizer::byte_lengths) else { return Ok(None) };
    let mut counts = Counts::default();
    for part in parts(&dataset.train, COUNTED)? {
        counts.add(&part);
    }
    let (mut bits, mut bytes) = (0.0, 0u64);
    for part in parts(&dataset.val, PREDICTED)? {
        bits += counts.bits(&part, dataset.vocab_size);
        let length = |id: &u32| u64::from(lengths.get(*id as usize).copied().unwrap_or(0));
        bytes += part.iter().map(length).sum::<u64>();
    }
    Ok((bytes > 0).then(|| bits / bytes as f64))
}

/// Returns evenly spread parts of a split with `wanted` tokens in all, or all of a smaller one. The last one ends with
/// the split: the validation text follows there, and is predicted far better by what comes right before it.
fn parts(split: &Split, wanted: u64) -> Result<Vec<Vec<u32>>, DataError> {
    if split.len() <= wanted {
        return Ok(vec![split.window(0, split.len() as usize)?]);
    }
    let length = wanted / PARTS;
    let start = |part: u64| (split.len() - length) * part / (PARTS - 1);
    (0..PARTS).map(|part| split.window(start(part), length as usize)).collect()
}

/// How often tokens follow contexts of up to [`ORDER`] tokens. A context is a hash of its tokens.
#[derive(Default)]
struct Counts {
    /// The tokens that followed a context, and how many different ones.
    contexts: HashMap<u64, (u32, u32)>,
    /// How often a token followed a context, by the hash of both.
    pairs: HashMap<u64, u32>,
}

impl Counts {
    fn add(&mut self, tokens: &[u32]) {
        for (at, token) in tokens.iter().enumerate() {
            for context in contexts(&tokens[..at]) {
                let (all, different) = self.contexts.entry(context).or_default();
                *all += 1;
                match self.pairs.entry(followed(context, *token)) {
                    Entry::Occupied(mut pair) => *pair.get_mut() += 1,
                    Entry::Vacant(pair) => {
                        pair.insert(1);
                        *different += 1;
                    }
                }
            }
        }
    }

    /// Returns the bits that all tokens take together.
    fn bits(&self, tokens: &[u32], vocab: u32) -> f64 {
        let bits = |(at, token): (usize, &u32)| {
            let mut probability = 1.0 / f64::from(vocab.max(1));
            for context in contexts(&tokens[..at]) {
                let Some((all, different)) = self.contexts.get(&context) else { break };
                let count = self.pairs.get(&followed(context, *token)).copied().unwrap_or(0);
                let [all, different, count] = [*all, *different, count].map(f64::from);
                probability = (count + different * probability) / (all + different);
            }
            -probability.log2()
        };
        tokens.iter().enumerate().map(bits).sum()
    }
}

/// Returns the contexts of the token after `before`, from none to the longest.
fn contexts(before: &[u32]) -> impl Iterator<Item = u64> {
    let longer = before.iter().rev().take(ORDER);
    let mut context = 0;
    std::iter::once(context).chain(longer.map(move |token| {
        context = followed(context, *token);
        context
    }))
}

fn followed(context: u64, token: u32) -> u64 {
    hash([context, u64::from(token)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BUILTIN_CHATS, BUILTIN_STORIES};

    #[test]
    fn a_known_next_token_takes_few_bits() {
        let mut counts = Counts::default();
        counts.add(&[0, 1, 0, 1, 0, 1, 0, 1]);
        // Seen four times after nothing, of two different ones: (4 + 2 / 2) / (8 + 2).
        assert_eq!(counts.bits(&[0], 2), 1.0);
        // After 0 there was always 1, four times: (4 + 1 x 1/2) / (4 + 1).
        assert!((counts.bits(&[0, 1], 2) - 1.0 + 0.9f64.log2()).abs() < 1e-12);
        // A context that was never seen says nothing.
        assert!(
            (counts.bits(&[7, 0], 8) - counts.bits(&[7], 8) - counts.bits(&[0], 8)).abs() < 1e-12
        );
    }

    #[test]
    fn the_stories_are_easy_to_predict() {
        let bits = |name| markov_bits(&Dataset::open(name, 1).unwrap()).unwrap();
        let stories = bits(BUILTIN_STORIES).unwrap();
        // Their entropy is 0.36 bits per character.
        assert!((0.5..1.5).contains(&stories), "{stories}");
        assert_eq!(bits(BUILTIN_CHATS), None);
    }
}
