use super::super::stories::STORIES;
use super::*;

/// A way to read the start of a text: what is left, the facts, `-ln p`.
type Reading<'a> = (&'a str, Facts, f64);

impl Grammar {
    /// Every derivation of `text` as exactly one story, as its `-ln p`.
    fn derivations(&self, text: &str) -> Vec<f64> {
        let mut found = vec![];
        for &(weight, scenes) in self.plots {
            let p = f64::from(weight) / total(self.plots) as f64;
            let mut readings: Vec<Reading<'_>> =
                vec![(text, vec![None; self.lists.len()], -p.ln())];
            for (index, scene) in scenes.iter().enumerate() {
                if index > 0 {
                    readings = self.literal(readings, self.between);
                }
                let alternatives = scene.iter().flat_map(|&(weight, template)| {
                    let nats = -(f64::from(weight) / total(scene) as f64).ln();
                    let start = readings.iter().cloned();
                    let start = start.map(|(rest, facts, so_far)| (rest, facts, so_far + nats));
                    self.pieces(template)
                        .fold(start.collect(), |readings, piece| self.read(readings, piece))
                });
                readings = alternatives.collect();
            }
            readings = self.literal(readings, self.after);
            let whole = readings.iter().filter(|(rest, ..)| rest.is_empty());
            found.extend(whole.map(|&(_, _, nats)| nats));
        }
        found
    }

    fn literal<'a>(&self, readings: Vec<Reading<'a>>, text: &str) -> Vec<Reading<'a>> {
        let strip =
            |(rest, facts, nats): Reading<'a>| Some((rest.strip_prefix(text)?, facts, nats));
        readings.into_iter().filter_map(strip).collect()
    }

    fn read<'a>(&self, readings: Vec<Reading<'a>>, piece: Piece) -> Vec<Reading<'a>> {
        let (list, form, fresh) = match piece {
            Piece::Text(text) => return self.literal(readings, text),
            Piece::Slot { list, form, fresh } => (list, form, fresh),
        };
        let mut found = vec![];
        for (rest, facts, nats) in readings {
            for (index, word) in self.words(list).iter().enumerate() {
                let Some(after) = rest.strip_prefix(spelled(word, form)) else {
                    continue;
                };
                let mut facts = facts.clone();
                match facts[list] {
                    Some(fact) if !fresh && fact != index => continue,
                    Some(_) if !fresh => found.push((after, facts, nats)),
                    _ => {
                        if !fresh {
                            facts[list] = Some(index);
                        }
                        let choice = (self.words(list).len() as f64).ln();
                        found.push((after, facts, nats + choice));
                    }
                }
            }
        }
        found
    }

    /// The ways a template can begin, up to its second slot.
    fn leads(&self, template: &'static str) -> Vec<String> {
        let mut leads = vec![String::new()];
        let mut slots = 0;
        for piece in self.pieces(template) {
            match piece {
                Piece::Text(text) => leads.iter_mut().for_each(|lead| lead.push_str(text)),
                Piece::Slot { list, form, .. } => {
                    slots += 1;
                    if slots > 1 || leads.iter().any(|lead| !lead.is_empty()) {
                        break;
                    }
                    let words = self.words(list).iter();
                    leads = words.map(|word| spelled(word, form).to_owned()).collect();
                    leads.sort();
                    leads.dedup();
                }
            }
        }
        leads
    }
}

fn stories(seed: u64, count: usize) -> Vec<(String, Measure)> {
    let mut choices = Choices::new(seed);
    (0..count)
        .map(|_| {
            let mut text = String::new();
            let measure = STORIES.tell(&mut choices, &mut text);
            (text, measure)
        })
        .collect()
}

#[test]
fn every_story_has_one_derivation_with_its_probability() {
    for (text, measure) in stories(11, 3_000) {
        let derivations = STORIES.derivations(&text);
        assert_eq!(derivations.len(), 1, "{text}");
        assert!((derivations[0] - measure.nats).abs() < 1e-9, "{text}");
        let changed = text.replacen('a', "q", 1);
        assert!(STORIES.derivations(&changed).is_empty(), "{changed}");
    }
}

#[test]
fn words_of_a_list_are_told_apart_where_they_end() {
    for list in STORIES.lists {
        for (index, one) in list.words.iter().enumerate() {
            assert_eq!(one.split('|').count(), list.words[0].split('|').count());
            for other in &list.words[index + 1..] {
                let (one, other) = (spelled(one, 0), spelled(other, 0));
                assert!(
                    !one.starts_with(other) && !other.starts_with(one),
                    "{}: {one} and {other}",
                    list.name
                );
            }
        }
    }
}

#[test]
fn templates_are_told_apart_where_they_begin() {
    for &(_, scenes) in STORIES.plots {
        for depth in 0..=scenes.len() {
            // All scenes that may come here, given the scenes so far.
            let next = STORIES.plots.iter().filter_map(|(_, other)| {
                let same = other.get(..depth)? == scenes.get(..depth)?;
                other.get(depth).filter(|_| same)
            });
            let mut templates: Vec<_> = next.flat_map(|s| s.iter().map(|&(_, t)| t)).collect();
            templates.sort_unstable();
            templates.dedup();
            for (index, one) in templates.iter().enumerate() {
                for other in &templates[index + 1..] {
                    for a in STORIES.leads(one) {
                        for b in STORIES.leads(other) {
                            assert!(!a.starts_with(&b) && !b.starts_with(&a), "{one} / {other}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_word_has_all_its_forms_only_once_it_is_known() {
    let braces = STORIES.literals().filter(|text| text.contains(['{', '}', '*', '|']));
    assert_eq!(braces.count(), 0);
    for &(_, scenes) in STORIES.plots {
        let mut known = vec![false; STORIES.lists.len()];
        for scene in scenes {
            let before = known.clone();
            for &(_, template) in *scene {
                let mut here = before.clone();
                for piece in STORIES.pieces(template) {
                    if let Piece::Slot { list, form, fresh } = piece {
                        // Another form does not tell which word it is.
                        assert!(form == 0 || (here[list] && !fresh), "{template}");
                        here[list] |= !fresh;
                        known[list] |= !fresh;
                    } else if let Piece::Text(text) = piece {
                        let unknown = STORIES.lists.iter().any(|list| text == list.name);
                        assert!(!unknown, "{template}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_exact_entropy_is_the_mean_over_stories() {
    let exact = STORIES.expectation();
    let measures: Vec<_> = stories(5, 40_000).into_iter().map(|(_, m)| m).collect();
    let n = measures.len() as f64;
    let mean = |of: &dyn Fn(&Measure) -> f64| measures.iter().map(of).sum::<f64>() / n;
    let rate = exact.nats / exact.characters;
    for (what, exact, of) in [
        ("nats", exact.nats, &(|m: &Measure| m.nats) as &dyn Fn(&Measure) -> f64),
        ("characters", exact.characters, &|m| m.characters),
        // Mean 0 by the renewal theorem: the error of the ratio to first order.
        ("rate", 0.0, &|m| m.nats - rate * m.characters),
    ] {
        let found = mean(of);
        let variance = mean(&|m| (of(m) - found).powi(2));
        let error = (variance / n).sqrt();
        // Four standard errors: a true value fails once in 16,000 seeds.
        assert!(
            (found - exact).abs() < 4.0 * error,
            "{what}: {found} over {n} stories, exactly {exact}, standard error {error}"
        );
        // Sharp enough to miss not even a third of a yes-or-no choice a story.
        assert!(error < 0.2, "{what}: standard error {error}");
    }
}

#[test]
fn a_known_grammar_has_its_known_entropy() {
    const TOY: Grammar = Grammar {
        lists: &[List { name: "x", words: &["aa", "bbbb"] }],
        plots: &[(1, &[&[(3, "{x}"), (1, "c{*x}{x}{x}")]])],
        between: " ",
        after: "\n",
    };
    let exact = TOY.expectation();
    let template = 0.75 * (4.0_f64 / 3.0).ln() + 0.25 * 4_f64.ln();
    let nats = template + 0.75 * 2_f64.ln() + 0.25 * 2.0 * 2_f64.ln();
    assert!((exact.nats - nats).abs() < 1e-12);
    assert!((exact.characters - (0.75 * 3.0 + 0.25 * 10.0 + 1.0)).abs() < 1e-12);
}
