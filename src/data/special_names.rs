//! What a model folder calls its special tokens, and where it uses them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::disk;

/// The file that names the class of the tokenizer.
pub(super) const SETTINGS_FILE: &str = "tokenizer_config.json";
/// The file of older folders that names the special tokens.
pub(super) const SPECIALS_FILE: &str = "special_tokens_map.json";

/// The special tokens of a folder by their roles, like `eos_token`. Without any, the end of a document is guessed
/// by its usual names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialNames {
    pub tokens: BTreeMap<String, String>,
    /// True if text begins with the `bos_token`, also in the data that the model was trained on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adds_begin: bool,
    /// The ids at which generation stops, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<u32>,
    /// The token that ends a document. In models that chat, the `eos_token` often ends a message instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_end: Option<String>,
}

impl SpecialNames {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the names of a folder, whose `tokenizer.json` is `tokenizer`. A file that cannot be read names nothing:
    /// whoever needs it reports that.
    pub fn read(folder: &Path, tokenizer: &Value) -> Self {
        let json = |name: &str| {
            let file = disk::read_regular(folder.join(name)).ok();
            file.and_then(|file| serde_json::from_slice::<Value>(&file).ok()).unwrap_or_default()
        };
        let settings = json(SETTINGS_FILE);
        let mut tokens = named(&json(SPECIALS_FILE));
        tokens.extend(named(&settings));
        // Generation goes by the ids of its own file, and falls back on the model's.
        let [generation, model] = ["generation_config.json", "config.json"].map(json);
        let ids = |role: &str| {
            let key = format!("{role}_id");
            let ids = [&generation[&key], &model[&key]].into_iter().find(|id| !id.is_null());
            let one = |id: &Value| id.as_u64().and_then(|id| id.try_into().ok());
            match ids {
                Some(Value::Array(ids)) => ids.iter().filter_map(one).collect(),
                id => id.and_then(one).into_iter().collect::<Vec<u32>>(),
            }
        };
        for role in ["bos_token", "eos_token", "pad_token", "unk_token"] {
            let content = ids(role).first().and_then(|id| content(tokenizer, *id));
            if let (false, Some(content)) = (tokens.contains_key(role), content) {
                tokens.insert(role.to_owned(), content);
            }
        }
        let stops = ids("eos_token");
        Self {
            adds_begin: tokens.get("bos_token").is_some_and(|begin| {
                let adds = &settings["add_bos_token"];
                adds == true || adds.is_null() && begins_with(&tokenizer["post_processor"], begin)
            }),
            tokens,
            stops: if stops.len() > 1 { stops } else { Vec::new() },
            document_end: None,
        }
    }
}

/// Returns the entries of a file that name tokens.
pub(super) fn named(file: &Value) -> BTreeMap<String, String> {
    let entry = |(name, token): (&String, &Value)| {
        let token = token.as_str().or(token["content"].as_str())?;
        name.ends_with("_token").then(|| (name.clone(), token.to_owned()))
    };
    file.as_object().into_iter().flatten().filter_map(entry).collect()
}

/// Returns the token of an id.
fn content(tokenizer: &Value, id: u32) -> Option<String> {
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter(|token| token["id"] == id).find_map(|token| token["content"].as_str());
    let vocabulary = tokenizer["model"]["vocab"].as_object().into_iter().flatten();
    let mut of_vocabulary = vocabulary.filter(|(_, known)| **known == id).map(|(name, _)| name);
    added.map(str::to_owned).or_else(|| of_vocabulary.next().cloned())
}

/// Returns true if a post-processor puts this token before a text.
fn begins_with(processor: &Value, token: &str) -> bool {
    let parts = processor["processors"].as_array().into_iter().flatten();
    let first = &processor["single"][0]["SpecialToken"]["id"];
    first == token || parts.into_iter().any(|part| begins_with(part, token))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::folder;
    use super::*;

    #[test]
    fn a_folder_names_its_tokens_in_four_files() {
        let tokenizer = json!({
            "added_tokens": [{"id": 7, "content": "<begin>"}, {"id": 9, "content": "<turn>"}],
            "model": {"vocab": {"<end>": 8}},
            "post_processor": {"type": "Sequence", "processors": [
                {"type": "ByteLevel"},
                {"type": "TemplateProcessing", "single": [
                    {"SpecialToken": {"id": "<begin>", "type_id": 0}}, {"Sequence": {"id": "A"}},
                ]},
            ]},
        });
        let map = r#"{"eos_token": {"content": "<old>"}, "pad_token": "<pad>"}"#;
        let generation = r#"{"bos_token_id": 7, "eos_token_id": [8, 9]}"#;
        let files = |settings| {
            folder(&[
                ("special_tokens_map.json", map),
                ("tokenizer_config.json", settings),
                ("generation_config.json", generation),
                ("config.json", "{\"eos_token_id\": 1}"),
            ])
        };
        let found = SpecialNames::read(files(r#"{"eos_token": "<turn>"}"#).path(), &tokenizer);
        let expected = [("bos_token", "<begin>"), ("eos_token", "<turn>"), ("pad_token", "<pad>")];
        let expected = expected.map(|(role, token)| (role.to_owned(), token.to_owned()));
        assert_eq!(found.tokens, expected.into());
        assert_eq!((found.adds_begin, found.stops), (true, vec![8, 9]));
        let settings = r#"{"add_bos_token": false}"#;
        assert!(!SpecialNames::read(files(settings).path(), &tokenizer).adds_begin);
        // Ids alone name a token of the vocabulary, too.
        let ids = folder(&[("config.json", r#"{"eos_token_id": 8}"#)]);
        let found = SpecialNames::read(ids.path(), &tokenizer);
        assert_eq!((found.tokens["eos_token"].as_str(), found.stops), ("<end>", vec![]));
        assert!(SpecialNames::read(folder(&[("a", "")]).path(), &tokenizer).is_empty());
    }
}
