//! The built-in conversations: greetings, questions about animals and small sums, from a grammar.
//!
//! They need no download, and a small character model learns their form and the answers in minutes on two
//! cores. The right answer depends on the animal, on earlier messages, like a name, and on the system message,
//! which may ask for short answers. To all else the answer is "I do not know."
//!
//! People type words that no list has. So most names and most unknown words are random letters, which teaches
//! the model to copy a name letter by letter instead of choosing one that it has seen.

use super::grammar::{Grammar, Rng};
use super::{CharVocab, ChatTemplate, DataError, Message, Role, TextTokenizer};
use crate::text::capitalize;

pub(super) const TRAIN_SEED: u64 = 3;
pub(super) const TRAIN_CONVERSATIONS: usize = 20_000;
pub(super) const VAL_SEED: u64 = 4;
pub(super) const VAL_CONVERSATIONS: usize = 800;

/// The seed of the made-up words, which are the same in training and validation.
const WORDS_SEED: u64 = 5;
const EXAMPLES_SEED: u64 = 6;

/// The number of made-up words of a list.
const MADE_UP: usize = 4_000;

/// The largest number of the sums that have an answer.
const LARGEST_TERM: u64 = 5;

/// Short sentences about the abilities of a model that was trained on these conversations.
pub const SUBJECT: &str = "It greets you and remembers your name. It knows animals, with their \
                           sounds, food and homes, and adds numbers up to 5.";

/// Returns the template of the conversations. It has all characters of a keyboard, because people type others
/// than the grammar writes.
pub(super) fn template() -> Result<ChatTemplate, DataError> {
    let characters = ['\n'].into_iter().chain(' '..='~');
    Ok(ChatTemplate::new(TextTokenizer::Char(CharVocab::new(characters)?)))
}

/// Returns the grammar with the words of its file and the sums.
fn written() -> Grammar {
    let mut grammar = Grammar::built_in(include_str!("../../assets/grammars/chats.toml"));
    let terms = (1..=LARGEST_TERM).flat_map(|a| (1..=LARGEST_TERM).map(move |b| (a, b)));
    let sum = |(a, b)| format!("{a} plus {b}|{}|{a} + {b}|{a}+{b}", a + b);
    grammar.words.insert("sum".into(), terms.map(sum).collect());
    grammar
}

/// Returns the grammar with the made-up words, too.
fn grammar() -> Grammar {
    let mut grammar = written();
    let mut rng = Rng::new(WORDS_SEED);
    let mut add = |list: &str, known: usize, make: &dyn Fn(&mut Rng) -> String| {
        let words = grammar.words.entry(list.to_string()).or_default();
        let typed = std::mem::take(words).into_iter().cycle().take(known);
        words.extend(typed);
        words.extend((0..MADE_UP).map(|_| make(&mut rng)));
    };
    add("name", MADE_UP / 3, &|rng| capitalize(&made_up(rng, 2..12)));
    add("thing", MADE_UP / 2, &|rng| made_up(rng, 3..10));
    add("phrase", 0, &|rng| match rng.below(2) {
        0 => made_up(rng, 3..10),
        _ => format!("{} {}", made_up(rng, 3..10), made_up(rng, 3..10)),
    });
    add("large-sum", 0, &large_sum);
    // A made-up word may be an animal.
    let animals = &grammar.words["animal"];
    let is_animal =
        |word: &String| animals.iter().any(|forms| forms.split('|').next() == Some(word));
    let things = grammar.words["thing"].iter().filter(|word| !is_animal(word)).cloned().collect();
    grammar.words.insert("thing".into(), things);
    grammar
}

/// Makes up a word of syllables, so that it could be spoken, or of any letters.
fn made_up(rng: &mut Rng, lengths: std::ops::Range<u64>) -> String {
    let length = lengths.start + rng.below(lengths.end - lengths.start);
    let mut word = String::new();
    let is_spoken = rng.below(2) == 0;
    while (word.len() as u64) < length {
        let letters = match word.len() % 2 {
            _ if !is_spoken => "abcdefghijklmnopqrstuvwxyz",
            0 => "bcdfghjklmnpqrstvwxyz",
            _ => "aeiouaeiouaeiounrlst",
        };
        let at = rng.below(letters.len() as u64) as usize;
        word += &letters[at..=at];
    }
    word
}

/// Makes up a calculation without an answer here: a number is larger than [`LARGEST_TERM`].
fn large_sum(rng: &mut Rng) -> String {
    let [first, second] = [[10, 10], [100, 100], [1000, 1000], [1000, 10]][rng.below(4) as usize];
    let beyond = LARGEST_TERM + 1;
    let mut terms = [beyond + rng.below(first - beyond), 1 + rng.below(second - 1)];
    if rng.below(2) == 0 {
        terms.reverse();
    }
    let between = [" plus ", " + ", "+", " minus ", " - ", " times "][rng.below(6) as usize];
    format!("{}{between}{}", terms[0], terms[1])
}

pub(super) fn generate(seed: u64, count: usize) -> impl Iterator<Item = Vec<Message>> {
    let grammar = grammar();
    let mut rng = Rng::new(seed);
    (0..count).map(move |_| {
        let mut text = String::new();
        grammar.generate(&mut rng, &mut text);
        let mut messages = messages(&text);
        for message in messages.iter_mut().filter(|message| message.role == Role::User) {
            type_freely(&mut message.content, &mut rng);
        }
        messages
    })
}

/// Reads lines like `ROLE: TEXT`.
fn messages(text: &str) -> Vec<Message> {
    let message = |line: &str| {
        let (role, content) = line.split_once(": ")?;
        Some(Message::new(role.parse().ok()?, content))
    };
    text.lines().filter_map(message).collect()
}

/// Types as people do: now and then without punctuation at the end, or with a small letter at the beginning.
fn type_freely(text: &mut String, rng: &mut Rng) {
    if rng.below(4) == 0 {
        let words = text.trim_end_matches(['.', '?', '!', ' ']).len();
        text.truncate(words);
    }
    if rng.below(4) == 0
        && let Some(first) = text.get_mut(..1)
    {
        first.make_ascii_lowercase();
    }
}

/// Returns three messages that have an answer.
pub fn examples() -> [String; 3] {
    let grammar = written();
    let mut rng = Rng::new(EXAMPLES_SEED);
    ["meet", "animal", "sum"].map(|scene| {
        let mut text = String::new();
        grammar.follow(scene, &mut rng, &mut text);
        messages(&text).swap_remove(0).content
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN_ANSWERS: [&str; 2] = ["I do not know.", "You have not told me your name."];

    #[test]
    fn questions_and_answers_alternate() {
        let conversations: Vec<_> = generate(TRAIN_SEED, 2000).collect();
        let again: Vec<_> = generate(TRAIN_SEED, 2000).collect();
        assert_eq!(conversations, again);
        let template = template().unwrap();
        for messages in conversations {
            let system = messages[0].role == Role::System;
            let turns = &messages[usize::from(system)..];
            assert!(turns.len() >= 4 && turns.len().is_multiple_of(2), "{messages:?}");
            for turn in turns.chunks(2) {
                assert_eq!((turn[0].role, turn[1].role), (Role::User, Role::Assistant));
                let is_word = !turn[1].content.ends_with(['.', '?', '!']);
                assert_eq!(is_word, system, "{messages:?}");
                for message in turn {
                    assert!(!message.content.is_empty(), "{messages:?}");
                    assert!(!message.content.contains(['{', '|']), "an unknown slot: {messages:?}");
                }
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
        assert_eq!(words["sum"].len(), 25);
        for sum in &words["sum"] {
            let [terms, result, spaced, dense] = sum.split('|').collect::<Vec<_>>()[..] else {
                panic!("{sum}")
            };
            let total: u32 = terms.split(" plus ").map(|term| term.parse::<u32>().unwrap()).sum();
            assert_eq!(total.to_string(), result);
            assert_eq!(spaced, terms.replace("plus", "+"));
            assert_eq!(dense, spaced.replace(' ', ""));
        }
        for sum in &words["large-sum"] {
            let numbers = sum.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
            let numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
            assert!(numbers.len() == 2 && numbers.iter().any(|n| *n > LARGEST_TERM), "{sum}");
        }
    }

    /// A made-up word could happen to be the name of an animal, which the model knows.
    #[test]
    fn nothing_known_is_called_unknown() {
        let words = grammar().words;
        let animals: Vec<_> =
            words["animal"].iter().map(|word| word.split('|').next().unwrap()).collect();
        let asks_for = |question: &str, animal: &str| {
            question.split(|c: char| !c.is_ascii_alphabetic()).any(|word| word == animal)
        };
        let conversations: Vec<_> = generate(TRAIN_SEED, TRAIN_CONVERSATIONS).collect();
        for turn in conversations.iter().flat_map(|messages| messages.windows(2)) {
            if turn[1].content != KNOWN_ANSWERS[0] || turn[0].role != Role::User {
                continue;
            }
            let known = animals.iter().find(|animal| asks_for(&turn[0].content, animal));
            assert_eq!(known, None, "{turn:?}");
        }
    }

    #[test]
    fn every_kind_of_message_is_answered() {
        let conversations: Vec<_> = generate(TRAIN_SEED, TRAIN_CONVERSATIONS).collect();
        let turns = || conversations.iter().flat_map(|messages| messages.windows(2));
        let answers = |question: &str| {
            let asked = turns().filter(move |turn| turn[0].content == question);
            asked.map(|turn| turn[1].content.as_str()).collect::<std::collections::BTreeSet<_>>()
        };
        for (question, answer) in [
            ("Hi", "Hello! What can I do for you?"),
            ("hello", "Hello! What can I do for you?"),
            ("Good morning!", "Hello! What can I do for you?"),
            ("HELLO!", "Hello! What can I do for you?"),
            ("What does a cow say?", "The cow says moo."),
            ("where does an owl live", "The owl lives in the tower."),
            ("What is 2 + 3?", "2 plus 3 is 5."),
            ("2+3", "2 plus 3 is 5."),
            ("How much is 4 plus 5?", "4 plus 5 is 9."),
        ] {
            assert!(answers(question).contains(answer), "{question}: {:?}", answers(question));
        }
        // Names are copied from the message, and most are in no list.
        let hello = |text: &str| {
            let name = text.strip_prefix("Hello ")?.strip_suffix("! What can I do for you?")?;
            Some(name.to_string())
        };
        let named = turns().filter_map(|turn| Some((turn, hello(&turn[1].content)?)));
        let names: std::collections::BTreeSet<_> = named
            .map(|(turn, name)| {
                assert!(turn[0].content.contains(&name), "{turn:?}");
                assert!(name.chars().next().is_some_and(char::is_uppercase), "{name}");
                name
            })
            .collect();
        assert!(names.len() > 2_000, "{} names", names.len());
        let unknown = turns().filter(|turn| turn[1].content == KNOWN_ANSWERS[0]).count();
        assert!(unknown > TRAIN_CONVERSATIONS / 4, "{unknown}");
    }

    #[test]
    fn examples_are_questions_of_the_grammar() {
        let [name, animal, sum] = examples();
        assert!(
            name.contains("am ") || name.contains("name is ") || name.contains("I'm "),
            "{name}"
        );
        assert!(animal.ends_with('?') && sum.contains(|c: char| c.is_ascii_digit()), "{sum}");
        assert_eq!(examples(), [name, animal, sum]);
    }
}
