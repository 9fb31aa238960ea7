//! The layout of a `tokenizer.json` of byte pairs.

use serde_json::{Map, Value, json};

use super::spelling::{END_OF_TEXT, byte_character};

/// Returns the text of a `tokenizer.json` with these tokens and merges, added tokens, pre-tokenizer, post-processor
/// and decoder.
pub(super) fn tokenizer_file(
    ids: Map<String, Value>,
    merges: &Value,
    added: &[Value],
    words: &Value,
    processor: &Value,
    decoder: &Value,
) -> String {
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": words,
        "post_processor": processor,
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

/// Returns an added token that text never becomes.
pub(super) fn special(id: u32, name: &str) -> Value {
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

/// Returns an added token that is found in text before all others.
pub(super) fn added(id: u32, text: &str) -> Value {
    let mut token = special(id, text);
    token["special"] = json!(false);
    token
}

/// Returns the post-processor that puts a token before each text.
pub(super) fn beginning_with(id: &Value, name: &str) -> Value {
    let token = |type_id| json!({"SpecialToken": {"id": name, "type_id": type_id}});
    let text = |text, type_id| json!({"Sequence": {"id": text, "type_id": type_id}});
    json!({
        "type": "TemplateProcessing",
        "single": [token(0), text("A", 0)],
        "pair": [token(0), text("A", 0), token(1), text("B", 1)],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]}},
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
    tokenizer_file(ids, merges, &[special(id, END_OF_TEXT)], &bytes, &Value::Null, &bytes)
}

/// Returns the ids of the bytes, each as its character.
pub(super) fn byte_ids() -> Map<String, Value> {
    (0..=u8::MAX).map(|byte| (byte_character(byte).to_string(), json!(byte))).collect()
}
