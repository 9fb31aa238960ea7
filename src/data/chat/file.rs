//! The tokens of conversations in a `tokenizer.json`.

use serde_json::{Value, json};

use super::{ChatTemplate, END_OF_MESSAGE, Role, TextTokenizer};
use crate::data::special_names::SpecialNames;
use crate::data::spelling::END_OF_TEXT;
use crate::data::tokenizer_json::special;

/// Returns the `tokenizer.json` of the text of a template, with the tokens that the template adds.
pub(in crate::data) fn write(template: &ChatTemplate) -> String {
    let text = template.base.json_file();
    if template.added().next().is_none() {
        return text;
    }
    // It is JSON: we have written it, or read it before.
    let mut file: Value = serde_json::from_str(&text).unwrap_or_default();
    let added = template.added().map(|(id, name)| special(id, name));
    match &mut file["added_tokens"] {
        Value::Array(tokens) => tokens.extend(added),
        none => *none = added.collect(),
    }
    format!("{file:#}\n")
}

/// Returns the template of a `tokenizer.json` to which [`write()`] has added the tokens of
/// conversations; `None` if it has none. `specials` are those of its folder.
pub(in crate::data) fn read(file: &Value, specials: &SpecialNames) -> Option<ChatTemplate> {
    let tokens = file["added_tokens"].as_array()?;
    let names = || Role::ALL.map(Role::token).into_iter().chain([END_OF_MESSAGE]);
    let is = |token: &Value, name: &str| token["content"] == name;
    if !names().all(|name| tokens.iter().any(|token| is(token, name))) {
        return None;
    }
    let of_chat = |token: &Value| is(token, END_OF_TEXT) || names().any(|name| is(token, name));
    // Some of the last tokens may have been in the vocabulary before. The added ones are those that a template
    // adds to the rest.
    let most = tokens.iter().rev().take_while(|token| of_chat(token)).count();
    (0..=most).rev().find_map(|added| {
        let (kept, added) = tokens.split_at(tokens.len() - added);
        let mut base = file.clone();
        base["added_tokens"] = json!(kept);
        let text = format!("{base:#}\n");
        // The token that begins a conversation here is the one that ends a document elsewhere.
        let document_end = specials.tokens.get("bos_token").cloned();
        let specials = SpecialNames { document_end, ..specials.clone() };
        let text = TextTokenizer::parse(&base, &text).ok()?;
        let template = ChatTemplate::new(text.with_names(specials, true));
        let entries = added.iter().map(|token| (token["id"].as_u64(), token["content"].as_str()));
        let is_same =
            template.added().map(|(id, name)| (Some(u64::from(id)), Some(name))).eq(entries);
        is_same.then_some(template)
    })
}
