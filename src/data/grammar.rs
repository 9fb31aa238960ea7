//! A small probabilistic grammar for text, with an entropy that can be computed exactly.
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
pub(super) type List = (&'static str, &'static [&'static str]);

/// The templates of a sentence, with weights.
pub(super) type Scene = &'static [(u32, &'static str)];

/// A weight and the scenes of a story, in order.
pub(super) type Plot = (u32, &'static [Scene]);

#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) lists: &'static [List],
    pub(super) plots: &'static [Plot],
    /// The text between two sentences.
    pub(super) separator: &'static str,
    /// The text after a story.
    pub(super) terminator: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplatePiece {
    Text(&'static str),
    Slot { list: usize, form: usize, fresh: bool },
}

/// The word of each list that a story repeats, once drawn.
type Drawn = Vec<Option<usize>>;

/// The information and length of a story, or their means over all stories.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measure {
    /// `-ln p` of a story, or its mean, which is the entropy.
    pub(super) nats: f64,
    pub(super) characters: f64,
}

/// A counter-based random number generator. It is not from a library, so that a seed gives the same
/// text in every version.
pub(super) struct Rng {
    seed: u64,
    counter: u64,
}

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, counter: 0 }
    }

    /// Draws uniformly from `0..count`.
    fn below(&mut self, count: u64) -> u64 {
        let random = hash([self.seed, self.counter]);
        self.counter += 1;
        ((u128::from(random) * u128::from(count)) >> 64) as u64
    }

    /// Draws an element by its weight, and returns its probability too.
    fn weighted<T: Copy>(&mut self, from: &[(u32, T)]) -> Option<(f64, T)> {
        let mut left = self.below(total(from));
        for &(weight, item) in from {
            let weight = u64::from(weight);
            if left < weight {
                return Some((weight as f64 / total(from) as f64, item));
            }
            left -= weight;
        }
        None
    }
}

fn total<T>(of: &[(u32, T)]) -> u64 {
    of.iter().map(|&(weight, _)| u64::from(weight)).sum()
}

impl Grammar {
    /// Appends a random story to `text`; its probability is `e^-nats`.
    pub(super) fn generate(&self, rng: &mut Rng, text: &mut String) -> Measure {
        let start = text.len();
        let mut nats = 0.0;
        let mut drawn: Drawn = vec![None; self.lists.len()];
        if let Some((p, scenes)) = rng.weighted(self.plots) {
            nats -= p.ln();
            for (index, scene) in scenes.iter().enumerate() {
                if index > 0 {
                    text.push_str(self.separator);
                }
                let Some((p, template)) = rng.weighted(scene) else {
                    continue;
                };
                nats -= p.ln();
                for piece in self.pieces(template) {
                    nats += self.append(piece, &mut drawn, rng, text);
                }
            }
        }
        text.push_str(self.terminator);
        Measure { nats, characters: (text.len() - start) as f64 }
    }

    /// Appends one piece and returns the `-ln p` of its word.
    fn append(
        &self,
        piece: TemplatePiece,
        drawn: &mut Drawn,
        rng: &mut Rng,
        text: &mut String,
    ) -> f64 {
        match piece {
            TemplatePiece::Text(literal) => {
                text.push_str(literal);
                0.0
            }
            TemplatePiece::Slot { list, form, fresh } => {
                let words = self.words(list);
                let repeated = drawn.get(list).copied().flatten().filter(|_| !fresh);
                let word = repeated.unwrap_or_else(|| rng.below(words.len() as u64) as usize);
                text.push_str(words.get(word).map_or("", |word| word_form(word, form)));
                if repeated.is_some() {
                    return 0.0;
                }
                if !fresh && let Some(entry) = drawn.get_mut(list) {
                    *entry = Some(word);
                }
                (words.len() as f64).ln()
            }
        }
    }

    /// Computes the entropy and the mean length of a story.
    ///
    /// By the chain rule, the entropy is the mean over all derivations of the sum of the entropies
    /// of their choices, and the mean length is a sum of mean word lengths. This holds because each
    /// text has one derivation, and because the templates alone determine whether a slot repeats a
    /// word.
    pub(super) fn expectation(&self) -> Measure {
        let drawn = vec![false; self.lists.len()];
        let mut sum = Measure::default();
        for &(weight, scenes) in self.plots {
            let p = f64::from(weight) / total(self.plots) as f64;
            let story = self.scenes_expectation(scenes, &drawn);
            let separators = scenes.len().saturating_sub(1) * self.separator.len();
            let fixed = separators + self.terminator.len();
            sum.nats += p * (story.nats - p.ln());
            sum.characters += p * (story.characters + fixed as f64);
        }
        sum
    }

    /// Computes the expectation for the rest of a story. `drawn` marks the lists that have a word.
    fn scenes_expectation(&self, scenes: &[Scene], drawn: &[bool]) -> Measure {
        let mut sum = Measure::default();
        let Some((scene, rest)) = scenes.split_first() else {
            return sum;
        };
        for &(weight, template) in *scene {
            let p = f64::from(weight) / total(scene) as f64;
            let mut drawn = drawn.to_vec();
            let mut nats = -p.ln();
            let mut characters = 0.0;
            for piece in self.pieces(template) {
                match piece {
                    TemplatePiece::Text(literal) => characters += literal.len() as f64,
                    TemplatePiece::Slot { list, form, fresh } => {
                        let words = self.words(list);
                        let length: usize = words.iter().map(|w| word_form(w, form).len()).sum();
                        characters += length as f64 / words.len() as f64;
                        match drawn.get_mut(list) {
                            Some(drawn) if !fresh && *drawn => {}
                            Some(drawn) => {
                                *drawn |= !fresh;
                                nats += (words.len() as f64).ln();
                            }
                            None => {}
                        }
                    }
                }
            }
            let rest = self.scenes_expectation(rest, &drawn);
            sum.nats += p * (nats + rest.nats);
            sum.characters += p * (characters + rest.characters);
        }
        sum
    }

    /// Yields all text that stories are composed of: words, templates without slots, separator and
    /// terminator.
    pub(super) fn literals(&self) -> impl Iterator<Item = &'static str> {
        let words = self.lists.iter().flat_map(|(_, words)| *words);
        let forms = words.flat_map(|word| word.split('|'));
        let scenes = self.plots.iter().flat_map(|(_, scenes)| *scenes);
        let pieces =
            scenes.flat_map(|scene| *scene).flat_map(|(_, template)| self.pieces(template));
        let texts = pieces.filter_map(|piece| match piece {
            TemplatePiece::Text(text) => Some(text),
            TemplatePiece::Slot { .. } => None,
        });
        forms.chain(texts).chain([self.separator, self.terminator])
    }

    fn words(&self, list: usize) -> &'static [&'static str] {
        self.lists.get(list).map_or(&[], |(_, words)| *words)
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
