//! A small probabilistic grammar for text.
//!
//! A story follows a plot, a sequence of scenes. Each scene is one sentence, chosen from the
//! templates of the scene. A template is text with slots:
//!
//! - `{hero}` draws a word uniformly from the list `hero` at its first use in a story, and repeats
//!   that word later in the same story;
//! - `{hero.1}` is the second form of that word (forms are separated by `|`);
//! - `{*food}` draws a new word for this slot only.

use super::windows::hash;

/// A name, and the words for slots of this name.
pub type List = (&'static str, &'static [&'static str]);

/// The templates of a sentence, with weights.
pub type Scene = &'static [(u32, &'static str)];

/// A weight and the scenes of a story, in order.
pub type Plot = (u32, &'static [Scene]);

#[derive(Debug)]
pub struct Grammar {
    pub lists: &'static [List],
    pub plots: &'static [Plot],
    pub separator: &'static str,
    pub terminator: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplatePiece {
    Text(&'static str),
    Slot { list: usize, form: usize, fresh: bool },
}

/// The word of each list that a story repeats, once drawn.
type Drawn = Vec<Option<usize>>;

/// A counter-based random number generator. It is not from a library, so that a seed gives the same
/// text in every version.
pub struct Rng {
    seed: u64,
    counter: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { seed, counter: 0 }
    }

    /// Draws uniformly from `0..count`.
    fn below(&mut self, count: u64) -> u64 {
        let random = hash([self.seed, self.counter]);
        self.counter += 1;
        ((u128::from(random) * u128::from(count)) >> 64) as u64
    }

    fn weighted<T: Copy + Default>(&mut self, from: &[(u32, T)]) -> T {
        let mut left = self.below(from.iter().map(|&(weight, _)| u64::from(weight)).sum());
        for &(weight, item) in from {
            let Some(rest) = left.checked_sub(weight.into()) else { return item };
            left = rest;
        }
        T::default()
    }
}

impl Grammar {
    pub fn generate(&self, rng: &mut Rng, text: &mut String) {
        let mut drawn: Drawn = vec![None; self.lists.len()];
        for (index, scene) in rng.weighted(self.plots).iter().enumerate() {
            if index > 0 {
                text.push_str(self.separator);
            }
            for piece in self.pieces(rng.weighted(scene)) {
                match piece {
                    TemplatePiece::Text(literal) => text.push_str(literal),
                    TemplatePiece::Slot { list, form, fresh } => {
                        let words = self.words(list);
                        let repeated = drawn[list].filter(|_| !fresh);
                        let word =
                            repeated.unwrap_or_else(|| rng.below(words.len() as u64) as usize);
                        text.push_str(word_form(words[word], form));
                        if !fresh {
                            drawn[list] = Some(word);
                        }
                    }
                }
            }
        }
        text.push_str(self.terminator);
    }

    fn words(&self, list: usize) -> &'static [&'static str] {
        self.lists[list].1
    }

    fn pieces(&self, template: &'static str) -> impl Iterator<Item = TemplatePiece> {
        template.split('{').flat_map(|part| {
            let (slot, text) = match part.split_once('}') {
                Some((slot, text)) => (Some(self.slot(slot)), text),
                None => (None, part),
            };
            let text = Some(TemplatePiece::Text(text)).filter(|_| !text.is_empty());
            slot.into_iter().chain(text)
        })
    }

    /// Parses a slot. An unknown name becomes text, which a test finds.
    fn slot(&self, slot: &'static str) -> TemplatePiece {
        let bare = slot.trim_start_matches('*');
        let (name, form) = bare.split_once('.').unwrap_or((bare, "0"));
        let list = self.lists.iter().position(|(found, _)| *found == name);
        match (list, form.parse()) {
            (Some(list), Ok(form)) => {
                TemplatePiece::Slot { list, form, fresh: bare.len() < slot.len() }
            }
            _ => TemplatePiece::Text(slot),
        }
    }
}

fn word_form(word: &'static str, form: usize) -> &'static str {
    word.split('|').nth(form).unwrap_or_default()
}

#[cfg(test)]
mod tests;
