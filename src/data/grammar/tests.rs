use super::super::stories::STORIES;
use super::*;

/// A partial derivation of a text: the rest of the text, the drawn words, `-ln p`.
type Partial<'a> = (&'a str, Drawn, f64);

impl Grammar {
    /// Returns the `-ln p` of every derivation of `text` as one story.
    fn derivations(&self, text: &str) -> Vec<f64> {
        let mut found = vec![];
        for &(weight, scenes) in self.plots {
            let p = f64::from(weight) / total(self.plots) as f64;
            let mut partials: Vec<Partial<'_>> =
                vec![(text, vec![None; self.lists.len()], -p.ln())];
            for (index, scene) in scenes.iter().enumerate() {
                if index > 0 {
                    partials = self.literal(partials, self.separator);
                }
                let alternatives = scene.iter().flat_map(|&(weight, template)| {
                    let nats = -(f64::from(weight) / total(scene) as f64).ln();
                    let start = partials.iter().cloned();
                    let start = start.map(|(rest, drawn, so_far)| (rest, drawn, so_far + nats));
                    self.pieces(template)
                        .fold(start.collect(), |partials, piece| self.parse(partials, piece))
                });
                partials = alternatives.collect();
            }
            partials = self.literal(partials, self.terminator);
            let complete = partials.iter().filter(|(rest, ..)| rest.is_empty());
            found.extend(complete.map(|&(_, _, nats)| nats));
        }
        found
    }

    fn literal<'a>(&self, partials: Vec<Partial<'a>>, text: &str) -> Vec<Partial<'a>> {
        let strip =
            |(rest, drawn, nats): Partial<'a>| Some((rest.strip_prefix(text)?, drawn, nats));
        partials.into_iter().filter_map(strip).collect()
    }

    fn parse<'a>(&self, partials: Vec<Partial<'a>>, piece: TemplatePiece) -> Vec<Partial<'a>> {
        let (list, form, fresh) = match piece {
            TemplatePiece::Text(text) => return self.literal(partials, text),
            TemplatePiece::Slot { list, form, fresh } => (list, form, fresh),
        };
        let mut found = vec![];
        for (rest, drawn, nats) in partials {
            for (index, word) in self.words(list).iter().enumerate() {
                let Some(after) = rest.strip_prefix(word_form(word, form)) else {
                    continue;
                };
                let mut drawn = drawn.clone();
                match drawn[list] {
                    Some(repeated) if !fresh && repeated != index => continue,
                    Some(_) if !fresh => found.push((after, drawn, nats)),
                    _ => {
                        if !fresh {
                            drawn[list] = Some(index);
                        }
                        let choice = (self.words(list).len() as f64).ln();
                        found.push((after, drawn, nats + choice));
                    }
                }
            }
        }
        found
    }

    /// Returns all beginnings of a template, up to its second slot.
    fn beginnings(&self, template: &'static str) -> Vec<String> {
        let mut beginnings = vec![String::new()];
        let mut slots = 0;
        for piece in self.pieces(template) {
            match piece {
                TemplatePiece::Text(text) => {
                    beginnings.iter_mut().for_each(|start| start.push_str(text))
                }
                TemplatePiece::Slot { list, form, .. } => {
                    slots += 1;
                    if slots > 1 || beginnings.iter().any(|start| !start.is_empty()) {
                        break;
                    }
                    let words = self.words(list).iter();
                    beginnings = words.map(|word| word_form(word, form).to_owned()).collect();
                    beginnings.sort();
                    beginnings.dedup();
                }
            }
        }
        beginnings
    }
}

fn stories(seed: u64, count: usize) -> Vec<(String, Measure)> {
    let mut rng = Rng::new(seed);
    (0..count)
        .map(|_| {
            let mut text = String::new();
            let measure = STORIES.generate(&mut rng, &mut text);
            (text, measure)
        })
        .collect()
}

#[test]
fn every_story_has_one_derivation_with_the_same_probability() {
    for (text, measure) in stories(11, 3_000) {
        let derivations = STORIES.derivations(&text);
        assert_eq!(derivations.len(), 1, "{text}");
        assert!((derivations[0] - measure.nats).abs() < 1e-9, "{text}");
        let changed = text.replacen('a', "q", 1);
        assert!(STORIES.derivations(&changed).is_empty(), "{changed}");
    }
}

#[test]
fn no_word_of_a_list_is_a_prefix_of_another() {
    for list in STORIES.lists {
        for (index, one) in list.1.iter().enumerate() {
            assert_eq!(one.split('|').count(), list.1[0].split('|').count());
            for other in &list.1[index + 1..] {
                let (one, other) = (word_form(one, 0), word_form(other, 0));
                assert!(
                    !one.starts_with(other) && !other.starts_with(one),
                    "{}: {one} and {other}",
                    list.0
                );
            }
        }
    }
}

#[test]
fn no_beginning_of_a_template_is_a_prefix_of_another() {
    for &(_, scenes) in STORIES.plots {
        for depth in 0..=scenes.len() {
            // All scenes that may follow the same scenes.
            let next = STORIES.plots.iter().filter_map(|(_, other)| {
                let same = other.get(..depth)? == scenes.get(..depth)?;
                other.get(depth).filter(|_| same)
            });
            let mut templates: Vec<_> = next.flat_map(|s| s.iter().map(|&(_, t)| t)).collect();
            templates.sort_unstable();
            templates.dedup();
            for (index, one) in templates.iter().enumerate() {
                for other in &templates[index + 1..] {
                    for a in STORIES.beginnings(one) {
                        for b in STORIES.beginnings(other) {
                            assert!(!a.starts_with(&b) && !b.starts_with(&a), "{one} / {other}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn other_forms_are_used_only_after_the_word_is_drawn() {
    let braces = STORIES.literals().filter(|text| text.contains(['{', '}', '*', '|']));
    assert_eq!(braces.count(), 0);
    for &(_, scenes) in STORIES.plots {
        let mut drawn = vec![false; STORIES.lists.len()];
        for scene in scenes {
            let before = drawn.clone();
            for &(_, template) in *scene {
                let mut here = before.clone();
                for piece in STORIES.pieces(template) {
                    if let TemplatePiece::Slot { list, form, fresh } = piece {
                        // Several words may share another form.
                        assert!(form == 0 || (here[list] && !fresh), "{template}");
                        here[list] |= !fresh;
                        drawn[list] |= !fresh;
                    } else if let TemplatePiece::Text(text) = piece {
                        let unknown = STORIES.lists.iter().any(|list| text == list.0);
                        assert!(!unknown, "{template}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_expectation_is_the_mean_over_stories() {
    let exact = STORIES.expectation();
    let measures: Vec<_> = stories(5, 40_000).into_iter().map(|(_, m)| m).collect();
    let n = measures.len() as f64;
    let mean = |of: &dyn Fn(&Measure) -> f64| measures.iter().map(of).sum::<f64>() / n;
    let rate = exact.nats / exact.characters;
    for (what, exact, of) in [
        ("nats", exact.nats, &(|m: &Measure| m.nats) as &dyn Fn(&Measure) -> f64),
        ("characters", exact.characters, &|m| m.characters),
        // Its mean is 0 by the renewal theorem: the first-order error of the ratio.
        ("rate", 0.0, &|m| m.nats - rate * m.characters),
    ] {
        let found = mean(of);
        let variance = mean(&|m| (of(m) - found).powi(2));
        let error = (variance / n).sqrt();
        // Four standard errors: a correct value fails for one in 16,000 seeds.
        assert!(
            (found - exact).abs() < 4.0 * error,
            "{what}: {found} over {n} stories, exactly {exact}, standard error {error}"
        );
        // In nats: 0.3 bits per story.
        assert!(error < 0.2, "{what}: standard error {error}");
    }
}

#[test]
fn the_entropy_of_a_toy_grammar_is_exact() {
    const TOY: Grammar = Grammar {
        lists: &[("x", &["aa", "bbbb"])],
        plots: &[(1, &[&[(3, "{x}"), (1, "c{*x}{x}{x}")]])],
        separator: " ",
        terminator: "\n",
    };
    let exact = TOY.expectation();
    let template = 0.75 * (4.0_f64 / 3.0).ln() + 0.25 * 4_f64.ln();
    let nats = template + 0.75 * 2_f64.ln() + 0.25 * 2.0 * 2_f64.ln();
    assert!((exact.nats - nats).abs() < 1e-12);
    assert!((exact.characters - (0.75 * 3.0 + 0.25 * 10.0 + 1.0)).abs() < 1e-12);
}
