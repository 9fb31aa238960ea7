//! A small probabilistic grammar for text, written in TOML.
//!
//! A story follows a plot, a sequence of scenes. Each scene is one sentence, chosen from the
//! templates of the scene. A template is text with slots:
//!
//! - `{hero}` draws a word uniformly from the list `hero` at its first use in a story, and repeats
//!   that word later in the same story;
//! - `{hero.1}` is the second form of that word (forms are separated by `|`);
//! - `{*food}` draws a new word for this slot only.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::windows;

/// Texts with their weights.
type Choices = Vec<(u32, String)>;

#[derive(Deserialize)]
pub struct Grammar {
    /// The names of the scenes of a story, in order, with a space between them.
    plots: Choices,
    /// The templates of each scene.
    scenes: BTreeMap<String, Choices>,
    /// The words for slots of this name.
    pub words: BTreeMap<String, Vec<String>>,
    separator: String,
    terminator: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplatePiece<'a> {
    Text(&'a str),
    Slot { list: &'a str, words: &'a [String], form: usize, fresh: bool },
}

/// The word of each list that a story repeats, once drawn.
type Drawn<'a> = BTreeMap<&'a str, &'a str>;

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
    pub fn below(&mut self, count: u64) -> u64 {
        let drawn = windows::below([self.seed, self.counter], count);
        self.counter += 1;
        drawn
    }

    fn weighted<'a>(&mut self, from: &'a [(u32, String)]) -> &'a str {
        let mut left = self.below(from.iter().map(|&(weight, _)| u64::from(weight)).sum());
        for (weight, text) in from {
            let Some(rest) = left.checked_sub((*weight).into()) else { return text };
            left = rest;
        }
        ""
    }
}

impl Grammar {
    /// Parses a grammar that is a part of the program.
    pub fn built_in(text: &str) -> Self {
        toml::from_str(text).expect("the tests parse the built-in grammars")
    }

    pub fn generate(&self, rng: &mut Rng, text: &mut String) {
        let plot = rng.weighted(&self.plots);
        self.follow(plot, rng, text);
    }

    /// Writes a story with these scenes.
    pub fn follow(&self, plot: &str, rng: &mut Rng, text: &mut String) {
        let mut drawn = Drawn::new();
        for (index, scene) in plot.split(' ').enumerate() {
            if index > 0 {
                text.push_str(&self.separator);
            }
            for piece in self.pieces(rng.weighted(&self.scenes[scene])) {
                match piece {
                    TemplatePiece::Text(literal) => text.push_str(literal),
                    TemplatePiece::Slot { list, words, form, fresh } => {
                        let repeated = drawn.get(list).filter(|_| !fresh).copied();
                        let word = repeated
                            .unwrap_or_else(|| &words[rng.below(words.len() as u64) as usize]);
                        text.push_str(word_form(word, form));
                        if !fresh {
                            drawn.insert(list, word);
                        }
                    }
                }
            }
        }
        text.push_str(&self.terminator);
    }

    fn pieces<'a>(&'a self, template: &'a str) -> impl Iterator<Item = TemplatePiece<'a>> {
        template.split('{').flat_map(|part| {
            let (slot, text) = match part.split_once('}') {
                Some((slot, text)) => (Some(self.slot(slot)), text),
                None => (None, part),
            };
            slot.into_iter().chain([TemplatePiece::Text(text)])
        })
    }

    /// Parses a slot. An unknown name becomes text, which a test finds.
    fn slot<'a>(&'a self, slot: &'a str) -> TemplatePiece<'a> {
        let bare = slot.trim_start_matches('*');
        let (list, form) = bare.split_once('.').unwrap_or((bare, "0"));
        match (self.words.get(list), form.parse()) {
            (Some(words), Ok(form)) => {
                TemplatePiece::Slot { list, words, form, fresh: bare.len() < slot.len() }
            }
            _ => TemplatePiece::Text(slot),
        }
    }
}

fn word_form(word: &str, form: usize) -> &str {
    word.split('|').nth(form).unwrap_or_default()
}

#[cfg(test)]
mod tests;
