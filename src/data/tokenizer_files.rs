//! Tokenizer files of Hugging Face transformers.
//!
//! GPT-2 has `vocab.json` and `merges.txt`, from the built-in tables. Characters and bytes have a
//! `tokenizer.json` with byte pairs and no merges, which wgpt reads back. Other byte pairs are that
//! file. The tokens of conversations are added to it.

use std::path::Path;

use serde_json::{Map, Value, json};
use tiktoken_rs::r50k_base_singleton;

use super::bpe::{Bpe, Ranks, last_merge};
use super::tokenizer::END_OF_TEXT;
use super::{CharVocab, ChatTemplate, DataError, END_OF_MESSAGE, Role, Tokenizer};
use crate::disk;

/// The file of a tokenizer that is not GPT-2's.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The file that names the class of the tokenizer.
const SETTINGS_FILE: &str = "tokenizer_config.json";

impl Tokenizer {
    /// Returns names and contents of the files that transformers reads the tokenizer from. transformers
    /// drops a character outside a character vocabulary, which is an error here.
    pub fn hugging_face_files(&self) -> Vec<(&'static str, String)> {
        let mut settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            // Else decoding removes the space in " .".
            "clean_up_tokenization_spaces": false,
            // Else transformers 4 also gives a model token types, which GPT-2 adds as embeddings.
            "model_input_names": ["input_ids", "attention_mask"],
        });
        if let Some((_, end)) = self.end() {
            for name in ["bos_token", "eos_token", "unk_token"] {
                settings[name] = json!(end);
            }
        }
        if let Self::Chat(template) = self {
            settings["eos_token"] = json!(END_OF_MESSAGE);
            settings["chat_template"] = json!(template.jinja());
        }
        let mut files = if matches!(self, Self::Gpt2) {
            settings["tokenizer_class"] = json!("GPT2Tokenizer");
            settings["add_prefix_space"] = json!(false);
            let (mut ids, merges) = gpt2_pairs();
            ids.insert(END_OF_TEXT.to_owned(), json!(ids.len()));
            let merges = format!("#version: 0.2\n{}\n", merges.join("\n"));
            vec![("vocab.json", Value::Object(ids).to_string()), ("merges.txt", merges)]
        } else {
            vec![(TOKENIZER_FILE, self.json_file())]
        };
        files.push((SETTINGS_FILE, format!("{settings:#}\n")));
        files
    }

    pub(super) fn json_file(&self) -> String {
        match self {
            Self::Gpt2 => {
                let (ids, merges) = gpt2_pairs();
                byte_level_file(ids, &json!(merges), true)
            }
            // Byte pairs start from characters: without a pre-tokenizer the whole text is one word, and
            // without merges its tokens are its characters. Without a decoder, spaces join tokens.
            Self::Char(vocab) => {
                let ids = vocab.chars.iter().zip(0_u32..).map(|(c, id)| (c.to_string(), json!(id)));
                let fuse = json!({ "type": "Fuse" });
                tokenizer_file(ids.collect(), &json!([]), &[], &Value::Null, &fuse)
            }
            Self::Byte => byte_level_file(byte_ids(), &json!([]), false),
            Self::Bpe(bpe) => bpe.file.clone(),
            Self::Chat(template) => chat_file(template),
        }
    }

    /// Reads a `tokenizer.json`; the inner error is a clause that says what of it is not supported.
    pub fn from_hugging_face(file: &[u8]) -> Result<Result<Self, String>, serde_json::Error> {
        let json: Value = serde_json::from_slice(file)?;
        Ok(match chat_template(&json) {
            Some(template) => Ok(Self::Chat(template.into())),
            None => Self::of_text(&json, file),
        })
    }

    /// Reads the `tokenizer.json` at `path`, or in the folder `path`.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let path = if disk::is_dir(path) { path.join(TOKENIZER_FILE) } else { path.to_owned() };
        let file = disk::read(&path).map_err(DataError::io("read", &path))?;
        let tokenizer = Self::from_hugging_face(&file);
        let hint = "choose another tokenizer, or train one with bpe:8192";
        tokenizer
            .unwrap_or_else(|error| Err(format!("not JSON: {error}")))
            .map_err(|reason| DataError::unusable(&path, reason, hint))
    }

    fn of_text(json: &Value, file: &[u8]) -> Result<Self, String> {
        if let Some(simple) = simple(json) {
            return Ok(simple);
        }
        let bpe = Bpe::parse(str::from_utf8(file).map_err(|_| "not UTF-8")?)?;
        Ok(if bpe.is_gpt2() { Self::Gpt2 } else { Self::Bpe(bpe.into()) })
    }
}

/// Returns the tokenizer of a file without merges, if it is one of characters or bytes.
fn simple(file: &Value) -> Option<Tokenizer> {
    let model = &file["model"];
    let merges = model["merges"].as_array().map_or(0, Vec::len);
    if model["type"] != "BPE" || merges > 0 || !file["normalizer"].is_null() {
        return None;
    }
    let ids = model["vocab"].as_object()?;
    let added = file["added_tokens"].as_array().map_or(0, Vec::len);
    let mut bytes = byte_ids();
    bytes.insert(END_OF_TEXT.to_owned(), json!(256));
    if *ids == bytes && file["decoder"]["type"] == "ByteLevel" && added < 2 {
        return Some(Tokenizer::Byte);
    }
    let pair = |(token, id): (&String, &Value)| Some((id.as_i64()?, token.parse().ok()?));
    let vocab = CharVocab::of_ids(ids.iter().map(pair).collect::<Option<_>>()?);
    vocab.filter(|_| file["pre_tokenizer"].is_null() && added == 0).map(Tokenizer::Char)
}

fn tokenizer_file(
    ids: Map<String, Value>,
    merges: &Value,
    added: &[Value],
    words: &Value,
    decoder: &Value,
) -> String {
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": words,
        "post_processor": null,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": ids,
            "merges": merges,
        },
    });
    format!("{file:#}\n")
}

fn chat_file(template: &ChatTemplate) -> String {
    // It is JSON, as it was written or as it was read before.
    let mut file: Value = serde_json::from_str(&template.base().json_file()).unwrap_or_default();
    let added = template.added().map(|(id, name)| special(id, name));
    match &mut file["added_tokens"] {
        Value::Array(tokens) => tokens.extend(added),
        none => *none = added.collect(),
    }
    format!("{file:#}\n")
}

/// Returns the template of a `tokenizer.json` to which [`chat_file`] has added the tokens of
/// conversations; `None` if it has none.
fn chat_template(file: &Value) -> Option<ChatTemplate> {
    let tokens = file["added_tokens"].as_array()?;
    let names = || Role::ALL.map(Role::token).into_iter().chain([END_OF_MESSAGE]);
    let is = |token: &Value, name: &str| token["content"] == name;
    if !names().all(|name| tokens.iter().any(|token| is(token, name))) {
        return None;
    }
    let of_chat = |token: &Value| is(token, END_OF_TEXT) || names().any(|name| is(token, name));
    // Some of the last were in the vocabulary before: those are added that a template adds to the rest.
    let most = tokens.iter().rev().take_while(|token| of_chat(token)).count();
    (0..=most).rev().find_map(|added| {
        let (kept, added) = tokens.split_at(tokens.len() - added);
        let mut base = file.clone();
        base["added_tokens"] = json!(kept);
        let text = format!("{base:#}\n");
        let template = ChatTemplate::new(Tokenizer::of_text(&base, text.as_bytes()).ok()?);
        let entries = added.iter().map(|token| (token["id"].as_u64(), token["content"].as_str()));
        let is_same =
            template.added().map(|(id, name)| (Some(u64::from(id)), Some(name))).eq(entries);
        is_same.then_some(template)
    })
}

fn special(id: u32, name: &str) -> Value {
    json!({
        "id": id,
        "content": name,
        "single_word": false,
        "lstrip": false,
        "rstrip": false,
        "normalized": false,
        "special": true,
    })
}

/// Returns the text of a `tokenizer.json` of byte pairs: the tokens `ids`, and one more for the end of
/// a document. With `words`, text is split into GPT-2's words first.
pub(super) fn byte_level_file(mut ids: Map<String, Value>, merges: &Value, words: bool) -> String {
    let id = ids.len() as u32;
    ids.insert(END_OF_TEXT.to_owned(), json!(id));
    let bytes = json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": false,
        "use_regex": words,
    });
    tokenizer_file(ids, merges, &[special(id, END_OF_TEXT)], &bytes, &bytes)
}

/// Returns the ids of the bytes, each as its character.
fn byte_ids() -> Map<String, Value> {
    (0..=u8::MAX).map(|byte| (byte_character(byte).to_string(), json!(byte))).collect()
}

/// Returns the ids of GPT-2's tokens but the last, and its merges.
fn gpt2_pairs() -> (Map<String, Value>, Vec<String>) {
    let tokens = gpt2_tokens();
    let ids = tokens.iter().zip(0_u32..).map(|(token, id)| (spell(token), json!(id)));
    (ids.collect(), gpt2_merges(&tokens))
}

/// Returns the bytes of each of GPT-2's tokens but the last, which ends a document.
pub(super) fn gpt2_tokens() -> Vec<Vec<u8>> {
    let last = Tokenizer::Gpt2.vocab_size() - 1;
    let bpe = r50k_base_singleton();
    (0..last).map(|id| bpe.decode_bytes(&[id]).unwrap_or_default()).collect()
}

/// Returns the pair that each token of more than one byte was merged from, spelled with a space
/// between them. Ids are ranks.
fn gpt2_merges(tokens: &[Vec<u8>]) -> Vec<String> {
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

/// Returns the character that represents a byte in Hugging Face files: the byte itself if it is a
/// visible Latin-1 character, else the next unused character from U+0100.
pub(super) fn byte_character(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        0..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + (code - 0x7f),
        0xad => 0x143,
        _ => code,
    };
    char::from_u32(code).unwrap_or_default()
}

/// Spells the bytes of a token with those characters.
pub(super) fn spell(token: &[u8]) -> String {
    token.iter().map(|&byte| byte_character(byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::characters;
    use super::*;

    #[test]
    fn every_merge_yields_its_token() {
        let tokens = gpt2_tokens();
        let merges = gpt2_merges(&tokens);
        // The vocabulary is 256 bytes, 50,000 merges and the end of a document.
        assert_eq!((tokens.len(), merges.len()), (50_256, 50_000));
        for (token, merge) in tokens[256..].iter().zip(&merges) {
            assert_eq!(spell(token), merge.replace(' ', ""));
        }
    }

    #[test]
    fn bytes_are_spelled_as_in_the_published_files() {
        // Invisible bytes, counted from 0: the space is number 32.
        let invisible = (0..=u8::MAX).filter(|&byte| byte_character(byte) != char::from(byte));
        assert!(invisible.map(byte_character).eq('\u{100}'..='\u{143}'));
        assert_eq!(byte_character(b' '), '\u{120}');
        let files = Tokenizer::Gpt2.hugging_face_files();
        assert!(files[0].1.contains("\"\u{120}the\":262"));
        assert!(files[1].1.starts_with("#version: 0.2\n\u{120} t\n\u{120} a\nh e\n"));
    }

    fn file(tokenizer: &Tokenizer) -> Value {
        let files = tokenizer.hugging_face_files();
        let (name, text) = &files[0];
        assert_eq!((*name, files[1].0, files.len()), (TOKENIZER_FILE, SETTINGS_FILE, 2));
        serde_json::from_str(text).unwrap()
    }

    fn settings(tokenizer: &Tokenizer) -> Value {
        let (name, text) = tokenizer.hugging_face_files().pop().unwrap();
        assert_eq!(name, SETTINGS_FILE);
        serde_json::from_str(&text).unwrap()
    }

    fn read(file: &Value) -> Option<Tokenizer> {
        Tokenizer::from_hugging_face(file.to_string().as_bytes()).unwrap().ok()
    }

    #[test]
    fn characters_and_bytes_read_back() {
        let hard = "b\n\r\t \u{0}\"\\a\u{a0}\u{2028}\u{301}\u{feff}\u{1f600}\u{120}";
        for tokenizer in [characters(hard), Tokenizer::Byte] {
            assert_eq!(read(&file(&tokenizer)), Some(tokenizer));
        }
        assert!(Tokenizer::from_hugging_face(b"{").is_err());
    }

    #[test]
    fn the_files_have_what_transformers_needs() {
        let char = file(&characters("b\n "));
        let byte = file(&Tokenizer::Byte);
        for (file, pointer, expected) in [
            (&char, "/model/vocab", json!({ "b": 0, "\n": 1, " ": 2 })),
            (&char, "/decoder/type", json!("Fuse")),
            (&char, "/added_tokens", json!([])),
            (&byte, "/model/vocab/a", json!(97)),
            (&byte, "/model/vocab/\u{120}", json!(32)),
            (&byte, "/model/vocab/<|endoftext|>", json!(256)),
            (&byte, "/added_tokens/0/id", json!(256)),
            (&byte, "/pre_tokenizer/use_regex", json!(false)),
        ] {
            assert_eq!(file.pointer(pointer), Some(&expected), "{pointer}");
        }
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Byte] {
            assert_eq!(settings(&tokenizer)["eos_token"], END_OF_TEXT);
        }
    }

    #[test]
    fn conversations_read_back_from_one_file() {
        let mut ids = byte_ids();
        ids.insert("ab".to_owned(), json!(256));
        let trained = Bpe::parse(&byte_level_file(ids, &json!([["a", "b"]]), true));
        let bases = [
            Tokenizer::Gpt2,
            Tokenizer::Byte,
            characters("ab<|>"),
            Tokenizer::Bpe(trained.unwrap().into()),
        ];
        for base in bases {
            let template = ChatTemplate::new(base);
            let chat = Tokenizer::Chat(template.clone().into());
            let file = file(&chat);
            let tokens = template.specials().map(|(id, name)| special(id, name));
            assert_eq!(file["added_tokens"], json!(tokens));
            let back = read(&file).unwrap();
            assert_eq!(back.vocab_size(), chat.vocab_size());
            assert_eq!(back.chat().unwrap().specials(), template.specials());
            assert_eq!(back.kind(), chat.kind());
            let settings = settings(&chat);
            assert_eq!(settings["bos_token"], END_OF_TEXT);
            assert_eq!(settings["eos_token"], END_OF_MESSAGE);
            assert_eq!(settings["chat_template"], template.jinja());
        }
    }

    /// The token that ends a message and a role may be in a vocabulary, the last or before others.
    #[test]
    fn conversations_of_a_vocabulary_with_some_of_their_tokens_read_back() {
        let base = byte_level_file(byte_ids(), &json!([]), true);
        let base: Value = serde_json::from_str(&base).unwrap();
        for names in [&[END_OF_MESSAGE][..], &["<|user|>", "<|other|>"], &["<|other|>", "<|user|>"]]
        {
            let mut base = base.clone();
            let added = names.iter().zip(257..).map(|(name, id)| special(id, name));
            base["added_tokens"].as_array_mut().unwrap().extend(added);
            let text = read(&base).unwrap();
            let chat = Tokenizer::Chat(ChatTemplate::new(text).into());
            let others = names.iter().filter(|name| **name == "<|other|>").count();
            assert_eq!(chat.vocab_size(), 261 + others as u32);
            let again = read(&file(&chat)).unwrap();
            assert!(again.has_tokens_of(&chat) && again.chat().is_some(), "{names:?}");
            let lengths = chat.byte_lengths();
            let specials = chat.chat().unwrap().specials();
            assert!(specials.iter().all(|(id, _)| lengths[*id as usize] == 0), "{names:?}");
        }
    }

    #[test]
    fn other_tokenizers_are_not_taken_for_characters() {
        let good = file(&characters("ab"));
        assert!(read(&good).is_some());
        for (pointer, value) in [
            ("/model/type", json!("WordLevel")),
            ("/model/merges", json!([["a", "b"]])),
            ("/model/vocab", json!({ "a": 0, "bb": 1 })),
            ("/model/vocab", json!({ "a": 0, "b": 2 })),
            ("/model/vocab", json!({})),
            ("/model", json!(null)),
            ("/normalizer", json!({ "type": "Lowercase" })),
            ("/pre_tokenizer", json!({ "type": "Whitespace" })),
        ] {
            let mut other = good.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert_eq!(read(&other), None, "{pointer}");
        }
        let mut other = file(&Tokenizer::Byte);
        other["model"]["vocab"]["a"] = json!(98);
        assert_eq!(read(&other), None);
    }
}
