use std::collections::BTreeSet;

use super::super::stories::{self, ENTROPY};
use super::*;

/// A partial derivation of a text: the rest of the text, the drawn words, `-ln p`.
type Partial<'a> = (&'a str, Drawn<'a>, f64);

/// Returns each text with its probability.
fn shares(of: &[(u32, String)]) -> impl Iterator<Item = (f64, &str)> {
    let total: u32 = of.iter().map(|(weight, _)| weight).sum();
    of.iter().map(move |(weight, text)| (f64::from(*weight) / f64::from(total), text.as_str()))
}

impl Grammar {
    /// Returns the `-ln p` of every derivation of `text` as one story.
    fn derivations(&self, text: &str) -> Vec<f64> {
        let mut found = vec![];
        for (p, plot) in shares(&self.plots) {
            let mut partials: Vec<Partial<'_>> = vec![(text, Drawn::new(), -p.ln())];
            for (index, scene) in plot.split(' ').enumerate() {
                if index > 0 {
                    partials = literal(partials, &self.separator);
                }
                let alternatives = shares(&self.scenes[scene]).flat_map(|(p, template)| {
                    let start = partials.iter().cloned();
                    let start = start.map(|(rest, drawn, nats)| (rest, drawn, nats - p.ln()));
                    self.pieces(template).fold(start.collect(), parse)
                });
                partials = alternatives.collect();
            }
            partials = literal(partials, &self.terminator);
            let complete = partials.iter().filter(|(rest, ..)| rest.is_empty());
            found.extend(complete.map(|&(_, _, nats)| nats));
        }
        found
    }

    /// Computes the entropy in nats and the mean length of a story. `drawn` marks the lists that have a
    /// word.
    ///
    /// By the chain rule, the entropy is the mean over all derivations of the sum of the entropies
    /// of their choices, and the mean length is a sum of mean word lengths. This holds because each
    /// text has one derivation, and because the templates alone determine whether a slot repeats a
    /// word.
    fn expectation(&self, scenes: &[&str], drawn: &BTreeSet<&str>) -> (f64, f64) {
        let Some((scene, rest)) = scenes.split_first() else {
            return (0.0, self.terminator.len() as f64);
        };
        let mut sum = (0.0, 0.0);
        for (p, template) in shares(&self.scenes[*scene]) {
            let mut drawn = drawn.clone();
            let between = if rest.is_empty() { "" } else { self.separator.as_str() };
            let (mut nats, mut characters) = (-p.ln(), between.len() as f64);
            for piece in self.pieces(template) {
                match piece {
                    TemplatePiece::Text(literal) => characters += literal.len() as f64,
                    TemplatePiece::Slot { list, words, form, fresh } => {
                        let length: usize = words.iter().map(|w| word_form(w, form).len()).sum();
                        characters += length as f64 / words.len() as f64;
                        if fresh || drawn.insert(list) {
                            nats += (words.len() as f64).ln();
                        }
                    }
                }
            }
            let rest = self.expectation(rest, &drawn);
            sum = (sum.0 + p * (nats + rest.0), sum.1 + p * (characters + rest.1));
        }
        sum
    }
}

fn parse<'a>(partials: Vec<Partial<'a>>, piece: TemplatePiece<'a>) -> Vec<Partial<'a>> {
    let (list, words, form, fresh) = match piece {
        TemplatePiece::Text(text) => return literal(partials, text),
        TemplatePiece::Slot { list, words, form, fresh } => (list, words, form, fresh),
    };
    let mut found = vec![];
    for (rest, drawn, nats) in partials {
        let repeated = drawn.get(list).filter(|_| !fresh).copied();
        for word in words {
            let Some(after) = rest.strip_prefix(word_form(word, form)) else { continue };
            if repeated.is_none_or(|repeated| repeated == word) {
                let mut drawn = drawn.clone();
                if !fresh {
                    drawn.insert(list, word);
                }
                let choice = if repeated.is_some() { 0.0 } else { (words.len() as f64).ln() };
                found.push((after, drawn, nats + choice));
            }
        }
    }
    found
}

fn literal<'a>(partials: Vec<Partial<'a>>, text: &str) -> Vec<Partial<'a>> {
    let strip = |(rest, drawn, nats): Partial<'a>| Some((rest.strip_prefix(text)?, drawn, nats));
    partials.into_iter().filter_map(strip).collect()
}

/// Also checks that no other grammar than the documented one gives the entropy: the mean over stories is
/// near the exact value.
#[test]
fn every_story_has_one_derivation_and_the_entropy_is_their_mean() {
    let grammar = stories::grammar();
    let (mut entropy, mut length) = (0.0, 0.0);
    for (p, plot) in shares(&grammar.plots) {
        let scenes: Vec<&str> = plot.split(' ').collect();
        let (nats, characters) = grammar.expectation(&scenes, &BTreeSet::new());
        (entropy, length) = (entropy + p * (nats - p.ln()), length + p * characters);
    }
    assert!((entropy / length - ENTROPY).abs() < 1e-14, "{entropy} / {length}");

    let mut rng = Rng::new(11);
    let stories: Vec<(f64, f64)> = (0..4_000)
        .map(|_| {
            let mut text = String::new();
            grammar.generate(&mut rng, &mut text);
            let [nats] = grammar.derivations(&text)[..] else { panic!("not one: {text}") };
            let changed = text.replacen('a', "q", 1);
            assert!(grammar.derivations(&changed).is_empty(), "{changed}");
            (nats, text.len() as f64)
        })
        .collect();
    let n = stories.len() as f64;
    let of_rate = |&(nats, characters): &(f64, f64)| nats - ENTROPY * characters;
    for (what, exact, values) in [
        ("nats", entropy, stories.iter().map(|story| story.0).collect::<Vec<_>>()),
        ("characters", length, stories.iter().map(|story| story.1).collect()),
        // Its mean is 0 by the renewal theorem: the first-order error of the ratio.
        ("rate", 0.0, stories.iter().map(of_rate).collect()),
    ] {
        let found = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - found).powi(2)).sum::<f64>() / n;
        let error = (variance / n).sqrt();
        // Four standard errors: a correct value fails for one in 16,000 seeds.
        assert!((found - exact).abs() < 4.0 * error, "{what}: {found}, exactly {exact}, {error}");
        assert!(error < 0.7, "{what}: standard error {error}");
    }
}

#[test]
fn other_forms_are_used_only_after_the_word_is_drawn() {
    let grammar = stories::grammar();
    for (_, plot) in &grammar.plots {
        let mut drawn = BTreeSet::new();
        for scene in plot.split(' ') {
            let before = drawn.clone();
            for (_, template) in &grammar.scenes[scene] {
                let mut here = before.clone();
                for piece in grammar.pieces(template) {
                    match piece {
                        TemplatePiece::Slot { list, form, fresh, .. } => {
                            // Several words may share another form.
                            assert!(form == 0 || (here.contains(list) && !fresh), "{template}");
                            if !fresh {
                                here.insert(list);
                                drawn.insert(list);
                            }
                        }
                        // An unknown slot becomes text.
                        TemplatePiece::Text(text) => {
                            let unknown = grammar.words.contains_key(text);
                            assert!(!unknown && !text.contains(['{', '}', '*', '|']), "{template}");
                        }
                    }
                }
            }
        }
    }
}
