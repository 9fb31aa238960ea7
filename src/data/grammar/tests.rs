use super::super::stories::{ENTROPY, STORIES};
use super::*;

/// A partial derivation of a text: the rest of the text, the drawn words, `-ln p`.
type Partial<'a> = (&'a str, Drawn, f64);

/// Returns each element with its probability.
fn shares<T: Copy>(of: &[(u32, T)]) -> impl Iterator<Item = (f64, T)> {
    let total: u32 = of.iter().map(|(weight, _)| weight).sum();
    of.iter().map(move |&(weight, item)| (f64::from(weight) / f64::from(total), item))
}

impl Grammar {
    /// Returns the `-ln p` of every derivation of `text` as one story.
    fn derivations(&self, text: &str) -> Vec<f64> {
        let mut found = vec![];
        for (p, scenes) in shares(self.plots) {
            let mut partials: Vec<Partial<'_>> =
                vec![(text, vec![None; self.lists.len()], -p.ln())];
            for (index, scene) in scenes.iter().enumerate() {
                if index > 0 {
                    partials = literal(partials, self.separator);
                }
                let alternatives = shares(scene).flat_map(|(p, template)| {
                    let start = partials.iter().cloned();
                    let start = start.map(|(rest, drawn, nats)| (rest, drawn, nats - p.ln()));
                    self.pieces(template)
                        .fold(start.collect(), |partials, piece| self.parse(partials, piece))
                });
                partials = alternatives.collect();
            }
            partials = literal(partials, self.terminator);
            let complete = partials.iter().filter(|(rest, ..)| rest.is_empty());
            found.extend(complete.map(|&(_, _, nats)| nats));
        }
        found
    }

    fn parse<'a>(&self, partials: Vec<Partial<'a>>, piece: TemplatePiece) -> Vec<Partial<'a>> {
        let (list, form, fresh) = match piece {
            TemplatePiece::Text(text) => return literal(partials, text),
            TemplatePiece::Slot { list, form, fresh } => (list, form, fresh),
        };
        let words = self.words(list);
        let mut found = vec![];
        for (rest, drawn, nats) in partials {
            let repeated = drawn[list].filter(|_| !fresh);
            for (index, word) in words.iter().enumerate() {
                let Some(after) = rest.strip_prefix(word_form(word, form)) else { continue };
                if repeated.is_none_or(|repeated| repeated == index) {
                    let mut drawn = drawn.clone();
                    if !fresh {
                        drawn[list] = Some(index);
                    }
                    let choice = if repeated.is_some() { 0.0 } else { (words.len() as f64).ln() };
                    found.push((after, drawn, nats + choice));
                }
            }
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
    fn expectation(&self, scenes: &[Scene], drawn: &[bool]) -> (f64, f64) {
        let Some((scene, rest)) = scenes.split_first() else {
            return (0.0, self.terminator.len() as f64);
        };
        let mut sum = (0.0, 0.0);
        for (p, template) in shares(scene) {
            let mut drawn = drawn.to_vec();
            let between = if rest.is_empty() { "" } else { self.separator };
            let (mut nats, mut characters) = (-p.ln(), between.len() as f64);
            for piece in self.pieces(template) {
                match piece {
                    TemplatePiece::Text(literal) => characters += literal.len() as f64,
                    TemplatePiece::Slot { list, form, fresh } => {
                        let words = self.words(list);
                        let length: usize = words.iter().map(|w| word_form(w, form).len()).sum();
                        characters += length as f64 / words.len() as f64;
                        if fresh || !drawn[list] {
                            nats += (words.len() as f64).ln();
                        }
                        drawn[list] |= !fresh;
                    }
                }
            }
            let rest = self.expectation(rest, &drawn);
            sum = (sum.0 + p * (nats + rest.0), sum.1 + p * (characters + rest.1));
        }
        sum
    }
}

fn literal<'a>(partials: Vec<Partial<'a>>, text: &str) -> Vec<Partial<'a>> {
    let strip = |(rest, drawn, nats): Partial<'a>| Some((rest.strip_prefix(text)?, drawn, nats));
    partials.into_iter().filter_map(strip).collect()
}

/// Also checks that no other grammar than the documented one gives the entropy: the mean over stories is
/// near the exact value.
#[test]
fn every_story_has_one_derivation_and_the_entropy_is_their_mean() {
    let none = vec![false; STORIES.lists.len()];
    let (mut entropy, mut length) = (0.0, 0.0);
    for (p, scenes) in shares(STORIES.plots) {
        let (nats, characters) = STORIES.expectation(scenes, &none);
        (entropy, length) = (entropy + p * (nats - p.ln()), length + p * characters);
    }
    assert!((entropy / length - ENTROPY).abs() < 1e-14, "{entropy} / {length}");

    let mut rng = Rng::new(11);
    let stories: Vec<(f64, f64)> = (0..4_000)
        .map(|_| {
            let mut text = String::new();
            STORIES.generate(&mut rng, &mut text);
            let [nats] = STORIES.derivations(&text)[..] else { panic!("not one: {text}") };
            let changed = text.replacen('a', "q", 1);
            assert!(STORIES.derivations(&changed).is_empty(), "{changed}");
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
    for &(_, scenes) in STORIES.plots {
        let mut drawn = vec![false; STORIES.lists.len()];
        for scene in scenes {
            let before = drawn.clone();
            for &(_, template) in *scene {
                let mut here = before.clone();
                for piece in STORIES.pieces(template) {
                    match piece {
                        TemplatePiece::Slot { list, form, fresh } => {
                            // Several words may share another form.
                            assert!(form == 0 || (here[list] && !fresh), "{template}");
                            here[list] |= !fresh;
                            drawn[list] |= !fresh;
                        }
                        // An unknown slot becomes text.
                        TemplatePiece::Text(text) => {
                            let unknown = STORIES.lists.iter().any(|list| text == list.0);
                            assert!(!unknown && !text.contains(['{', '}', '*', '|']), "{template}");
                        }
                    }
                }
            }
        }
    }
}
