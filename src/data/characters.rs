//! The vocabulary of a character tokenizer.

use std::collections::HashMap;

use super::DataError;

/// The vocabulary of a character tokenizer. The id of a character is its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharVocab {
    pub(super) chars: Vec<char>,
    ids: HashMap<char, u32>,
}

impl CharVocab {
    pub fn new(chars: impl IntoIterator<Item = char>) -> Result<Self, DataError> {
        let mut vocab = Self { chars: Vec::new(), ids: HashMap::new() };
        for (id, character) in (0..).zip(chars) {
            if vocab.ids.insert(character, id).is_some() {
                return Err(DataError::vocabulary(format!("character {character:?} occurs twice")));
            }
            vocab.chars.push(character);
        }
        if vocab.chars.is_empty() {
            return Err(DataError::vocabulary("it is empty"));
        }
        Ok(vocab)
    }

    /// Creates a vocabulary of the characters with these ids; `None` unless the ids are 0, 1, 2 and so on, once
    /// each.
    pub(super) fn of_ids(mut pairs: Vec<(i64, char)>) -> Option<Self> {
        pairs.sort_unstable();
        let is_complete = (0..).zip(&pairs).all(|(expected, (id, _))| expected == *id);
        Self::new(pairs.into_iter().map(|(_, c)| c)).ok().filter(|_| is_complete)
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.chars.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        ids.reserve(text.len());
        for (offset, character) in text.char_indices() {
            let Some(id) = self.ids.get(&character) else {
                let known = self.chars.len();
                return Err(DataError::bad(
                    format!(
                        "character {character:?} at byte {offset} is not one of the {known} \
                         characters in the vocabulary"
                    ),
                    "remove it, or prepare the data again with text that contains it",
                ));
            };
            ids.push(*id);
        }
        Ok(())
    }
}
