//! Vocabularies in the form of byte-level BPE, for programs like llama.cpp that know no other tokenizer.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::bpe::{GPT2_NAME, pre_tokenizer, words_named};
use super::special_names::SETTINGS_FILE;
use super::spelling::spell;
use super::tokenizer_files::TOKENIZER_FILE;
use super::tokenizer_json::{added, special, tokenizer_file};
use super::{CharVocab, TextTokenizer, Tokenizer};

/// A vocabulary of byte-level BPE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// The tokens by their ids. Bytes are spelled as in Hugging Face's files.
    pub tokens: Vec<(String, TokenKind)>,
    /// The merges in the order of their ranks, each two spelled parts with a space between them.
    pub merges: Vec<String>,
    /// How text is split into words, by llama.cpp's names (`tokenizer.ggml.pre`).
    pub words: &'static str,
    pub begin: Option<u32>,
    pub end: Option<u32>,
    pub padding: Option<u32>,
    pub unknown: Option<u32>,
    /// True if text begins with `begin`.
    pub adds_begin: bool,
    pub chat_template: Option<String>,
}

/// The kind of a token, with its number in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Normal = 1,
    /// A token that is not printed, like the end of a document.
    Control = 3,
    /// Text that is found before all other tokens.
    UserDefined = 4,
    /// A row of the embedding without a token.
    Unused = 5,
}

impl Vocabulary {
    /// Adds rows without tokens up to `size`, for padded models.
    pub fn pad(&mut self, size: usize) {
        for id in self.tokens.len()..size {
            self.tokens.push((format!("[PAD{id}]"), TokenKind::Unused));
        }
    }
}

impl Vocabulary {
    /// Leaves out the tokens that a model with `size` rows of embeddings does not have.
    pub fn cut(&mut self, size: usize) {
        self.tokens.truncate(size);
        for token in [&mut self.begin, &mut self.end, &mut self.padding, &mut self.unknown] {
            *token = token.filter(|id| (*id as usize) < size);
        }
    }
}

impl Vocabulary {
    /// Returns wgpt's name for words that llama.cpp knows by `name`, if wgpt splits text like this.
    pub fn words_named(name: &str) -> Option<&'static str> {
        words_named(name)
    }

    /// Returns names and contents of the files of a model folder with this vocabulary.
    pub fn files(&self) -> [(&'static str, String); 2] {
        let mut ids = Map::new();
        let mut others = Vec::new();
        for (id, (text, kind)) in (0..).zip(&self.tokens) {
            match kind {
                TokenKind::Unused => continue,
                TokenKind::Normal => {}
                TokenKind::Control => others.push(special(id, text)),
                TokenKind::UserDefined => others.push(added(id, text)),
            }
            ids.insert(text.clone(), json!(id));
        }
        let words = pre_tokenizer(self.words);
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
        });
        let file = tokenizer_file(ids, &json!(self.merges), &others, &words, &Value::Null, &bytes);
        let mut file: Value = serde_json::from_str(&file).expect("it was written as JSON");
        // As in the folders of these models, which llama.cpp knows by the name of their words.
        file["model"]["ignore_merges"] = json!(self.words == "llama-bpe");
        if self.words == "qwen2" {
            file["normalizer"] = json!({"type": "NFC"});
        }
        let mut settings = json!({"add_bos_token": self.adds_begin});
        for (role, id) in [
            ("bos_token", self.begin),
            ("eos_token", self.end),
            ("pad_token", self.padding),
            ("unk_token", self.unknown),
        ] {
            let token = id.and_then(|id| self.tokens.get(id as usize));
            if let Some((text, _)) = token {
                settings[role] = json!(text);
            }
        }
        if let Some(template) = &self.chat_template {
            settings["chat_template"] = json!(template);
        }
        [(TOKENIZER_FILE, file.to_string()), (SETTINGS_FILE, settings.to_string())]
    }
}

impl Tokenizer {
    /// Returns the tokenizer as a vocabulary of byte-level BPE. The error is a clause that says why it cannot be
    /// one.
    pub fn vocabulary(&self) -> Result<Vocabulary, String> {
        let mut vocabulary = match self.base() {
            TextTokenizer::Char(vocab) => of_characters(vocab),
            base => of_file(&base.json_file()).unwrap_or_default(),
        };
        vocabulary.words = match self.base() {
            TextTokenizer::Bpe(bpe) => {
                bpe.words().ok_or("llama.cpp does not know its way to split text into words")?
            }
            _ => GPT2_NAME,
        };
        vocabulary.begin = self.begin();
        vocabulary.end = self.stop();
        vocabulary.padding = self.named("pad_token");
        vocabulary.unknown = self.named("unk_token");
        // wgpt's own template writes it.
        let has_own_template = self.chat().is_some_and(|template| !template.is_of_folder());
        vocabulary.adds_begin = !has_own_template && self.added_begin().is_some();
        if let Self::Chat(template) = self {
            vocabulary.pad(template.vocab_size as usize);
            for (id, name) in template.specials() {
                vocabulary.tokens[id as usize] = (name.to_owned(), TokenKind::Control);
            }
            vocabulary.chat_template = Some(template.jinja());
        }
        Ok(vocabulary)
    }
}

/// Reads the tokens and merges of a `tokenizer.json` in its spelling. We have written or read it before, so
/// nothing is missing.
fn of_file(file: &str) -> Option<Vocabulary> {
    let file: Value = serde_json::from_str(file).ok()?;
    let mut vocabulary = Vocabulary::default();
    let mut set = |id: &Value, name: String, kind| {
        let id = id.as_u64()? as usize;
        vocabulary.pad(id + 1);
        vocabulary.tokens[id] = (name, kind);
        Some(())
    };
    for (name, id) in file["model"]["vocab"].as_object()? {
        set(id, name.clone(), TokenKind::Normal)?;
    }
    for token in file["added_tokens"].as_array().into_iter().flatten() {
        let is_special = token["special"] == true;
        let kind = if is_special { TokenKind::Control } else { TokenKind::UserDefined };
        set(&token["id"], token["content"].as_str()?.to_owned(), kind)?;
    }
    let merges = file["model"]["merges"].as_array().into_iter().flatten();
    let pair = |merge: &Value| match merge.as_str() {
        Some(pair) => Some(pair.to_owned()),
        None => Some(format!("{} {}", merge[0].as_str()?, merge[1].as_str()?)),
    };
    vocabulary.merges = merges.filter_map(pair).collect();
    Some(vocabulary)
}

/// Spells characters as the tokens of their bytes.
fn of_characters(vocab: &CharVocab) -> Vocabulary {
    let texts: Vec<String> = vocab.chars.iter().map(char::to_string).collect();
    let tokens = texts.iter().map(|text| (spell(text.as_bytes()), TokenKind::Normal)).collect();
    // Characters share their first bytes.
    let mut known = HashSet::new();
    let merges = texts.iter().flat_map(|text| {
        let bytes = text.as_bytes();
        let merge =
            move |end: usize| format!("{} {}", spell(&bytes[..end]), spell(&bytes[end..=end]));
        (1..bytes.len()).map(merge)
    });
    let merges = merges.filter(|merge| known.insert(merge.clone())).collect();
    Vocabulary { tokens, merges, ..Vocabulary::default() }
}

#[cfg(test)]
mod tests {
    use super::super::ChatTemplate;
    use super::super::chat::WrittenTemplate;
    use super::super::spelling::END_OF_TEXT;
    use super::super::testing::{characters, chat_ml};
    use super::*;

    #[test]
    fn every_tokenizer_has_as_many_tokens_as_its_vocabulary() {
        let char = characters("ab\u{e9}\u{4e2d}\u{4e3d}");
        for tokenizer in [Tokenizer::GPT2, Tokenizer::BYTE, char] {
            let mut vocabulary = tokenizer.vocabulary().unwrap();
            assert_eq!(vocabulary.tokens.len(), tokenizer.vocab_size() as usize);
            assert_eq!(vocabulary.end, tokenizer.end_of_text());
            vocabulary.pad(60_000);
            assert_eq!(vocabulary.tokens[59_999], ("[PAD59999]".into(), TokenKind::Unused));
        }
    }

    /// As a GGUF file has them and a model folder does.
    #[test]
    fn vocabularies_are_files_of_the_same_tokenizer() {
        let folder_template = ChatTemplate::of_folder(
            chat_ml().base().clone(),
            WrittenTemplate {
                text: "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>{% endfor %}\
                       {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
                    .to_owned(),
                names: [("eos_token".to_owned(), "<|im_end|>".to_owned())].into(),
            },
        )
        .unwrap();
        for tokenizer in
            [Tokenizer::GPT2, Tokenizer::BYTE, Tokenizer::BYTE.with_chat(), folder_template.into()]
        {
            let mut vocabulary = tokenizer.vocabulary().unwrap();
            vocabulary.pad(vocabulary.tokens.len() + 3);
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in vocabulary.files() {
                std::fs::write(folder.path().join(name), text).unwrap();
            }
            let read = Tokenizer::open(folder.path()).unwrap();
            assert_eq!(read.refused, None);
            let read = read.tokenizer;
            let text = "It's 12 + 34\r\n\tcaf\u{e9}  \u{4e2d}\u{1f600}<|endoftext|>";
            assert_eq!(read.encode(text).unwrap(), tokenizer.encode(text).unwrap());
            assert_eq!(read.chat().is_some(), tokenizer.chat().is_some());
            let mut again = read.vocabulary().unwrap();
            again.pad(vocabulary.tokens.len());
            assert_eq!(again, vocabulary);
        }
        assert_eq!(Vocabulary::words_named("llama3"), Some("llama-bpe"));
        assert_eq!(Vocabulary::words_named("tekken"), None);
    }

    #[test]
    fn characters_are_merged_from_their_bytes() {
        let tokenizer = characters("a \u{e9}\u{4e2d}\u{4e2e}");
        let Vocabulary { tokens, merges, end, .. } = tokenizer.vocabulary().unwrap();
        let names: Vec<&str> = tokens.iter().map(|(name, _)| name.as_str()).collect();
        // e4 b8 ad and e4 b8 ae; the bytes ad and 20 are invisible.
        assert_eq!(
            names,
            ["a", "\u{120}", "\u{c3}\u{a9}", "\u{e4}\u{b8}\u{143}", "\u{e4}\u{b8}\u{ae}"]
        );
        assert_eq!(
            merges,
            ["\u{c3} \u{a9}", "\u{e4} \u{b8}", "\u{e4}\u{b8} \u{143}", "\u{e4}\u{b8} \u{ae}"]
        );
        assert_eq!(end, None);
    }

    #[test]
    fn conversations_add_tokens_that_are_not_printed() {
        let template = ChatTemplate::new(TextTokenizer::Gpt2);
        let vocabulary = Tokenizer::from(template.clone()).vocabulary().unwrap();
        assert_eq!((vocabulary.begin, vocabulary.end), (Some(50_256), Some(50_260)));
        assert_eq!(vocabulary.tokens.len(), 50_261);
        assert_eq!(vocabulary.tokens[50_259], ("<|assistant|>".into(), TokenKind::Control));
        assert_eq!(vocabulary.chat_template, Some(template.jinja()));
    }

    #[test]
    fn the_template_of_a_folder_is_kept() {
        let text = "{% for m in messages %}{{ bos_token + m.role + '\n' + m.content + '<|im_end|>' }}{% \
                    endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant\n' }}{% endif %}";
        let names = [("bos_token".to_owned(), "<|im_start|>".to_owned())];
        let written = WrittenTemplate { text: text.to_owned(), names: names.into() };
        let template = ChatTemplate::of_folder(chat_ml().base().clone(), written).unwrap();
        let vocabulary = Tokenizer::from(template).vocabulary().unwrap();
        assert_eq!((vocabulary.begin, vocabulary.end), (Some(257), Some(258)));
        assert_eq!(vocabulary.tokens[258], ("<|im_end|>".into(), TokenKind::Control));
        assert_eq!(vocabulary.tokens[259], ("<think>".into(), TokenKind::UserDefined));
        assert_eq!((vocabulary.chat_template.as_deref(), vocabulary.words), (Some(text), "gpt-2"));
    }

    #[test]
    fn gpt2_has_its_merges() {
        let vocabulary = Tokenizer::GPT2.vocabulary().unwrap();
        assert_eq!(vocabulary.merges.len(), 50_000);
        assert_eq!(vocabulary.merges[0], "\u{120} t");
        assert_eq!(vocabulary.tokens[262].0, "\u{120}the");
        assert_eq!(vocabulary.tokens[50_256], (END_OF_TEXT.to_owned(), TokenKind::Control));
    }
}
