//! Tokenizer files of Hugging Face transformers.
//!
//! GPT-2 has `vocab.json` and `merges.txt`, from the built-in tables. Characters and bytes have a
//! `tokenizer.json` with byte pairs and no merges, which wgpt reads back. Other byte pairs keep their own. The
//! tokens of conversations are added to it. A folder's chat template is in `chat_template.jinja`, in older
//! folders in `tokenizer_config.json`.

use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::chat::{self, WrittenTemplate};
use super::special_names::{SETTINGS_FILE, SPECIALS_FILE, SpecialNames, named};
use super::spelling::END_OF_TEXT;
use super::tokenizer_json::{beginning_with, special, tokenizer_file};
use super::{ChatTemplate, DataError, END_OF_MESSAGE, TextTokenizer, Tokenizer, gpt2};
use crate::disk;

/// The file of a tokenizer that is not GPT-2's.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";

/// GPT-2's tokenizer, which has two files in place of `tokenizer.json`.
const VOCABULARY_FILE: &str = "vocab.json";
const MERGES_FILE: &str = "merges.txt";
/// Tokens that were added to these two.
const ADDED_FILE: &str = "added_tokens.json";

/// The files that a tokenizer can have in a model folder.
pub const TOKENIZER_FILES: [&str; 7] = [
    TOKENIZER_FILE,
    SETTINGS_FILE,
    TEMPLATE_FILE,
    SPECIALS_FILE,
    VOCABULARY_FILE,
    MERGES_FILE,
    ADDED_FILE,
];

/// The files of a tokenizer in a data folder.
pub(super) const DATA_FILES: [&str; 3] = [TOKENIZER_FILE, SETTINGS_FILE, TEMPLATE_FILE];

/// A tokenizer of a model folder.
#[derive(Debug)]
pub struct FolderTokenizer {
    pub tokenizer: Tokenizer,
    /// A clause that says why the chat template of the folder is not supported.
    pub refused: Option<String>,
}

/// The reason why a `tokenizer.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// A clause about what is wrong or not supported.
    #[error("{0}")]
    Unsupported(String),
}

impl Tokenizer {
    /// Returns names and contents of the files from which transformers reads the tokenizer. It drops characters
    /// outside a character vocabulary, which are an error here.
    pub fn hugging_face_files(&self) -> Vec<(&'static str, String)> {
        let mut settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            // Else decoding removes the space in " .".
            "clean_up_tokenization_spaces": false,
            // Else transformers 4 also gives a model token types, which GPT-2 adds as embeddings.
            "model_input_names": ["input_ids", "attention_mask"],
        });
        let written = self.chat().and_then(ChatTemplate::written);
        let names = self.base().names();
        if let Some(names) = names {
            names.tokens.iter().for_each(|(role, token)| settings[role] = json!(token));
            // wgpt's template writes it.
            settings["add_bos_token"] =
                json!(names.adds_begin && (self.chat().is_none() || written.is_some()));
        }
        if let Some((_, end)) = self.end().filter(|_| written.is_none()) {
            let is_chat = self.chat().is_some();
            for role in ["bos_token", "eos_token", "unk_token"] {
                // A folder that names its tokens may have none for a role.
                if names.is_none()
                    || role == "eos_token" && settings[role].is_null()
                    || is_chat && role == "bos_token"
                {
                    settings[role] = json!(end);
                }
            }
        }
        if let Self::Chat(template) = self {
            let end = template.specials().find(|(id, _)| *id == template.end);
            settings["eos_token"] = json!(end.map_or(END_OF_MESSAGE, |(_, name)| name));
            settings["chat_template"] = json!(template.jinja());
        }
        for (name, token) in written.iter().flat_map(|written| &written.names) {
            settings[name] = json!(token);
        }
        let mut files = if *self == Self::GPT2 {
            settings["tokenizer_class"] = json!("GPT2Tokenizer");
            settings["add_prefix_space"] = json!(false);
            let (mut ids, merges) = gpt2::pairs();
            ids.insert(END_OF_TEXT.to_owned(), json!(ids.len()));
            let merges = format!("#version: 0.2\n{}\n", merges.join("\n"));
            vec![(VOCABULARY_FILE, Value::Object(ids).to_string()), (MERGES_FILE, merges)]
        } else {
            vec![(TOKENIZER_FILE, self.json_file())]
        };
        files.extend(written.map(|written| (TEMPLATE_FILE, written.text.clone())));
        files.push((SETTINGS_FILE, format!("{settings:#}\n")));
        files
    }

    pub(super) fn json_file(&self) -> String {
        match self {
            Self::Text(base) => base.json_file(),
            Self::Chat(template) => chat::file::write(template),
        }
    }

    pub fn from_hugging_face(file: &[u8]) -> Result<Self, TokenizerError> {
        Self::of_json(&serde_json::from_slice(file)?, file, &SpecialNames::default())
    }

    fn of_json(json: &Value, file: &[u8], names: &SpecialNames) -> Result<Self, TokenizerError> {
        match chat::file::read(json, names) {
            Some(template) => Ok(template.into()),
            None => text_of(json, file).map(Self::Text),
        }
    }

    /// Reads the `tokenizer.json` at `path`, or the one in the folder `path` with the chat template of the
    /// folder.
    pub fn open(path: &Path) -> Result<FolderTokenizer, DataError> {
        let folder = disk::is_dir(path).then_some(path);
        let path = folder.map_or(path.to_owned(), |folder| folder.join(TOKENIZER_FILE));
        let of_pairs = folder.and_then(pairs_of_folder).transpose();
        let file = match of_pairs.map_err(|error| DataError::unusable(&path, error, HINT))? {
            Some(file) => file,
            None => {
                if let Some(folder) = folder.filter(|_| !disk::exists(&path)) {
                    return Err(no_tokenizer(folder));
                }
                disk::read_regular(&path).map_err(DataError::io("read", &path))?
            }
        };
        if disk::is_lfs_pointer(&file) {
            return Err(DataError::unusable(&path, disk::LFS_POINTER, disk::LFS_HINT));
        }
        let tokenizer = match folder {
            Some(folder) => Self::in_folder(folder, &file),
            None => Self::from_hugging_face(&file)
                .map(|tokenizer| FolderTokenizer { tokenizer, refused: None }),
        };
        tokenizer.map_err(|error| DataError::unusable(&path, error, HINT))
    }

    /// Reads the `tokenizer.json` of a folder, `file`, and the chat template next to it.
    pub fn in_folder(folder: &Path, file: &[u8]) -> Result<FolderTokenizer, TokenizerError> {
        let json: Value = serde_json::from_slice(file)?;
        let template = read_template(folder);
        let names = SpecialNames::read(folder, &json);
        let has_template = !matches!(template, Ok(None));
        let tokenizer = match Self::of_json(&json, file, &names)? {
            Self::Text(text) => Self::Text(text.with_names(names.clone(), has_template)),
            chat => chat,
        };
        let is_own = |text: &str| tokenizer.chat().is_some_and(|chat| chat.jinja() == text);
        if template.as_ref().is_ok_and(|t| t.as_ref().is_none_or(|t| is_own(&t.text))) {
            return Ok(FolderTokenizer { tokenizer, refused: None });
        }
        // Another model may have tokens of the same names as wgpt's template.
        let text = match tokenizer {
            Self::Chat(_) => text_of(&json, file)?.with_names(names, has_template),
            Self::Text(text) => text,
        };
        let chat = template.and_then(|template| {
            template.map(|template| ChatTemplate::of_folder(text.clone(), template)).transpose()
        });
        Ok(match chat {
            Ok(chat) => {
                let tokenizer = chat.map_or(Self::Text(text), Self::from);
                FolderTokenizer { tokenizer, refused: None }
            }
            Err(reason) => FolderTokenizer { tokenizer: Self::Text(text), refused: Some(reason) },
        })
    }
}

/// Creates the error of a folder without a tokenizer.
fn no_tokenizer(folder: &Path) -> DataError {
    let path = folder.join("tokenizer.model");
    if disk::exists(&path) {
        return DataError::unusable(
            &path,
            "it is of SentencePiece; only BPE on bytes is supported",
            HINT,
        );
    }
    let hint = "give a folder with a tokenizer.json, like one in the checkpoints of a run";
    DataError::at(folder, "no tokenizer.json in this folder", hint)
}

const HINT: &str = "choose another tokenizer, or train one with bpe:8192";

/// Returns the `tokenizer.json` that the two files of GPT-2's form stand for, as transformers reads them; `None` if
/// the folder does not have both, or has a `tokenizer.json`.
pub fn pairs_of_folder(folder: &Path) -> Option<Result<Vec<u8>, TokenizerError>> {
    let has = |name: &str| disk::exists(&folder.join(name));
    if has(TOKENIZER_FILE) || !(has(VOCABULARY_FILE) && has(MERGES_FILE)) {
        return None;
    }
    let read = |name: &str| {
        let failed = |error| TokenizerError::Unsupported(format!("cannot read {name}: {error}"));
        disk::read_regular(folder.join(name)).map_err(failed)
    };
    let compose = || {
        let ids: Map<String, Value> = serde_json::from_slice(&read(VOCABULARY_FILE)?)?;
        let merges = String::from_utf8_lossy(&read(MERGES_FILE)?).into_owned();
        let merges = merges.lines().filter(|line| !line.is_empty());
        // A merge may begin with a #, too.
        let merges: Vec<_> = merges.skip_while(|line| line.starts_with("#version")).collect();
        let more = read(ADDED_FILE).ok().and_then(|file| serde_json::from_slice(&file).ok());
        let more: Map<String, Value> = more.unwrap_or_default();
        let names = SpecialNames::read(folder, &Value::Null);
        let named = names.tokens.values().filter_map(|token| Some((token, ids.get(token)?)));
        let mut added: Vec<Value> = Vec::new();
        for (token, id) in named.chain(&more) {
            let id = id.as_u64().and_then(|id| id.try_into().ok()).unwrap_or(u32::MAX);
            let entry = special(id, token);
            if !added.contains(&entry) {
                added.push(entry);
            }
        }
        let words = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        });
        // Next to a tokenizer.json, transformers does not look at `add_bos_token`.
        let begin = names.tokens.get("bos_token").filter(|_| names.adds_begin);
        let begin = begin.and_then(|name| Some((name, ids.get(name).or_else(|| more.get(name))?)));
        let processor = begin.map_or(Value::Null, |(name, id)| beginning_with(id, name));
        let file = tokenizer_file(ids, &json!(merges), &added, &words, &processor, &words);
        Ok(file.into_bytes())
    };
    Some(compose())
}

fn text_of(json: &Value, file: &[u8]) -> Result<TextTokenizer, TokenizerError> {
    let text = str::from_utf8(file).map_err(|_| "not UTF-8".to_owned());
    text.and_then(|text| TextTokenizer::parse(json, text)).map_err(TokenizerError::Unsupported)
}

/// Reads the chat template of a folder, if it has one. The error is a clause.
fn read_template(folder: &Path) -> Result<Option<WrittenTemplate>, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        let exists = disk::exists(&path);
        let text = exists.then(|| io::read_to_string(disk::open_regular(&path)?)).transpose();
        text.map_err(|error| format!("cannot read {name}: {error}"))
    };
    let json = |name: &str| match read(name)? {
        Some(text) => {
            serde_json::from_str(&text).map_err(|error| format!("{name}: not JSON: {error}"))
        }
        None => Ok(Value::Null),
    };
    let settings: Value = json(SETTINGS_FILE)?;
    // There may be several by name, as for tools.
    let of_settings = match &settings["chat_template"] {
        Value::Array(templates) => {
            let default = templates.iter().find(|template| template["name"] == "default");
            default.map_or(&Value::Null, |template| &template["template"])
        }
        template => template,
    };
    let of_settings = of_settings.as_str().map(str::to_owned);
    let Some(text) = read(TEMPLATE_FILE)?.or(of_settings) else { return Ok(None) };
    let mut names = named(&json(SPECIALS_FILE)?);
    names.extend(named(&settings));
    Ok(Some(WrittenTemplate { text, names }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::super::testing::{
        assert_says, characters, chat_ml, folder, folder as testing_folder,
    };
    use super::*;
    use crate::data::bpe::Bpe;
    use crate::data::tokenizer_json::{byte_ids, byte_level_file};

    #[test]
    fn gpt2_has_the_published_files() {
        let files = Tokenizer::GPT2.hugging_face_files();
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
        Tokenizer::from_hugging_face(file.to_string().as_bytes()).ok()
    }

    #[test]
    fn characters_and_bytes_read_back() {
        let hard = "b\n\r\t \u{0}\"\\a\u{a0}\u{2028}\u{301}\u{feff}\u{1f600}\u{120}";
        for tokenizer in [characters(hard), Tokenizer::BYTE] {
            assert_eq!(read(&file(&tokenizer)), Some(tokenizer));
        }
        assert!(Tokenizer::from_hugging_face(b"{").is_err());
    }

    #[test]
    fn the_files_have_what_transformers_needs() {
        let char = file(&characters("b\n "));
        let byte = file(&Tokenizer::BYTE);
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
        for tokenizer in [Tokenizer::GPT2, Tokenizer::BYTE] {
            assert_eq!(settings(&tokenizer)["eos_token"], END_OF_TEXT);
        }
    }

    #[test]
    fn conversations_read_back_from_one_file() {
        let mut ids = byte_ids();
        ids.insert("ab".to_owned(), json!(256));
        let trained = Bpe::parse(&byte_level_file(ids, &json!([["a", "b"]]), true));
        let bases = [
            TextTokenizer::Gpt2,
            TextTokenizer::Byte,
            characters("ab<|>").base().clone(),
            TextTokenizer::Bpe(trained.unwrap().into()),
        ];
        for base in bases {
            let template = ChatTemplate::new(base);
            let chat = Tokenizer::from(template.clone());
            let file = file(&chat);
            let tokens: Vec<_> = template.specials().map(|(id, name)| special(id, name)).collect();
            assert_eq!(file["added_tokens"], json!(tokens));
            let back = read(&file).unwrap();
            assert_eq!(back.vocab_size(), chat.vocab_size());
            assert!(back.chat().unwrap().specials().eq(template.specials()));
            assert_eq!(back.base().kind(), chat.base().kind());
            let settings = settings(&chat);
            assert_eq!(settings["bos_token"], END_OF_TEXT);
            assert_eq!(settings["eos_token"], END_OF_MESSAGE);
            assert_eq!(settings["chat_template"], template.jinja());
        }
    }

    /// Returns a folder that tests/reference/foreign.py has written.
    fn foreign(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/foreign").join(name)
    }

    #[test]
    fn a_folder_without_a_tokenizer_is_told_from_one_of_another_kind() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
        for (name, content, problem, hint) in [
            ("config.json", "{}", "no tokenizer.json in this folder", "checkpoints of a run"),
            ("tokenizer.model", "x", "SentencePiece", "bpe:8192"),
            (TOKENIZER_FILE, pointer, "pointer of Git LFS", "git lfs pull"),
        ] {
            let folder = testing_folder(&[(name, content)]);
            let error = Tokenizer::open(folder.path()).unwrap_err();
            assert_says(&error, problem);
            assert_says(error.hint(), hint);
        }
    }

    #[test]
    fn ids_are_those_of_transformers() {
        for name in ["own_specials", "two_files", "processor", "add_bos"] {
            let folder = foreign(name);
            let expected = std::fs::read(folder.join("ids.json")).unwrap();
            let expected: Value = serde_json::from_slice(&expected).unwrap();
            let opened = Tokenizer::open(&folder).unwrap();
            assert_eq!(opened.refused, None, "{name}");
            let files = opened.tokenizer.hugging_face_files();
            let again = Tokenizer::open(testing_folder(&files).path()).unwrap().tokenizer;
            // The post-processor alone is what transformers goes by.
            let (_, file) = &files[0];
            let written: Value = serde_json::from_str(file).unwrap();
            let begins = ["processor", "add_bos"].contains(&name);
            assert_eq!(!written["post_processor"].is_null(), begins, "{name}");
            for tokenizer in [&opened.tokenizer, &again] {
                for row in expected["texts"].as_array().unwrap() {
                    let text = row[0].as_str().unwrap();
                    assert_eq!(json!(tokenizer.encode(text).unwrap()), row[1], "{name}: {text}");
                    let prompt = tokenizer.encode_prompt(text).unwrap();
                    assert_eq!(json!(prompt), row[2], "{name}: {text}");
                }
                for (role, id) in expected["roles"].as_object().unwrap() {
                    assert_eq!(json!(tokenizer.named(role)), *id, "{name}: {role}");
                }
            }
            assert_eq!(json!(opened.tokenizer.stops()), expected["stops"], "{name}");
        }
    }

    #[test]
    fn the_two_files_of_gpt2_are_known() {
        let gpt2 = Tokenizer::GPT2.hugging_face_files();
        let FolderTokenizer { tokenizer, refused } =
            Tokenizer::open(testing_folder(&gpt2).path()).unwrap();
        assert_eq!((tokenizer, refused), (Tokenizer::GPT2, None));
    }

    /// Llama 3 begins each text with a token, and its models stop at two.
    #[test]
    fn special_tokens_are_kept() {
        let tokenizer = Tokenizer::open(&foreign("processor")).unwrap().tokenizer;
        let expected = [
            ("bos_token_id", json!(290)),
            ("eos_token_id", json!([291, 292])),
            ("pad_token_id", json!(293)),
        ];
        assert_eq!(Tokenizer::special_ids(Some(&tokenizer), 294), expected);
        // They are kept in data and checkpoints.
        let kept: Tokenizer = serde_json::from_value(json!(tokenizer)).unwrap();
        assert_eq!(kept, tokenizer);
        assert_eq!(Tokenizer::special_ids(Some(&kept), 294), expected);
        let written = settings(&kept);
        for (role, token) in
            [("bos_token", "<|begin|>"), ("eos_token", "<|end|>"), ("pad_token", "<|pad|>")]
        {
            assert_eq!(written[role], token);
        }
        assert_eq!(
            (&written["add_bos_token"], &written["unk_token"]),
            (&json!(true), &Value::Null)
        );
        // llama.cpp knows this way to split text into words only without a normalizer.
        let mut known = json!(kept);
        let mut file: Value = serde_json::from_str(known["file"].as_str().unwrap()).unwrap();
        file["normalizer"] = Value::Null;
        known["file"] = file.to_string().into();
        let known: Tokenizer = serde_json::from_value(known).unwrap();
        let vocabulary = known.vocabulary().unwrap();
        assert_eq!(
            (vocabulary.begin, vocabulary.end, vocabulary.padding),
            (Some(290), Some(291), Some(293))
        );
        assert!(vocabulary.adds_begin);
        // A model may lack a row for padding.
        assert_eq!(Tokenizer::special_ids(Some(&kept), 292)[1..], [("eos_token_id", json!(291))]);
        // Conversations in wgpt's form begin with the end of a document, and are read back.
        let chat = kept.clone().with_chat();
        let again = Tokenizer::open(testing_folder(&chat.hugging_face_files()).path()).unwrap();
        assert_eq!((&again.tokenizer, again.refused), (&chat, None));
        assert_eq!(again.tokenizer.named("pad_token"), Some(293));
        assert!(!known.with_chat().vocabulary().unwrap().adds_begin);
        // A file by itself has no names.
        let file = std::fs::read(foreign("processor").join(TOKENIZER_FILE)).unwrap();
        let alone = Tokenizer::from_hugging_face(&file).unwrap();
        assert_eq!((alone.vocab_size(), alone.rows(), kept.rows()), (294, 290, 292));
        assert_eq!((alone.end_of_text(), alone.added_begin()), (None, None));
    }

    #[test]
    fn the_chat_template_of_a_folder_is_found() {
        let text = |end: &str| {
            let message = "'<|im_start|>' + m.role + m.content + '<|im_end|>' + eos_token";
            let answer = "'<|im_start|>assistant'";
            format!(
                "{{% for m in messages %}}{{{{ {message} }}}}{{% endfor %}}{{% if \
                 add_generation_prompt %}}{{{{ {answer} }}}}{{% endif %}}{{# {end} #}}"
            )
        };
        let tokens = chat_ml().json_file();
        let settings = |template: Value| {
            json!({"eos_token": {"content": "E"}, "chat_template": template}).to_string()
        };
        let named = json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": text("1")}]);
        let open = |files: &[(&str, &str)]| {
            let folder = folder(&[&[(TOKENIZER_FILE, &*tokens)], files].concat());
            Tokenizer::open(folder.path()).unwrap()
        };
        for (files, expected) in [
            (&[][..], None),
            (&[(SETTINGS_FILE, &*settings(json!(text("0"))))], Some(text("0"))),
            (&[(SETTINGS_FILE, &settings(named))], Some(text("1"))),
            (
                &[(TEMPLATE_FILE, &text("2")), (SETTINGS_FILE, &settings(json!("old")))],
                Some(text("2")),
            ),
            (
                &[(TEMPLATE_FILE, &text("3")), (SPECIALS_FILE, r#"{"eos_token":"E"}"#)],
                Some(text("3")),
            ),
        ] {
            let FolderTokenizer { tokenizer, refused } = open(files);
            assert_eq!(
                (tokenizer.chat().map(ChatTemplate::jinja), refused),
                (expected.clone(), None)
            );
            let Some(expected) = expected else { continue };
            let names = tokenizer.chat().and_then(ChatTemplate::written).unwrap().names.clone();
            assert_eq!(names, BTreeMap::from([("eos_token".to_owned(), "E".to_owned())]));
            // What is written is found again.
            let files = tokenizer.hugging_face_files();
            assert!(files.contains(&(TEMPLATE_FILE, expected)));
            let again = Tokenizer::open(folder(&files).path()).unwrap();
            assert_eq!(again.tokenizer, tokenizer);
        }
        for (files, reason) in [
            (&[(TEMPLATE_FILE, "{% if %}")][..], "line 1"),
            (&[(TEMPLATE_FILE, "x"), (SETTINGS_FILE, "{")], "tokenizer_config.json: not JSON"),
        ] {
            let FolderTokenizer { tokenizer, refused } = open(files);
            assert!(tokenizer.chat().is_none());
            assert_says(refused.unwrap(), reason);
        }
        // A template that wgpt writes is known by its text, and another one may have its tokens.
        let own = chat_ml().with_chat();
        let files = own.hugging_face_files();
        let open = |files: &[(&str, String)]| Tokenizer::open(folder(files).path()).unwrap();
        assert!(open(&files).tokenizer.chat().is_some_and(|chat| !chat.is_of_folder()));
        let other = (TEMPLATE_FILE, own.chat().unwrap().jinja() + "{# other #}");
        assert!(
            open(&[&files[..], &[other]].concat())
                .tokenizer
                .chat()
                .is_some_and(ChatTemplate::is_of_folder)
        );
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
            let chat = text.with_chat();
            let others = names.iter().filter(|name| **name == "<|other|>").count();
            assert_eq!(chat.vocab_size(), 261 + others as u32);
            let again = read(&file(&chat)).unwrap();
            let found = again.chat().unwrap().specials();
            assert!(
                again.base() == chat.base() && found.eq(chat.chat().unwrap().specials()),
                "{names:?}"
            );
            let lengths = chat.byte_lengths();
            let mut specials = chat.chat().unwrap().specials();
            assert!(specials.all(|(id, _)| lengths[id as usize] == 0), "{names:?}");
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
        let mut other = file(&Tokenizer::BYTE);
        other["model"]["vocab"]["a"] = json!(98);
        assert_eq!(read(&other), None);
    }
}
