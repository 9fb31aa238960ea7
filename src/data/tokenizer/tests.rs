use super::super::pieces::PIECE;
use super::*;
use proptest::prelude::*;

#[test]
fn gpt2_gives_the_published_ids() {
    let ids = Tokenizer::Gpt2.encode("Hello world, it's 2024!\n").unwrap();
    assert_eq!(
        ids,
        [15496, 995, 11, 340, 338, 48609, 0, 198],
        "the ids that OpenAI's own encoder gives"
    );
    assert_eq!(Tokenizer::Gpt2.decode(&[50_256]), END_OF_TEXT);
    assert_eq!(Tokenizer::Gpt2.decode(&[50_300]), "\u{fffd}");
}

#[test]
fn end_of_text_is_special_in_a_prompt_only() {
    for tokenizer in [Tokenizer::Gpt2, Tokenizer::Byte] {
        let end = tokenizer.end_of_text().unwrap();
        assert_eq!(end + 1, tokenizer.vocab_size());
        assert_eq!(tokenizer.encode_prompt(END_OF_TEXT).unwrap(), [end]);
        let plain = tokenizer.encode(END_OF_TEXT).unwrap();
        assert!(plain.len() > 1 && !plain.contains(&end));
    }
}

#[test]
fn an_unknown_character_is_named_with_its_offset() {
    let vocab = Tokenizer::Char(CharVocab::new("abc".chars()).unwrap());
    assert_eq!(vocab.encode("cab").unwrap(), [2, 0, 1]);
    assert_eq!(vocab.decode(&[2, 0, 9]), "ca\u{fffd}");
    let message = vocab.encode("ab\u{e9}").unwrap_err().to_string();
    assert!(
        message.contains("'\u{e9}' at byte 2") && message.contains("3 characters"),
        "{message}"
    );
}

#[test]
fn the_description_round_trips() {
    for (tokenizer, json) in [
        (Tokenizer::Gpt2, r#"{"kind":"gpt2"}"#),
        (Tokenizer::Byte, r#"{"kind":"byte"}"#),
        (
            Tokenizer::Char(CharVocab::new("b\na".chars()).unwrap()),
            r#"{"kind":"char","chars":"b\na"}"#,
        ),
    ] {
        assert_eq!(serde_json::to_string(&tokenizer).unwrap(), json);
        assert_eq!(serde_json::from_str::<Tokenizer>(json).unwrap(), tokenizer);
    }
    for bad in [r#"{"kind":"char","chars":"aa"}"#, r#"{"kind":"char","chars":""}"#] {
        assert!(serde_json::from_str::<Tokenizer>(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_very_long_run_of_spaces_is_no_failure() {
    // Uncut, this exceeds the stack of the regular expression engine.
    let text = format!("{}a", " ".repeat(1_200_000));
    let ids = Tokenizer::Gpt2.encode(&text).unwrap();
    assert_eq!(Tokenizer::Gpt2.decode(&ids), text);
}

#[test]
fn decoding_a_growing_list_only_adds_after_the_replacement() {
    let ids = Tokenizer::Byte.encode("a\u{e9}b").unwrap();
    let texts: Vec<_> = (1..=ids.len()).map(|n| Tokenizer::Byte.decode(&ids[..n])).collect();
    assert_eq!(texts, ["a", "a\u{fffd}", "a\u{e9}", "a\u{e9}b"]);
}

/// Text with everything that the pre-tokenizer treats specially.
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
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Byte] {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert!(ids.iter().all(|&id| id < tokenizer.vocab_size()));
            prop_assert_eq!(tokenizer.decode(&ids), &text[..]);
        }
    }

    /// The claim of `pieces`: every safe cut leaves the tokens as they are.
    #[test]
    fn cut_text_has_the_tokens_of_uncut_text(text in mixed()) {
        let whole = Tokenizer::Gpt2.encode(&text).unwrap();
        let mut previous_space = true;
        for (at, character) in text.char_indices() {
            let space = character.is_whitespace();
            if space && !previous_space {
                let (left, right) = text.split_at(at);
                let mut parts = Tokenizer::Gpt2.encode(left).unwrap();
                parts.extend(Tokenizer::Gpt2.encode(right).unwrap());
                prop_assert_eq!(&parts, &whole, "cut at {}", at);
            }
            previous_space = space;
        }
    }
}

#[test]
fn long_text_is_cut_without_a_trace() {
    let text = "It's 3 o'clock;\u{a0} \n\n  don't  wait\u{3000}for 12,000 ...\t\r\n".repeat(20_000);
    assert!(text.len() > 3 * PIECE);
    let (uncut, _) = r50k_base_singleton().encode(&text, &HashSet::new()).unwrap();
    assert_eq!(Tokenizer::Gpt2.encode(&text).unwrap(), uncut);
}
