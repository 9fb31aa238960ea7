//! GPT-2's byte pairs: 50,257 tokens. The last one ends a document. tiktoken-rs compiles the tables into
//! the program and decodes them at first use.

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use tiktoken_rs::r50k_base_singleton;

use super::DataError;
use super::bpe::{Bpe, Ranks, last_merge};
use super::spelling::{END_OF_TEXT, spell};
use crate::config::GPT2_VOCABULARY;

/// The token that ends a document.
pub(super) const END: u32 = GPT2_VOCABULARY - 1;

/// Appends the ids of a piece of text.
pub(super) fn encode_into(piece: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
    // Not `encode_ordinary`, which gives the same ids but panics if the regular expression fails.
    let tokens = r50k_base_singleton().encode(piece, &HashSet::new());
    ids.extend(tokens.map_err(|error| DataError::tokenize(error.message))?.0);
    Ok(())
}

/// Returns the bytes of a token; `None` for an id outside the vocabulary.
pub(super) fn bytes(id: u32) -> Option<Vec<u8>> {
    r50k_base_singleton().decode_bytes(&[id]).ok()
}

/// Returns true if these are the tokens of GPT-2 with the same ids.
pub(super) fn is_gpt2(bpe: &Bpe) -> bool {
    bpe.vocab_size() == GPT2_VOCABULARY
        && bpe.end.as_ref().is_some_and(|(id, name)| (*id, name.as_str()) == (END, END_OF_TEXT))
        && has_text_of(bpe)
}

/// Returns true if text has the ids of GPT-2, whatever other tokens follow.
pub(super) fn has_text_of(bpe: &Bpe) -> bool {
    bpe.has_ids_of_text(&tokens())
}

/// Returns the ids of all tokens but the last by their spelling, and the merges.
pub(super) fn pairs() -> (Map<String, Value>, Vec<String>) {
    let tokens = tokens();
    let ids = tokens.iter().zip(0_u32..).map(|(token, id)| (spell(token), json!(id)));
    (ids.collect(), merges(&tokens))
}

/// Returns the bytes of each token but the last, which ends a document.
fn tokens() -> Vec<Vec<u8>> {
    (0..END).map(|id| bytes(id).unwrap_or_default()).collect()
}

/// Returns the pair from which each token of more than one byte was merged, spelled with a space between the
/// parts. Ids are ranks.
fn merges(tokens: &[Vec<u8>]) -> Vec<String> {
    let mut ranks = Ranks::new();
    let mut merges = Vec::new();
    for (token, rank) in tokens.iter().zip(0..) {
        if let Some(middle) = last_merge(token, &ranks) {
            let (left, right) = token.split_at(middle);
            merges.push(format!("{} {}", spell(left), spell(right)));
        }
        ranks.insert(token.clone(), rank);
    }
    merges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_merge_yields_its_token() {
        let tokens = tokens();
        let merges = merges(&tokens);
        // The vocabulary is 256 bytes, 50,000 merges and the end of a document.
        assert_eq!((tokens.len(), merges.len()), (50_256, 50_000));
        for (token, merge) in tokens[256..].iter().zip(&merges) {
            assert_eq!(spell(token), merge.replace(' ', ""));
        }
    }
}
