//! Text from a small probabilistic grammar whose entropy is known exactly.
//!
//! A story follows a plot, a sequence of scenes. Each scene is one sentence,
//! chosen from the templates of the scene; a template is text with slots:
//!
//! - `{hero}` the first time in a story draws a word from the list `hero`,
//!   evenly; later in the same story it repeats that word;
//! - `{hero.1}` is the second form of that word (forms are separated by `|`);
//! - `{*food}` draws a word for this place only.

use super::windows::hash;

/// Words for the slots of one name.
#[derive(Debug)]
pub(super) struct List {
    pub(super) name: &'static str,
    pub(super) words: &'static [&'static str],
}

/// The templates of a sentence, with weights.
pub(super) type Scene = &'static [(u32, &'static str)];

/// A weight and the scenes of a story, in order.
pub(super) type Plot = (u32, &'static [Scene]);

/// Lists, plots, and what stands between sentences and after a story.
#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) lists: &'static [List],
    pub(super) plots: &'static [Plot],
    pub(super) between: &'static str,
    pub(super) after: &'static str,
}

/// A piece of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Text(&'static str),
    Slot { list: usize, form: usize, fresh: bool },
}

/// The word of each list that this story has settled on.
type Facts = Vec<Option<usize>>;

/// What a story adds up to, exactly or for one story.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measure {
    /// `-ln p`, or its mean: the entropy.
    pub(super) nats: f64,
    /// Characters, or their mean.
    pub(super) characters: f64,
}

/// A counter-based source of choices, so that a seed means the same text in
/// every later version.
pub(super) struct Choices {
    seed: u64,
    counter: u64,
}

impl Choices {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, counter: 0 }
    }

    /// Evenly from `0..count`.
    fn below(&mut self, count: u64) -> u64 {
        let random = hash([self.seed, self.counter]);
        self.counter += 1;
        ((u128::from(random) * u128::from(count)) >> 64) as u64
    }

    /// An element by its weight, and the probability that it had.
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
    /// Appends one story to `text`; its probability is `e^-nats`.
    pub(super) fn tell(&self, choices: &mut Choices, text: &mut String) -> Measure {
        let start = text.len();
        let mut nats = 0.0;
        let mut facts: Facts = vec![None; self.lists.len()];
        if let Some((p, scenes)) = choices.weighted(self.plots) {
            nats -= p.ln();
            for (index, scene) in scenes.iter().enumerate() {
                if index > 0 {
                    text.push_str(self.between);
                }
                let Some((p, template)) = choices.weighted(scene) else {
                    continue;
                };
                nats -= p.ln();
                for piece in self.pieces(template) {
                    nats += self.say(piece, &mut facts, choices, text);
                }
            }
        }
        text.push_str(self.after);
        Measure { nats, characters: (text.len() - start) as f64 }
    }

    /// Appends one piece; the `-ln p` of its choice.
    fn say(
        &self,
        piece: Piece,
        facts: &mut Facts,
        choices: &mut Choices,
        text: &mut String,
    ) -> f64 {
        match piece {
            Piece::Text(literal) => {
                text.push_str(literal);
                0.0
            }
            Piece::Slot { list, form, fresh } => {
                let words = self.words(list);
                let fact = facts.get(list).copied().flatten().filter(|_| !fresh);
                let word = fact.unwrap_or_else(|| choices.below(words.len() as u64) as usize);
                text.push_str(words.get(word).map_or("", |word| spelled(word, form)));
                if fact.is_some() {
                    return 0.0;
                }
                if !fresh && let Some(fact) = facts.get_mut(list) {
                    *fact = Some(word);
                }
                (words.len() as f64).ln()
            }
        }
    }

    /// The entropy of a story and its mean length, exactly.
    ///
    /// By the chain rule the entropy is the mean over all derivations of the
    /// entropies of their choices, and the mean length is a sum of mean word
    /// lengths. Both hold because each text has one derivation, and because
    /// whether a slot repeats an earlier word depends on the templates chosen
    /// and not on the words.
    pub(super) fn expectation(&self) -> Measure {
        let known = vec![false; self.lists.len()];
        let mut sum = Measure::default();
        for &(weight, scenes) in self.plots {
            let p = f64::from(weight) / total(self.plots) as f64;
            let story = self.expect_scenes(scenes, &known);
            let joints = scenes.len().saturating_sub(1) * self.between.len() + self.after.len();
            sum.nats += p * (story.nats - p.ln());
            sum.characters += p * (story.characters + joints as f64);
        }
        sum
    }

    /// The rest of a story, `known` being the lists it has settled on.
    fn expect_scenes(&self, scenes: &[Scene], known: &[bool]) -> Measure {
        let mut sum = Measure::default();
        let Some((scene, rest)) = scenes.split_first() else {
            return sum;
        };
        for &(weight, template) in *scene {
            let p = f64::from(weight) / total(scene) as f64;
            let mut known = known.to_vec();
            let mut nats = -p.ln();
            let mut characters = 0.0;
            for piece in self.pieces(template) {
                match piece {
                    Piece::Text(literal) => characters += literal.len() as f64,
                    Piece::Slot { list, form, fresh } => {
                        let words = self.words(list);
                        let letters: usize = words.iter().map(|w| spelled(w, form).len()).sum();
                        characters += letters as f64 / words.len() as f64;
                        match known.get_mut(list) {
                            Some(known) if !fresh && *known => {}
                            Some(known) => {
                                *known |= !fresh;
                                nats += (words.len() as f64).ln();
                            }
                            None => {}
                        }
                    }
                }
            }
            let rest = self.expect_scenes(rest, &known);
            sum.nats += p * (nats + rest.nats);
            sum.characters += p * (characters + rest.characters);
        }
        sum
    }

    /// Every text that a story can contain a part of: templates, words and
    /// joints. For the alphabet.
    pub(super) fn literals(&self) -> impl Iterator<Item = &'static str> {
        let words = self.lists.iter().flat_map(|list| list.words);
        let forms = words.flat_map(|word| word.split('|'));
        let scenes = self.plots.iter().flat_map(|(_, scenes)| *scenes);
        let pieces =
            scenes.flat_map(|scene| *scene).flat_map(|(_, template)| self.pieces(template));
        let texts = pieces.filter_map(|piece| match piece {
            Piece::Text(text) => Some(text),
            Piece::Slot { .. } => None,
        });
        forms.chain(texts).chain([self.between, self.after])
    }

    fn words(&self, list: usize) -> &'static [&'static str] {
        self.lists.get(list).map_or(&[], |list| list.words)
    }

    fn pieces(&self, template: &'static str) -> impl Iterator<Item = Piece> {
        template.split('{').flat_map(|part| {
            let (slot, text) = match part.split_once('}') {
                Some((slot, text)) => (Some(self.slot(slot)), text),
                None => (None, part),
            };
            let text = Some(Piece::Text(text)).filter(|_| !text.is_empty());
            slot.into_iter().chain(text)
        })
    }

    /// A name that no list has stays in the text in its braces, where a test
    /// finds it.
    fn slot(&self, slot: &'static str) -> Piece {
        let bare = slot.trim_start_matches('*');
        let (name, form) = bare.split_once('.').unwrap_or((bare, "0"));
        let list = self.lists.iter().position(|list| list.name == name);
        match (list, form.parse()) {
            (Some(list), Ok(form)) => Piece::Slot { list, form, fresh: bare.len() < slot.len() },
            _ => Piece::Text(slot),
        }
    }
}

fn spelled(word: &'static str, form: usize) -> &'static str {
    word.split('|').nth(form).unwrap_or_default()
}

#[cfg(test)]
mod tests;
