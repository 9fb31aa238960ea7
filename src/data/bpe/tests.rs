use proptest::prelude::*;
use serde_json::json;

use super::super::testing::assert_says;
use super::super::{TextTokenizer, TokenKind, Tokenizer};
use super::trainer::WordCounts;
use super::*;

/// Trains on a text.
fn trained(text: &str, vocab_size: u32) -> Bpe {
    let mut counts = WordCounts::new(vocab_size).unwrap();
    counts.push(text).unwrap();
    counts.end_document().unwrap();
    counts.train().unwrap()
}

fn of_bpe(bpe: Bpe) -> Tokenizer {
    TextTokenizer::Bpe(bpe.into()).into()
}

fn tokenizer(text: &str, vocab_size: u32) -> Tokenizer {
    of_bpe(trained(text, vocab_size))
}

/// Returns the parsed `tokenizer.json` of a tokenizer that was trained on a text.
fn file(text: &str, vocab_size: u32) -> Value {
    serde_json::from_str(&trained(text, vocab_size).file).unwrap()
}

fn sample() -> String {
    let stories = super::super::stories::generate(7, 60_000);
    format!("{stories} caf\u{e9}s, na\u{ef}ve; it's  we'll\t12 345\r\n \u{4e2d}\u{6587} \u{1f600}")
}

#[test]
fn a_trained_vocabulary_has_bytes_merges_and_an_end() {
    let bpe = trained(&sample(), 512);
    assert_eq!((bpe.vocab_size(), bpe.end.as_ref().map(|(id, _)| *id)), (512, Some(511)));
    assert_eq!(bpe.bytes(511), Some(END_OF_TEXT.as_bytes()));
    let bytes: HashSet<&[u8]> = (0..256).filter_map(|id| bpe.bytes(id)).collect();
    assert!(bytes.len() == 256 && bytes.iter().all(|token| token.len() == 1));
    // Merges make the text shorter.
    let (text, tokenizer) = (sample(), of_bpe(bpe));
    assert!(tokenizer.encode(&text).unwrap().len() * 2 < text.len());
    // A short text has no more pairs.
    assert!(trained("ab ab", 5000).vocab_size() < 262);
}

#[test]
fn hugging_faces_tokenizer_gives_the_same_ids() {
    let mut texts = vec![sample(), "  leading   and trailing  ".into(), "don't\n\n\nDON'T".into()];
    // A long search: all of it is one match, less the last.
    texts.push(format!("{}x", " ".repeat(300_000)));
    // Debian's licence texts, if they are there.
    let licences = std::fs::read_dir("/usr/share/common-licenses").into_iter().flatten().flatten();
    texts.extend(licences.filter_map(|file| std::fs::read_to_string(file.path()).ok()));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let ours = assert_as_hugging_face(&file(&sample(), 700), &texts);
    for text in texts {
        assert_eq!(ours.decode(&ours.encode(text).unwrap()), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_is_decoded_as_it_was(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let tokenizer = tokenizer("the theme of them all, other then", 280);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()), text);
        // Bytes that are no text, one token each.
        let TextTokenizer::Bpe(bpe) = tokenizer.base() else { unreachable!() };
        let ids = bytes.iter().map(|byte| (0..256).find(|&id| bpe.bytes(id) == Some(&[*byte][..])));
        let ids: Vec<u32> = ids.map(Option::unwrap).collect();
        prop_assert_eq!(tokenizer.decode(&ids), String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_tokenizer_reads_back_from_its_json_form() {
    let tokenizer = tokenizer(&sample(), 300);
    let json = serde_json::to_string(&tokenizer).unwrap();
    assert!(json.starts_with(r#"{"kind":"bpe","file":""#), "{json:.80}");
    assert_eq!(serde_json::from_str::<Tokenizer>(&json).unwrap(), tokenizer);
    assert!(serde_json::from_str::<Tokenizer>(r#"{"kind":"bpe","file":"{}"}"#).is_err());
    let lengths = tokenizer.byte_lengths();
    assert_eq!((lengths.len(), lengths[0], lengths[299]), (300, 1, 0));
}

#[test]
fn the_vocabulary_is_spelled_as_in_the_file() {
    let bpe = tokenizer("ab ab ab", 260);
    let vocabulary = bpe.vocabulary().unwrap();
    assert_eq!(vocabulary.tokens.len(), bpe.vocab_size() as usize);
    assert_eq!(vocabulary.merges[0], "a b");
    let end = bpe.end_of_text().unwrap();
    assert_eq!(vocabulary.tokens[end as usize], (END_OF_TEXT.to_owned(), TokenKind::Control));
    assert_eq!(vocabulary.tokens[end as usize - 1].0, "\u{120}ab");
    assert_eq!(vocabulary.end, Some(end));
}

#[test]
fn gpt2_is_recognized() {
    let files = Tokenizer::GPT2.hugging_face_files();
    let vocab: Value = serde_json::from_str(&files[0].1).unwrap();
    let merges: Vec<&str> = files[1].1.lines().skip(1).collect();
    let bytes = byte_level(true);
    let mut file = json!({
        "added_tokens": [{"id": 50256, "content": END_OF_TEXT, "special": true}],
        "normalizer": null, "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    });
    let read = |file: &Value| Tokenizer::from_hugging_face(file.to_string().as_bytes()).unwrap();
    // Its ids are ranks, but its bytes have an order of their own.
    let bpe = Bpe::parse(&file.to_string()).unwrap();
    let text = "Hello world, it's 2024!\n";
    let mut ids = Vec::new();
    bpe.encode_into(text, &mut ids).unwrap();
    assert_eq!(ids, Tokenizer::GPT2.encode(text).unwrap());
    assert_eq!(read(&file), Tokenizer::GPT2);
    // Another one than GPT-2's, but not for text.
    file["added_tokens"][0] = json!({"id": 50257, "content": "<|other|>"});
    let other = read(&file);
    assert!(matches!(other.base(), TextTokenizer::Bpe(_)));
    assert!(other.has_text_of(&Tokenizer::GPT2) && Tokenizer::GPT2.has_text_of(&other));
    assert!(*other.base() != TextTokenizer::Gpt2);
}

#[test]
fn text_is_compared_by_tokens_and_not_by_their_number() {
    let texts = ["the fox ate the hen ", "an owl saw an eel "];
    let [fox, owl] = texts.map(|text| tokenizer(&text.repeat(9), 262));
    let mut padded = file(&texts[0].repeat(9), 262);
    let padding = json!({"id": 262, "content": "<|pad|>", "special": true});
    padded["added_tokens"].as_array_mut().unwrap().push(padding);
    let padded = of_bpe(Bpe::parse(&padded.to_string()).unwrap());
    assert_eq!(fox.vocab_size(), owl.vocab_size());
    assert!(!fox.has_text_of(&owl) && !owl.has_text_of(&Tokenizer::GPT2));
    assert!(fox.has_text_of(&padded) && fox.base() != padded.base());
    let [chat, padded_chat, other] = [&fox, &padded, &owl].map(|base| base.clone().with_chat());
    assert!(chat.has_text_of(&fox) && fox.has_text_of(&chat) && chat.has_text_of(&chat));
    assert!(!chat.has_text_of(&owl) && !chat.has_text_of(&other));
    // Their text is the same, the tokens of their messages are not.
    assert!(chat.has_text_of(&padded) && !chat.has_text_of(&padded_chat));
}

/// Checks that a file encodes texts as Hugging Face's tokenizer does.
fn assert_as_hugging_face(file: &Value, texts: &[&str]) -> Tokenizer {
    let file = file.to_string();
    let other = tokenizers::Tokenizer::from_bytes(&file).unwrap();
    let ours = of_bpe(Bpe::parse(&file).unwrap());
    for text in texts {
        let ids = ours.encode(text).unwrap();
        assert_eq!(ids, other.encode(*text, false).unwrap().get_ids(), "{text:.60}");
    }
    ours
}

fn split_by(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false})
    };
    let parts: Vec<Value> = patterns.iter().map(split).chain([byte_level(false)]).collect();
    json!({"type": "Sequence", "pretokenizers": parts})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex})
}

#[test]
fn words_of_other_patterns_are_split_by_them() {
    let (text, words) = (sample(), "12 12 34 1234 1234, (12) \u{4e2d}12\n");
    let mut file = file(&text, 400);
    // The second one covers digits only, the third has empty matches.
    for patterns in [&[r"\d|\D+"][..], &[r"\d{1,2}"], &[r"\p{L}*|."], &[r"\p{N}{1,3}", r" ?\p{L}+"]]
    {
        file["pre_tokenizer"] = split_by(patterns);
        let tokenizer = assert_as_hugging_face(&file, &[&text, words, "", " "]);
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()), text, "{patterns:?}");
    }
    let digits = json!({"type": "Digits", "individual_digits": true});
    let parts = [digits, byte_level(true)];
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": parts});
    let tokenizer = assert_as_hugging_face(&file, &[&text, words]);
    assert_eq!(tokenizer.encode("1234").unwrap().len(), 4, "a token for each digit");
}

/// GGUF files name how a tokenizer splits text into words.
#[test]
fn words_have_the_names_of_llama_cpp() {
    let mut file = file(&sample(), 400);
    let letters = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
    let others = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let [qwen, llama] =
        [r"\p{N}", r"\p{N}{1,3}"].map(|digits| format!("{letters}{digits}{others}"));
    let digits = json!({"type": "Digits", "individual_digits": true});
    let nfc = json!({"type": "NFC"});
    for (words, normalizer, expected) in [
        (byte_level(true), Value::Null, Ok("gpt-2")),
        (json!({"pretokenizers": [digits, byte_level(true)]}), Value::Null, Ok("smollm")),
        (split_by(&[&qwen]), nfc.clone(), Ok("qwen2")),
        (split_by(&[&llama]), Value::Null, Ok("llama-bpe")),
        (split_by(&[&llama]), nfc, Err("does not know its way to split")),
        (split_by(&[r"\d|\D+"]), Value::Null, Err("does not know its way to split")),
    ] {
        (file["pre_tokenizer"], file["normalizer"]) = (words, normalizer);
        let tokenizer = of_bpe(Bpe::parse(&file.to_string()).unwrap());
        match (tokenizer.vocabulary(), expected) {
            (Ok(vocabulary), Ok(name)) => assert_eq!(vocabulary.words, name),
            (Err(reason), Err(expected)) => assert_says(reason, expected),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }
}

/// SmolLM2's vocabulary lacks a few control characters, and bytes that are in no text.
#[test]
fn bytes_may_be_missing() {
    let mut file = file(&sample(), 400);
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    for byte in [4, 6, 0xc0, 0xff] {
        vocab.remove(&byte_character(byte).to_string()).unwrap();
    }
    let texts = [&*sample(), "a \u{4}b\u{6}\u{5}", "\u{4}"];
    let tokenizer = assert_as_hugging_face(&file, &texts);
    assert_eq!(tokenizer.decode(&tokenizer.encode(texts[1]).unwrap()), "a b\u{5}");
    file["model"]["unk_token"] = json!(END_OF_TEXT);
    let tokenizer = assert_as_hugging_face(&file, &texts);
    assert_eq!(tokenizer.encode("\u{4}").unwrap(), [399]);
}

#[test]
fn characters_are_composed_if_the_file_says_so() {
    let mut file = file(&sample(), 400);
    file["normalizer"] = json!({"type": "NFC"});
    let tokenizer = assert_as_hugging_face(&file, &["cafe\u{301}s nai\u{308}ve", &sample()]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("e\u{301}").unwrap()), "\u{e9}");
    file["normalizer"] = json!({"type": "Sequence", "normalizers": []});
    assert_as_hugging_face(&file, &["cafe\u{301}s"]);
}

#[test]
fn added_tokens_that_are_text_are_found_first() {
    let mut file = file(&sample(), 400);
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (id, content) in [(400, "  "), (401, "    "), (402, "<tool>"), (403, "<tool>s")] {
        added.push(json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": true, "special": false}));
    }
    let texts =
        ["a  b    c     d      e", "the <tool>s and <tool> of the <tools>", "    ", "<tool>"];
    let tokenizer = assert_as_hugging_face(&file, &texts);
    assert_eq!(tokenizer.encode("      ").unwrap(), [401, 400]);
}

/// As converted from a vocabulary that has ranks only, like Llama 3.
#[test]
fn all_merges_of_a_token_are_taken() {
    let text = sample();
    let mut file = file(&text, 500);
    let vocab = file["model"]["vocab"].as_object().unwrap().clone();
    let bytes = bytes_of_characters();
    let is_merged = |name: &&String| name.chars().count() > 1 && spelled(name, &bytes).is_some();
    let mut tokens: Vec<&String> =
        vocab.keys().filter(is_merged).filter(|name| vocab[*name] != 499).collect();
    tokens.sort_by_key(|name| vocab[*name].as_u64());
    let cut = |name: &str| -> Vec<[String; 2]> {
        let cuts = name.char_indices().skip(1).map(|(at, _)| name.split_at(at));
        let known = cuts.filter(|(l, r)| vocab.contains_key(*l) && vocab.contains_key(*r));
        known.map(|(l, r)| [l.to_owned(), r.to_owned()]).collect()
    };
    let merges: Vec<[String; 2]> = tokens.iter().flat_map(|name| cut(name)).collect();
    assert!(merges.len() > tokens.len(), "some have several");
    file["model"]["merges"] = json!(merges);
    assert!(Bpe::parse(&file.to_string()).unwrap_err().contains("its merges do not build"));
    file["model"]["ignore_merges"] = json!(true);
    // A word that no merge makes.
    file["model"]["vocab"]["\u{120}zqxj"] = json!(500);
    let tokenizer = assert_as_hugging_face(&file, &[&text, "a zqxj zqxjs"]);
    assert_eq!(tokenizer.encode(" zqxj").unwrap(), [500]);
}

/// Each of these would give other ids here than in transformers.
#[test]
fn other_tokenizers_are_refused() {
    let good = file(&sample(), 300);
    assert!(Bpe::parse(&good.to_string()).is_ok());
    for (pointer, value, reason) in [
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/normalizer", json!({"type": "NFKC"}), "NFKC"),
        ("/pre_tokenizer", json!({"type": "Metaspace"}), "byte-level"),
        ("/pre_tokenizer/add_prefix_space", json!(true), "byte-level"),
        ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
        ("/model/dropout", json!(0.1), "dropout"),
        ("/model/vocab", json!({"a": 0}), "no token for the byte"),
        ("/model/vocab/a", json!(0), "another token"),
        ("/model/vocab/a", json!(99_999_999), "99999999"),
        ("/model/merges/0", json!("ab"), "not a merge"),
        ("/model/merges/0", json!(["\u{1}", "a"]), "not in the vocabulary"),
        ("/model/vocab", json!(null), "no vocabulary"),
        ("/added_tokens/0/id", json!(null), "valid id"),
        ("/added_tokens/0", json!({"id": 0, "content": "x", "lstrip": true}), "around it"),
    ] {
        let mut other = good.clone();
        *other.pointer_mut(pointer).unwrap() = value;
        assert_says(Bpe::parse(&other.to_string()).unwrap_err(), reason);
    }
    let mut swapped = good;
    swapped["model"]["merges"].as_array_mut().unwrap().reverse();
    assert_says(Bpe::parse(&swapped.to_string()).unwrap_err(), "merge");
    assert!(Bpe::parse("{").unwrap_err().contains("not JSON"));
}
