//! The built-in corpus: short stories from a grammar with a known entropy.
//!
//! It needs no download, and a small character model learns it in about a thousand steps. Every
//! text has exactly one derivation, so the lowest loss that any model can reach can be computed.
//! The hero, place, thing and animal of a story return later in it, so a model must attend to its
//! beginning to predict them.

use super::grammar::{Grammar, List, Plot, Rng, Scene};

pub(super) const TRAIN_SEED: u64 = 1;
pub(super) const TRAIN_CHARACTERS: usize = 2_000_000;
pub(super) const VAL_SEED: u64 = 2;
pub(super) const VAL_CHARACTERS: usize = 200_000;

/// Tokens in the training split of the data set.
pub const TRAIN_TOKENS: u64 = 2_000_213;
pub const VAL_TOKENS: u64 = 200_188;
pub const VOCABULARY: u32 = 49;

pub(super) const ALPHABET: &str = "\n ,.ABCDEFGHIJKLMNOPRSTabcdefghijklmnopqrstuvwxyz";

/// The entropy of the corpus in nats per character: the entropy of a story divided by its mean length,
/// which is the entropy rate of a sequence of independent stories. The tests of the grammar compute it.
///
/// No model that sees the corpus from the start has a lower mean loss. A model that sees windows
/// misses the beginning of the first story in each, so its loss stays slightly above.
pub(super) const ENTROPY: f64 = 0.25165014314883233;

/// Generates whole stories of at least `characters` characters in total. The text is ASCII; each
/// story is one line, followed by an empty line.
pub(super) fn generate(seed: u64, characters: usize) -> String {
    let mut text = String::with_capacity(characters.saturating_add(1_000));
    let mut rng = Rng::new(seed);
    while text.len() < characters {
        STORIES.generate(&mut rng, &mut text);
    }
    text
}

/// Returns the first `characters` characters of the training split.
pub(crate) fn excerpt(characters: usize) -> String {
    let mut text = generate(TRAIN_SEED, characters);
    // The text is ASCII.
    text.truncate(characters);
    text
}

pub(super) const STORIES: Grammar =
    Grammar { lists: LISTS, plots: PLOTS, separator: " ", terminator: "\n\n" };

const PLOTS: &[Plot] = &[
    (2, &[OPENING, WISH, MEETING, ENDING]),
    (3, &[OPENING, WISH, SEARCH, MEETING, ENDING]),
    (3, &[OPENING, WISH, SEARCH, SEARCH, MEETING, ENDING]),
];

const OPENING: Scene = &[
    (2, "{hero} was a {trait} {job} from the {place}."),
    (1, "In the {place} lived a {trait} {job}, {hero}."),
    (1, "The {trait} {job} of the {place} was {hero}."),
];

const WISH: Scene = &[
    (2, "{hero.2} wanted a {look} {thing}."),
    (1, "{hero} had lost a {look} {thing}."),
    (1, "All day {hero.1} drew a {look} {thing}."),
];

const SEARCH: Scene = &[
    (2, "{hero} looked {*where} a {*look} {*spot} and saw a {*animal}."),
    (1, "A {*trait} {*job} sold {hero} a {*look} {*thing}."),
    (1, "One {*trait} {*animal} ate {*food} and {*food} with {hero}."),
];

const MEETING: Scene = &[
    (2, "Then a {*trait} {animal} found it {*where} the {spot}."),
    (1, "It was {*where} the {spot} of a {*trait} {animal}."),
    (1, "But a {*trait} {animal} and a {*job} hid it in the {spot}."),
];

const ENDING: Scene = &[
    (2, "{hero} gave the {animal} {*food} and took the {look} {thing}."),
    (1, "Now the {job} and the {animal} eat {*food} by the {spot}."),
    (1, "So the {place} has a {look} {thing} and a {*trait} {animal}."),
];

/// No word of a list is a prefix of another, and no word that follows "a" in a template needs "an".
/// The forms of a hero are the name and the pronoun, in lower case and capitalized.
#[rustfmt::skip] // One word per line would take 300 lines.
const LISTS: &[List] = &[
    ("hero", &[
        "Ada|she|She", "Bella|she|She", "Clara|she|She", "Dora|she|She", "Edith|she|She",
        "Flora|she|She", "Greta|she|She", "Hanna|she|She", "Ida|she|She", "Julia|she|She",
        "Kira|she|She", "Lena|she|She", "Mia|she|She", "Nora|she|She", "Olga|she|She",
        "Petra|she|She", "Boris|he|He", "Carl|he|He", "David|he|He", "Emil|he|He",
        "Felix|he|He", "Gus|he|He", "Hugo|he|He", "Ivan|he|He", "Jonas|he|He", "Karl|he|He",
        "Leo|he|He", "Max|he|He", "Nils|he|He", "Otto|he|He", "Paul|he|He", "Rudi|he|He",
    ]),
    ("trait", &[
        "brave", "calm", "clever", "cheerful", "gentle", "hungry", "kind", "lazy", "merry",
        "proud", "quiet", "shy", "tired", "polite", "stubborn", "young", "sleepy", "curious",
        "nervous", "patient", "jolly", "lonely", "busy", "fierce",
    ]),
    ("job", &[
        "baker", "cook", "potter", "tailor", "sailor", "farmer", "miller", "painter",
        "singer", "weaver", "hunter", "doctor", "gardener", "clown", "judge", "king", "nurse",
        "poet", "smith", "shepherd", "teacher", "thief", "carpenter", "piper", "queen",
        "dancer", "barber", "lawyer", "wizard", "monk", "student", "drummer",
    ]),
    ("place", &[
        "harbor", "valley", "castle", "village", "forest", "island", "market", "tower",
        "desert", "meadow", "canyon", "city", "coast", "mountain", "swamp", "garden",
        "palace", "jungle", "ruins", "lagoon", "tunnel", "quarry", "square", "bay",
    ]),
    ("look", &[
        "red", "blue", "green", "white", "black", "golden", "silver", "tiny", "huge", "round",
        "broken", "shiny", "wooden", "purple", "striped", "dusty", "heavy", "crooked", "pink",
        "yellow", "spotted", "muddy", "velvet", "rusty",
    ]),
    ("thing", &[
        "kite", "lamp", "bell", "drum", "boat", "book", "coat", "crown", "cup", "doll",
        "flute", "hat", "key", "map", "mirror", "ring", "rope", "ship", "shoe", "spoon",
        "sword", "wheel", "whistle", "button", "puppet", "basket", "ladder", "candle",
        "violin", "needle", "jar", "fan",
    ]),
    ("where", &[
        "behind", "under", "near", "inside", "beside", "above",
    ]),
    ("spot", &[
        "barrel", "bed", "bench", "box", "bush", "chair", "chest", "door", "fence", "gate",
        "oven", "rock", "stove", "table", "wall", "well", "bridge", "stairs", "carpet",
        "shed", "fountain", "piano", "statue", "mill",
    ]),
    ("animal", &[
        "bear", "cat", "cow", "crab", "crow", "deer", "dog", "duck", "fox", "frog", "goat",
        "goose", "hare", "hen", "horse", "lion", "mole", "mouse", "pig", "rat", "seal",
        "sheep", "toad", "wolf", "badger", "beaver", "camel", "donkey", "parrot", "rabbit",
        "spider", "turtle",
    ]),
    ("food", &[
        "cake", "pie", "plums", "pears", "carrots", "melon", "cookies", "pancakes",
        "potatoes", "turnips", "sausages", "cheese", "biscuits", "cherries", "muffins",
        "walnuts", "soup", "bread", "honey", "beans", "corn", "figs", "rice", "jam",
    ]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_determines_the_text() {
        let text = generate(TRAIN_SEED, 10_000);
        assert_eq!(text, generate(TRAIN_SEED, 10_000));
        assert!(generate(TRAIN_SEED, 20_000).starts_with(&text));
        assert_ne!(text, generate(VAL_SEED, 10_000));
        // Pins the text: another one would change the data of `builtin:stories`.
        assert_eq!(
            blake3::hash(text.as_bytes()).to_hex().as_str(),
            "f8646e12c83b21a731d8c1bd93ac4d7708e32615d566a3911baaee842a974995",
            "{}",
            &text[..800]
        );
    }

    #[test]
    fn stories_have_the_documented_form() {
        let text = generate(3, 50_000);
        assert!(text.is_ascii() && (50_000..51_000).contains(&text.len()));
        let stories: Vec<_> = text.split_terminator("\n\n").collect();
        for story in stories {
            assert!(!story.contains('\n'));
            let sentences = story.matches('.').count();
            assert!((2..=6).contains(&sentences), "{story}");
        }
        let characters: BTreeSet<char> = generate(TRAIN_SEED, TRAIN_CHARACTERS).chars().collect();
        assert!(ALPHABET.chars().eq(characters));
    }
}
