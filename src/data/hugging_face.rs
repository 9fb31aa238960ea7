//! Hugging Face tokenizer files for GPT-2, written from the built-in tables.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tiktoken_rs::r50k_base_singleton;

use super::tokenizer::END_OF_TEXT;
use super::{Tokenizer, TokenizerKind};

impl Tokenizer {
    /// Returns names and contents of the files that transformers reads the tokenizer from. Empty
    /// for tokenizers that transformers does not support.
    pub fn hugging_face_files(&self) -> Vec<(&'static str, String)> {
        if self.kind() != TokenizerKind::Gpt2 {
            return Vec::new();
        }
        let tokens = gpt2_tokens();
        let characters = byte_characters();
        let spell =
            |token: &[u8]| -> String { token.iter().map(|&b| characters[b as usize]).collect() };
        let mut vocabulary: Map<String, Value> =
            tokens.iter().enumerate().map(|(id, token)| (spell(token), json!(id))).collect();
        vocabulary.insert(END_OF_TEXT.to_owned(), json!(tokens.len()));
        let mut merges = String::from("#version: 0.2\n");
        for [left, right] in gpt2_merges(&tokens) {
            merges.push_str(&format!("{} {}\n", spell(left), spell(right)));
        }
        let settings = json!({
            "tokenizer_class": "GPT2Tokenizer",
            "add_prefix_space": false,
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "unk_token": END_OF_TEXT,
        });
        vec![
            ("vocab.json", Value::Object(vocabulary).to_string()),
            ("merges.txt", merges),
            ("tokenizer_config.json", format!("{settings:#}\n")),
        ]
    }
}

/// Returns the bytes of each of GPT-2's tokens but the last, which ends a document.
fn gpt2_tokens() -> Vec<Vec<u8>> {
    let last = Tokenizer::Gpt2.vocab_size() - 1;
    let bpe = r50k_base_singleton();
    (0..last).map(|id| bpe.decode_bytes(&[id]).unwrap_or_default()).collect()
}

/// Returns the pair that each token of more than one byte was merged from: the parts that remain of
/// its bytes after all earlier merges. Ids are ranks, so the pair with the lowest id merges first.
fn gpt2_merges(tokens: &[Vec<u8>]) -> Vec<[&[u8]; 2]> {
    let ids: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_slice(), id)).collect();
    let split = |(id, token): (usize, &'_ Vec<u8>)| -> Option<[usize; 3]> {
        // The boundaries of the parts.
        let mut bounds: Vec<usize> = (0..=token.len()).collect();
        while bounds.len() > 3 {
            let merged = bounds.windows(3).enumerate().filter_map(|(at, part)| {
                let rank = *ids.get(&token[part[0]..part[2]])?;
                (rank < id).then_some((rank, at))
            });
            let (_, at) = merged.min()?;
            bounds.remove(at + 1);
        }
        bounds.try_into().ok()
    };
    let merges = tokens.iter().enumerate().filter(|(_, token)| token.len() > 1);
    merges
        .filter_map(|(id, token)| Some((token, split((id, token))?)))
        .map(|(token, [from, middle, to])| [&token[from..middle], &token[middle..to]])
        .collect()
}

/// Returns the character that represents each byte in Hugging Face files: the byte itself if it is
/// a visible Latin-1 character, else the next unused character from U+0100.
fn byte_characters() -> Vec<char> {
    let visible = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut free = (0x100..).filter_map(char::from_u32);
    (0..=u8::MAX)
        .map(|byte| if visible(byte) { char::from(byte) } else { free.next().unwrap_or(' ') })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_merge_yields_its_token() {
        let tokens = gpt2_tokens();
        let merges = gpt2_merges(&tokens);
        // The vocabulary is 256 bytes, 50,000 merges and the end of a document.
        assert_eq!((tokens.len(), merges.len()), (50_256, 50_000));
        for (token, [left, right]) in tokens[256..].iter().zip(&merges) {
            assert_eq!(*token, [*left, *right].concat());
        }
    }

    #[test]
    fn bytes_are_spelled_as_in_the_published_files() {
        let characters = byte_characters();
        // The space is invisible byte 32, counted from 0.
        assert_eq!((characters[b' ' as usize], characters[b'a' as usize]), ('\u{120}', 'a'));
        let different: std::collections::HashSet<char> = characters.iter().copied().collect();
        assert_eq!(different.len(), 256);
        let files = Tokenizer::Gpt2.hugging_face_files();
        assert!(files[0].1.contains("\"\u{120}the\":262"));
        assert!(files[1].1.starts_with("#version: 0.2\n\u{120} t\n\u{120} a\nh e\n"));
        assert!(Tokenizer::Byte.hugging_face_files().is_empty());
    }
}
