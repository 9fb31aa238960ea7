//! The built-in conversations: questions about animals and small sums, from a grammar.
//!
//! They need no download, and a small character model learns their form and its answers in minutes on
//! two cores. What is right follows from the animal, from what was said before, like a name, and from
//! the system message, which asks for short answers.

use super::grammar::{Grammar, Rng};
use super::{CharVocab, ChatTemplate, DataError, Message, Tokenizer};

pub(super) const TRAIN_SEED: u64 = 3;
pub(super) const TRAIN_CONVERSATIONS: usize = 8_000;
pub(super) const VAL_SEED: u64 = 4;
pub(super) const VAL_CONVERSATIONS: usize = 800;

/// Returns the template of the conversations. It has all characters of a keyboard, because a person may
/// type other ones than the grammar writes.
pub(super) fn template() -> Result<ChatTemplate, DataError> {
    let characters = ['\n'].into_iter().chain(' '..='~');
    Ok(ChatTemplate::new(Tokenizer::Char(CharVocab::new(characters)?)))
}

fn grammar() -> Grammar {
    Grammar::built_in(include_str!("../../assets/grammars/chats.toml"))
}

pub(super) fn generate(seed: u64, count: usize) -> impl Iterator<Item = Vec<Message>> {
    // A line of a template is `ROLE: TEXT`.
    let message = |line: &str| {
        let (role, content) = line.split_once(": ")?;
        Some(Message::new(role.parse().ok()?, content))
    };
    let (grammar, mut rng) = (grammar(), Rng::new(seed));
    (0..count).map(move |_| {
        let mut text = String::new();
        grammar.generate(&mut rng, &mut text);
        text.lines().filter_map(message).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    #[test]
    fn questions_and_answers_alternate() {
        let conversations: Vec<_> = generate(TRAIN_SEED, 500).collect();
        let again: Vec<_> = generate(TRAIN_SEED, 500).collect();
        assert_eq!(conversations, again);
        let template = template().unwrap();
        for messages in conversations {
            let system = messages[0].role == Role::System;
            let turns = &messages[usize::from(system)..];
            assert!(turns.len() >= 4 && turns.len().is_multiple_of(2), "{messages:?}");
            for turn in turns.chunks(2) {
                assert_eq!((turn[0].role, turn[1].role), (Role::User, Role::Assistant));
                let is_short = !turn[1].content.contains(' ');
                assert_eq!(is_short, system, "{messages:?}");
                assert!(!turn[1].content.contains(['{', '|']), "an unknown slot: {messages:?}");
            }
            let tokens = template.conversation(&messages).unwrap();
            assert!(tokens.len() <= 257, "longer than the context of the preset: {messages:?}");
        }
    }

    #[test]
    fn each_animal_has_its_own_facts_and_sums_are_right() {
        let words = grammar().words;
        for form in 0..4 {
            let forms = words["animal"].iter().map(|word| word.split('|').nth(form).unwrap());
            let different: std::collections::HashSet<_> = forms.collect();
            assert_eq!(different.len(), words["animal"].len());
        }
        for sum in &words["sum"] {
            let (terms, result) = sum.split_once('|').unwrap();
            let total: u32 = terms.split(" plus ").map(|term| term.parse::<u32>().unwrap()).sum();
            assert_eq!(total.to_string(), result);
        }
    }
}
