//! The files of a repository, and which of them wgpt can use.

use glob::{MatchOptions, Pattern};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::address::shown;
use super::client::{HubClient, Trouble};
use super::error::{untrue, usage};
use super::hash::{Hash, is_hash};
use super::name::{RepoKind, RepoName, is_safe_path};
use crate::protocol::Failure;

/// The Hub's description of a repository.
#[derive(Debug)]
pub(super) struct Listing {
    pub kind: RepoKind,
    /// The current name of the repository.
    pub id: String,
    pub commit: String,
    pub licence: Option<String>,
    pub is_gated: bool,
    pub files: Vec<RepoFile>,
    configs: Vec<DataConfig>,
}

#[derive(Clone, Debug)]
pub(super) struct RepoFile {
    pub path: String,
    pub size: u64,
    pub hash: Hash,
}

/// A named part of a data set.
#[derive(Debug)]
pub(super) struct DataConfig {
    name: String,
    is_default: bool,
    /// Patterns of paths.
    patterns: Vec<String>,
}

#[derive(Deserialize)]
struct RepoInfo {
    id: Option<String>,
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
    #[serde(default, rename = "cardData")]
    card: Value,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    gated: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Requests the files of a repository. A name without a kind is a model, or else a data set.
    pub fn request(client: &HubClient, name: &RepoName) -> Result<Self, Failure> {
        let kinds = match name.kind {
            Some(kind) => vec![kind],
            None => vec![RepoKind::Model, RepoKind::Dataset],
        };
        for kind in kinds {
            let words = ["api", kind.plural()].into_iter().chain(name.id.split('/'));
            let mut url = client.address(words);
            // With sizes and hashes.
            url.set_query(Some("blobs=True"));
            match client.patiently(|| client.json(&url)) {
                Ok(value) => return Self::read(kind, name, &url, value),
                // Without a token, names that do not exist are denied, so that nobody learns private names.
                Err(Trouble::Denied | Trouble::NotFound) => {}
                Err(Trouble::Passing { reason, .. }) => return Err(Failure::new(reason, "")),
                Err(Trouble::Final(error)) => return Err(error),
            }
        }
        let text = format!("{name}: no public model or data set has this name");
        let hint = if client.token.is_some() {
            "check the name, and whether your token may read it"
        } else {
            "check the name; for a private one, set HF_TOKEN to a token of huggingface.co"
        };
        Err(Failure::bad_data(text, hint))
    }

    fn read(kind: RepoKind, name: &RepoName, url: &Url, value: Value) -> Result<Self, Failure> {
        let wrong = |reason: String| untrue(shown(url), format!("an unexpected answer: {reason}"));
        let info: RepoInfo =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        if !is_hash(&info.sha, 40) {
            return Err(wrong(format!("{:?} is not a commit", info.sha)));
        }
        let file = |Sibling { rfilename: path, size, blob_id, lfs }: Sibling| {
            let (size, hash) = match (lfs, size, blob_id) {
                (Some(Lfs { sha256, size }), ..) => (size, Hash::Sha256(sha256)),
                (None, Some(size), Some(sha1)) => (size, Hash::GitBlob(sha1)),
                _ => return Err(wrong(format!("no size and hash of {path:?}"))),
            };
            if !hash.is_valid() {
                return Err(wrong(format!("{:?} is not the hash of {path:?}", hash.hex())));
            }
            Ok(RepoFile { path, size, hash })
        };
        let files = info.siblings.into_iter().map(file).collect::<Result<Vec<_>, _>>()?;
        let renamed = info.id.filter(|id| format!("hf:{id}").parse::<RepoName>().is_ok());
        Ok(Self {
            kind,
            id: renamed.unwrap_or_else(|| name.id.clone()),
            commit: info.sha,
            licence: licence(&info.card, &info.tags),
            is_gated: !matches!(info.gated, Value::Null | Value::Bool(false)),
            files,
            configs: configs(&info.card),
        })
    }

    /// Returns the files of `name` that wgpt reads.
    pub fn choose(&self, name: &RepoName) -> Result<Vec<RepoFile>, Failure> {
        let paths: Vec<String> = self.files.iter().map(|file| file.path.clone()).collect();
        let chosen = choose(self.kind, name, &paths, &self.configs)?;
        let file = |at: usize| {
            let file = &self.files[at];
            if !is_safe_path(&file.path) {
                let reason = format!("{:?} is not a path in a repository", file.path);
                return Err(untrue(name, reason));
            }
            Ok(file.clone())
        };
        chosen.into_iter().map(file).collect()
    }
}

fn licence(card: &Value, tags: &[String]) -> Option<String> {
    let text = |value: &Value| {
        Some(value.as_str()?.chars().filter(|c| !c.is_control()).take(60).collect())
    };
    let of_card = match &card["license"] {
        // A licence that the Hub has no short name for.
        Value::String(other) if other == "other" => text(&card["license_name"]),
        Value::Array(all) => all.first().and_then(text),
        one => text(one),
    };
    let of_tags = || text(&Value::from(tags.iter().find_map(|tag| tag.strip_prefix("license:"))?));
    of_card.or_else(of_tags)
}

/// Reads the parts that a data set's card lists.
fn configs(card: &Value) -> Vec<DataConfig> {
    let config = |value: &Value| {
        let mut patterns = Vec::new();
        add_patterns(&value["data_files"], &mut patterns);
        let name = value["config_name"].as_str()?.to_string();
        let is_default = value["default"].as_bool().unwrap_or(name == "default");
        // The name is printed in a hint.
        let is_usable = !patterns.is_empty() && is_safe_path(&name);
        is_usable.then_some(DataConfig { name, is_default, patterns })
    };
    card["configs"].as_array().into_iter().flatten().filter_map(config).collect()
}

/// Adds a pattern, a list of patterns, or the patterns of splits.
fn add_patterns(value: &Value, patterns: &mut Vec<String>) {
    match value {
        Value::String(pattern) => patterns.push(pattern.clone()),
        Value::Array(all) => all.iter().for_each(|value| add_patterns(value, patterns)),
        Value::Object(split) => {
            split.get("path").into_iter().for_each(|path| add_patterns(path, patterns))
        }
        _ => {}
    }
}

/// Returns the indices of the files that wgpt reads, of the whole repository or of the part in `name`.
pub(super) fn choose(
    kind: RepoKind,
    name: &RepoName,
    files: &[String],
    configs: &[DataConfig],
) -> Result<Vec<usize>, Failure> {
    match kind {
        RepoKind::Model => choose_model(name, files),
        RepoKind::Dataset => choose_texts(name, files, configs),
    }
}

/// Files of a model in addition to its weights.
const MODEL_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

fn choose_model(name: &RepoName, files: &[String]) -> Result<Vec<usize>, Failure> {
    let folder = name.part.as_ref().map_or_else(String::new, |part| format!("{part}/"));
    let named = || {
        let names =
            files.iter().map(|file| file.strip_prefix(&folder).filter(|name| !name.contains('/')));
        names.enumerate().filter_map(|(at, name)| Some((at, name?)))
    };
    let is_whole = named().any(|(_, name)| name == "model.safetensors");
    let is_weights = |name: &str| {
        if is_whole {
            name == "model.safetensors"
        } else {
            name == "model.safetensors.index.json"
                || (name.starts_with("model-") && name.ends_with(".safetensors"))
        }
    };
    let has = |test: &dyn Fn(&str) -> bool| named().any(|(_, name)| test(name));
    if !has(&|name| name == "config.json") || !has(&is_weights) {
        let text = format!("{name}: no config.json and model.safetensors, which wgpt needs");
        let hint = "give the repository of the original model: wgpt cannot use one that only has \
                    PyTorch, adapter or GGUF files";
        return Err(Failure::bad_data(text, hint));
    }
    let is_used = |name: &str| MODEL_FILES.contains(&name) || is_weights(name);
    Ok(named().filter(|(_, name)| is_used(name)).map(|(at, _)| at).collect())
}

/// Returns the rank of a file's format, if `wgpt prepare` reads it. A repository with several formats has the
/// same text in each, and the first is the smallest.
fn format_rank(path: &str) -> Option<usize> {
    let name = path.rsplit('/').next()?.to_ascii_lowercase();
    let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    let (_, extension) = stem.rsplit_once('.')?;
    let rank = match extension {
        "parquet" => 0,
        "jsonl" => 1,
        "txt" => 2,
        "csv" | "tsv" => 3,
        _ => return None,
    };
    (rank > 0 || stem == name).then_some(rank)
}

fn choose_texts(
    name: &RepoName,
    files: &[String],
    configs: &[DataConfig],
) -> Result<Vec<usize>, Failure> {
    let all = || 0..files.len();
    let of_config = |config: &DataConfig| -> Vec<usize> {
        let is_in =
            |at: &usize| config.patterns.iter().any(|pattern| matches(pattern, &files[*at]));
        all().filter(is_in).collect()
    };
    let mut chosen: Vec<usize> = match &name.part {
        Some(part) => match configs.iter().find(|config| config.name == *part) {
            Some(config) => of_config(config),
            None => {
                let is_below = |file: &str| {
                    file.strip_prefix(part.as_str()).is_some_and(|rest| rest.starts_with('/'))
                };
                all().filter(|&at| files[at] == *part || is_below(&files[at])).collect()
            }
        },
        None => match configs {
            [] => all().collect(),
            [only] => of_config(only),
            several => match several.iter().find(|config| config.is_default) {
                Some(config) => of_config(config),
                None => {
                    let text = format!("{name}: this data set has several parts");
                    return Err(usage(text, parts_hint(name, several)));
                }
            },
        },
    };
    if chosen.is_empty() && name.part.is_some() {
        let text = format!("{name}: no configuration, folder or file of this name");
        return Err(Failure::bad_data(text, parts_hint(name, configs)));
    }
    let best = chosen.iter().filter_map(|&at| format_rank(&files[at])).min();
    let Some(best) = best else {
        let text = format!(
            "{name}: no .parquet, .jsonl, .txt, .csv or .tsv file, which `wgpt prepare` reads"
        );
        return Err(Failure::bad_data(
            text,
            "fetch its files from its page and give them to `wgpt prepare`, or choose another data set",
        ));
    };
    chosen.retain(|&at| format_rank(&files[at]) == Some(best));
    // Test data is not for training.
    let has_word = |at: usize, words: &[&str]| {
        let lower = files[at].to_ascii_lowercase();
        lower.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word))
    };
    if chosen.len() > 1 && chosen.iter().any(|&at| has_word(at, &["train"])) {
        chosen.retain(|&at| {
            has_word(at, &["train"])
                || !has_word(at, &["test", "validation", "valid", "val", "dev"])
        });
    }
    Ok(chosen)
}

fn parts_hint(name: &RepoName, configs: &[DataConfig]) -> String {
    const NAMED: usize = 8;
    let whole = RepoName { part: None, ..name.clone() };
    let Some(first) = configs.first() else {
        return format!("https://huggingface.co/datasets/{}/tree/main shows its folders", name.id);
    };
    let names: Vec<_> = configs.iter().take(NAMED).map(|config| config.name.as_str()).collect();
    let more = if configs.len() > NAMED { ", ..." } else { "" };
    format!("choose a part, as in {whole}#{}: {}{more}", first.name, names.join(", "))
}

/// Returns true if a path fits a pattern. A `*` matches within one folder.
fn matches(pattern: &str, path: &str) -> bool {
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let pattern = Pattern::new(pattern.strip_prefix("./").unwrap_or(pattern));
    pattern.is_ok_and(|pattern| pattern.matches_with(path, options))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chosen(kind: RepoKind, name: &str, files: &[&str], card: Value) -> Result<String, Failure> {
        let files: Vec<String> = files.iter().map(ToString::to_string).collect();
        let chosen = choose(kind, &name.parse().unwrap(), &files, &configs(&card))?;
        Ok(chosen.iter().map(|&at| files[at].as_str()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_model_is_its_configuration_tokenizer_and_safetensors() {
        let of = |name: &str, files: &[&str]| chosen(RepoKind::Model, name, files, Value::Null);
        let gpt2 = [
            "64.tflite",
            "README.md",
            "config.json",
            "flax_model.msgpack",
            "merges.txt",
            "model.safetensors",
            "onnx/config.json",
            "onnx/decoder_model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
            "vocab.json",
        ];
        let expected = "config.json merges.txt model.safetensors tokenizer.json vocab.json";
        assert_eq!(of("hf:gpt2", &gpt2).unwrap(), expected);
        let shards = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(of("hf:a/b", &shards).unwrap().split(' ').count(), 4);
        let below = ["config.json", "small/config.json", "small/model.safetensors"];
        assert_eq!(of("hf:a/b#small", &below).unwrap(), below[1..].join(" "));
        for files in
            [&["config.json", "pytorch_model.bin"][..], &["model.safetensors"], &below, &[]]
        {
            assert!(of("hf:a/b", files).is_err(), "{files:?}");
        }
    }

    #[test]
    fn texts_are_of_one_format_and_for_training() {
        let of = |name: &str, files: &[&str], card| chosen(RepoKind::Dataset, name, files, card);
        let stories = [
            "README.md",
            "TinyStories-train.txt",
            "TinyStories-valid.txt",
            "all.tar.gz",
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002.parquet",
            "data/validation-00000-of-00001.parquet",
        ];
        assert_eq!(of("hf:a/b", &stories, Value::Null).unwrap(), stories[4..6].join(" "));
        assert_eq!(of("hf:a/b#TinyStories-valid.txt", &stories, Value::Null).unwrap(), stories[2]);
        let plain = ["LICENSE", "a.jsonl.zst", "b.jsonl", "c.parquet.gz", "test.jsonl"];
        assert_eq!(of("hf:a/b", &plain, Value::Null).unwrap(), "a.jsonl.zst b.jsonl test.jsonl");
        assert!(of("hf:a/b", &["README.md", "a.xml"], Value::Null).is_err());
        let tables = ["README.md", "a.csv", "b.tsv.gz"];
        assert_eq!(of("hf:a/b", &tables, Value::Null).unwrap(), "a.csv b.tsv.gz");
        assert_eq!(of("hf:a/b", &["a.csv", "a.txt"], Value::Null).unwrap(), "a.txt");

        let config = |name: &str, path: &str| json!({ "config_name": name, "data_files": path });
        let card =
            json!({ "configs": [config("default", "data/*/*"), config("ten", "sample/10BT/*")] });
        let files = ["data/CC-1/0.parquet", "sample/10BT/0.parquet", "sample/100BT/0.parquet"];
        assert_eq!(of("hf:a/b", &files, card.clone()).unwrap(), files[0]);
        assert_eq!(of("hf:a/b#ten", &files, card.clone()).unwrap(), files[1]);
        assert_eq!(of("hf:a/b#sample/100BT", &files, card.clone()).unwrap(), files[2]);
        let missing = of("hf:a/b#sample/1", &files, card).unwrap_err();
        assert!(missing.hint.contains("default, ten"), "{}", missing.hint);
        let only = json!({ "configs": [config("x", "**/*.parquet")] });
        assert_eq!(of("hf:a/b", &files, only).unwrap(), files.join(" "));
        let two = json!({ "configs": [config("en", "data/*"), config("de", "data/*")] });
        let unclear = of("hf:a/b", &files, two).unwrap_err();
        assert!(unclear.hint.contains(" hf:a/b#en: "), "{}", unclear.hint);
    }

    #[test]
    fn a_licence_is_of_the_card_or_the_tags() {
        let tags = ["region:us".to_string(), "license:mit".into()];
        for (card, expected) in [
            (json!({ "license": "odc-by" }), "odc-by"),
            (json!({ "license": ["cc-by-sa-3.0", "gfdl"] }), "cc-by-sa-3.0"),
            (json!({ "license": "other", "license_name": "own\u{1b}[2J" }), "own[2J"),
            (Value::Null, "mit"),
        ] {
            assert_eq!(licence(&card, &tags).as_deref(), Some(expected));
        }
        assert_eq!(licence(&Value::Null, &[]), None);
    }
}
