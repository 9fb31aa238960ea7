use super::super::pieces::PIECE;
use std::collections::HashSet;

use proptest::prelude::*;
use tiktoken_rs::r50k_base_singleton;

use super::super::testing::{assert_says, characters, padded_bytes, padded_chat};
use super::*;

#[test]
fn gpt2_ids_match_openai() {
    let ids = Tokenizer::GPT2.encode("Hello world, it's 2024!\n").unwrap();
    assert_eq!(ids, [15496, 995, 11, 340, 338, 48609, 0, 198], "the ids of OpenAI's encoder");
    assert_eq!(Tokenizer::GPT2.decode(&[50_256]), END_OF_TEXT);
    assert_eq!(Tokenizer::GPT2.decode(&[50_300]), "\u{fffd}");
}

#[test]
fn end_of_text_is_special_only_in_a_prompt() {
    for tokenizer in [Tokenizer::GPT2, Tokenizer::BYTE] {
        let end = tokenizer.end_of_text().unwrap();
        assert_eq!(end + 1, tokenizer.vocab_size());
        assert_eq!(tokenizer.encode_prompt(END_OF_TEXT).unwrap(), [end]);
        let plain = tokenizer.encode(END_OF_TEXT).unwrap();
        assert!(plain.len() > 1 && !plain.contains(&end));
    }
}

#[test]
fn the_error_names_an_unknown_character_and_its_offset() {
    let vocab = characters("abc");
    assert_eq!(vocab.encode("cab").unwrap(), [2, 0, 1]);
    assert_eq!(vocab.decode(&[2, 0, 9]), "ca\u{fffd}");
    let error = vocab.encode("ab\u{e9}").unwrap_err();
    assert_says(&error, "'\u{e9}' at byte 2");
    assert_says(&error, "3 characters");
}

#[test]
fn the_json_form_round_trips() {
    for (tokenizer, json) in [
        (Tokenizer::GPT2, r#"{"kind":"gpt2"}"#),
        (Tokenizer::BYTE, r#"{"kind":"byte"}"#),
        (characters("b\na"), r#"{"kind":"char","chars":"b\na"}"#),
    ] {
        assert_eq!(serde_json::to_string(&tokenizer).unwrap(), json);
        assert_eq!(serde_json::from_str::<Tokenizer>(json).unwrap(), tokenizer);
    }
    for bad in [r#"{"kind":"char","chars":"aa"}"#, r#"{"kind":"char","chars":""}"#] {
        assert!(serde_json::from_str::<Tokenizer>(bad).is_err(), "{bad}");
    }
}

/// Of the 262 tokens, only a system prompt has the last one, for padding.
#[test]
fn a_model_needs_no_row_for_a_token_that_text_does_not_become() {
    for tokenizer in [padded_bytes(), padded_chat()] {
        assert_eq!((tokenizer.vocab_size(), tokenizer.rows()), (262, 261));
        tokenizer.check_rows(261).unwrap();
        let said = "the tokenizer needs a model with 261 tokens, but the model has 260";
        assert_eq!(tokenizer.check_rows(260).unwrap_err().to_string(), said);
    }
    // wgpt's own template has its tokens after them.
    let own = padded_bytes().with_chat();
    assert_eq!((own.vocab_size(), own.rows()), (266, 266));
    assert!(own.check_rows(265).is_err());
    own.check_text_rows(265).unwrap();
}

#[test]
fn a_very_long_run_of_spaces_is_encoded() {
    // In one piece, this exceeds the stack of the regular expression engine.
    let text = format!("{}a", " ".repeat(1_200_000));
    let ids = Tokenizer::GPT2.encode(&text).unwrap();
    assert_eq!(Tokenizer::GPT2.decode(&ids), text);
}

/// Generates text with everything that the pre-tokenizer treats specially.
fn mixed() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        "[a-z]{1,8}",
        "[0-9]{1,5}",
        "[ \t\r\n\u{a0}\u{2003}\u{3000}]{1,4}",
        "'(s|t|re|ve|m|ll|d)",
        "[!-/]{1,4}",
        "\\PC{1,4}",
        Just(END_OF_TEXT.to_owned()),
    ];
    proptest::collection::vec(atom, 0..60).prop_map(|atoms| atoms.concat())
}

proptest! {
    #[test]
    fn text_round_trips(text in mixed()) {
        for tokenizer in [Tokenizer::GPT2, Tokenizer::BYTE] {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert!(ids.iter().all(|&id| id < tokenizer.vocab_size()));
            prop_assert_eq!(tokenizer.decode(&ids), &text[..]);
        }
    }

    /// The claim of `pieces`: splitting at a safe position does not change the tokens.
    #[test]
    fn safe_splits_keep_the_tokens(text in mixed()) {
        let whole = Tokenizer::GPT2.encode(&text).unwrap();
        let mut previous_space = true;
        for (at, character) in text.char_indices() {
            let space = character.is_whitespace();
            if space && !previous_space {
                let (left, right) = text.split_at(at);
                let mut parts = Tokenizer::GPT2.encode(left).unwrap();
                parts.extend(Tokenizer::GPT2.encode(right).unwrap());
                prop_assert_eq!(&parts, &whole, "split at {}", at);
            }
            previous_space = space;
        }
    }
}

#[test]
fn splitting_long_text_keeps_the_tokens() {
    let text = "It's 3 o'clock;\u{a0} \n\n  don't  wait\u{3000}for 12,000 ...\t\r\n".repeat(20_000);
    assert!(text.len() > 3 * PIECE);
    let (whole, _) = r50k_base_singleton().encode(&text, &HashSet::new()).unwrap();
    assert_eq!(Tokenizer::GPT2.encode(&text).unwrap(), whole);
}
