//! The built-in conversations: questions about animals and small sums, from a grammar.
//!
//! They need no download, and a small character model learns their form and its answers in minutes on
//! two cores. What is right follows from the animal, from what was said before, like a name, and from
//! the system message, which asks for short answers.

use super::grammar::{Grammar, List, Plot, Rng, Scene};
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

pub(super) fn generate(seed: u64, count: usize) -> impl Iterator<Item = Vec<Message>> {
    // A line of a template is `ROLE: TEXT`.
    let message = |line: &str| {
        let (role, content) = line.split_once(": ")?;
        Some(Message::new(role.parse().ok()?, content))
    };
    let mut rng = Rng::new(seed);
    (0..count).map(move |_| {
        let mut text = String::new();
        CHATS.generate(&mut rng, &mut text);
        text.lines().filter_map(message).collect()
    })
}

/// A scene is a question and its answer.
const CHATS: Grammar = Grammar { lists: LISTS, plots: PLOTS, separator: "\n", terminator: "\n" };

const PLOTS: &[Plot] = &[
    (3, &[GREETING, NAME]),
    (3, &[GREETING, ANIMAL, NAME]),
    (1, &[GREETING, SUM, ANIMAL]),
    (2, &[ANIMAL, IT]),
    (1, &[ANIMAL, SUM, IT]),
    (1, &[SUM, ANIMAL, IT]),
    (1, &[SUM, STRANGER]),
    (3, &[SYSTEM, SHORT_ANIMAL, SHORT_SUM, SHORT_IT]),
    (1, &[SYSTEM, SHORT_SUM, SHORT_ANIMAL, SHORT_IT]),
];

const SYSTEM: Scene = &[(1, "system: Answer with one word.")];

const GREETING: Scene = &[
    (2, "user: Hello, I am {name}.\nassistant: Hello {name}! What can I do for you?"),
    (1, "user: Hi! My name is {name}.\nassistant: Hello {name}! What can I do for you?"),
    (1, "user: {name} here, hello.\nassistant: Hello {name}! What can I do for you?"),
];

const ANIMAL: Scene = &[
    (2, "user: What does the {animal} say?\nassistant: The {animal} says {animal.1}."),
    (1, "user: Which sound does the {animal} make?\nassistant: The {animal} says {animal.1}."),
    (2, "user: What does the {animal} eat?\nassistant: The {animal} eats {animal.2}."),
    (2, "user: Where does the {animal} live?\nassistant: The {animal} lives in the {animal.3}."),
];

const IT: Scene = &[
    (1, "user: And what does it say?\nassistant: It says {animal.1}."),
    (1, "user: And what does it eat?\nassistant: It eats {animal.2}."),
    (1, "user: And where does it live?\nassistant: It lives in the {animal.3}."),
];

const SUM: Scene = &[
    (2, "user: How much is {sum}?\nassistant: {sum} is {sum.1}."),
    (1, "user: What is {sum}?\nassistant: {sum} is {sum.1}."),
];

const NAME: Scene = &[
    (2, "user: What is my name?\nassistant: Your name is {name}."),
    (1, "user: Who am I?\nassistant: Your name is {name}."),
];

const STRANGER: Scene = &[
    (2, "user: What is my name?\nassistant: You have not told me your name."),
    (1, "user: Who am I?\nassistant: You have not told me your name."),
];

const SHORT_ANIMAL: Scene = &[
    (1, "user: What does the {animal} say?\nassistant: {animal.1}"),
    (1, "user: What does the {animal} eat?\nassistant: {animal.2}"),
    (1, "user: Where does the {animal} live?\nassistant: {animal.3}"),
];

const SHORT_IT: Scene = &[
    (1, "user: And what does it say?\nassistant: {animal.1}"),
    (1, "user: And what does it eat?\nassistant: {animal.2}"),
    (1, "user: And where does it live?\nassistant: {animal.3}"),
];

const SHORT_SUM: Scene = &[(1, "user: How much is {sum}?\nassistant: {sum.1}")];

/// The forms of an animal are its name, sound, food and home. A sum has its terms and its result.
#[rustfmt::skip] // One word per line would take 100 lines.
const LISTS: &[List] = &[
    ("name", &[
        "Ada", "Bella", "Clara", "Dora", "Edith", "Flora", "Greta", "Hanna", "Ida", "Julia",
        "Kira", "Lena", "Mia", "Nora", "Olga", "Petra", "Boris", "Carl", "David", "Emil",
        "Felix", "Gus", "Hugo", "Ivan", "Jonas", "Karl", "Leo", "Max", "Nils", "Otto", "Paul",
        "Rudi",
    ]),
    ("animal", &[
        "cow|moo|grass|barn", "dog|woof|bones|kennel", "cat|meow|fish|house",
        "duck|quack|weeds|pond", "pig|oink|turnips|sty", "sheep|baa|clover|meadow",
        "horse|neigh|oats|stable", "hen|cluck|corn|coop", "lion|roar|zebras|savanna",
        "frog|ribbit|flies|swamp", "mouse|squeak|cheese|wall", "bee|buzz|nectar|hive",
        "snake|hiss|lizards|desert", "wolf|howl|deer|forest", "donkey|heehaw|thistles|yard",
        "crow|caw|worms|tree", "goose|honk|seeds|lake", "owl|hoot|mice|tower",
        "bear|growl|honey|cave", "pigeon|coo|crumbs|city", "cricket|chirp|leaves|garden",
        "goat|bleat|hay|mountains", "seal|bark|squid|sea", "parrot|squawk|nuts|jungle",
    ]),
    ("sum", &[
        "1 plus 1|2", "1 plus 2|3", "1 plus 3|4", "1 plus 4|5", "1 plus 5|6",
        "2 plus 1|3", "2 plus 2|4", "2 plus 3|5", "2 plus 4|6", "2 plus 5|7",
        "3 plus 1|4", "3 plus 2|5", "3 plus 3|6", "3 plus 4|7", "3 plus 5|8",
        "4 plus 1|5", "4 plus 2|6", "4 plus 3|7", "4 plus 4|8", "4 plus 5|9",
        "5 plus 1|6", "5 plus 2|7", "5 plus 3|8", "5 plus 4|9", "5 plus 5|10",
    ]),
];

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
        let list = |name: &str| LISTS.iter().find(|(found, _)| *found == name).unwrap().1;
        for form in 0..4 {
            let forms = list("animal").iter().map(|word| word.split('|').nth(form).unwrap());
            let different: std::collections::HashSet<_> = forms.collect();
            assert_eq!(different.len(), list("animal").len());
        }
        for sum in list("sum") {
            let (terms, result) = sum.split_once('|').unwrap();
            let total: u32 = terms.split(" plus ").map(|term| term.parse::<u32>().unwrap()).sum();
            assert_eq!(total.to_string(), result);
        }
    }
}
