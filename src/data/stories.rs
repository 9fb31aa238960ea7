//! The built-in corpus: short stories from a grammar with a known entropy.
//!
//! It needs no download, and a small character model learns it in about a thousand steps. Every
//! text has exactly one derivation, so the lowest loss that any model can reach can be computed.
//! The hero, place, thing and animal of a story return later in it, so a model must attend to its
//! beginning to predict them.

use super::grammar::{Grammar, Rng};

pub(super) const TRAIN_SEED: u64 = 1;
pub(super) const TRAIN_CHARACTERS: usize = 2_000_000;
pub(super) const VAL_SEED: u64 = 2;
pub(super) const VAL_CHARACTERS: usize = 200_000;

/// Tokens in the training split of the data set.
pub const TRAIN_TOKENS: u64 = 2_000_213;
pub const VAL_TOKENS: u64 = 200_188;
pub const VOCABULARY: u32 = 49;

pub(super) const ALPHABET: &str = "\n ,.ABCDEFGHIJKLMNOPRSTabcdefghijklmnopqrstuvwxyz";

/// The entropy of the corpus in nats per character: the entropy of a story divided by its mean length,
/// which is the entropy rate of a sequence of independent stories. The tests of the grammar compute it.
///
/// No model that sees the corpus from the start has a lower mean loss. A model that sees windows
/// misses the beginning of the first story in each, so its loss stays slightly above.
pub(super) const ENTROPY: f64 = 0.25165014314883233;

pub(super) fn grammar() -> Grammar {
    Grammar::built_in(include_str!("../../assets/grammars/stories.toml"))
}

/// Generates whole stories of at least `characters` characters in total. The text is ASCII; each
/// story is one line, followed by an empty line.
pub(super) fn generate(seed: u64, characters: usize) -> String {
    let mut text = String::with_capacity(characters.saturating_add(1_000));
    let grammar = grammar();
    let mut rng = Rng::new(seed);
    while text.len() < characters {
        grammar.generate(&mut rng, &mut text);
    }
    text
}

/// Returns the first `characters` characters of the training split.
pub(crate) fn excerpt(characters: usize) -> String {
    let mut text = generate(TRAIN_SEED, characters);
    // The text is ASCII.
    text.truncate(characters);
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_determines_the_text() {
        let text = generate(TRAIN_SEED, 10_000);
        assert_eq!(text, generate(TRAIN_SEED, 10_000));
        assert!(generate(TRAIN_SEED, 20_000).starts_with(&text));
        assert_ne!(text, generate(VAL_SEED, 10_000));
        // Pins the text: another one would change the data of `builtin:stories`.
        let pinned = "f8646e12c83b21a731d8c1bd93ac4d7708e32615d566a3911baaee842a974995";
        assert_eq!(blake3::hash(text.as_bytes()).to_hex().as_str(), pinned, "{}", &text[..800]);
    }

    #[test]
    fn stories_have_the_documented_form() {
        let text = generate(3, 50_000);
        assert!(text.is_ascii() && (50_000..51_000).contains(&text.len()));
        let stories: Vec<_> = text.split_terminator("\n\n").collect();
        for story in stories {
            assert!(!story.contains('\n'));
            let sentences = story.matches('.').count();
            assert!((2..=6).contains(&sentences), "{story}");
        }
        let characters: BTreeSet<char> = generate(TRAIN_SEED, TRAIN_CHARACTERS).chars().collect();
        assert!(ALPHABET.chars().eq(characters));
    }
}
