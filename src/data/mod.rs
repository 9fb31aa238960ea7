//! Data sets: from text files to windows of tokens.
//!
//! ```text
//! source          text, .jsonl, .parquet (.gz .zst), stdin -> a stream of documents
//! pieces          documents -> pieces that are tokenized independently
//! text_tokenizer  pieces -> token ids: GPT-2's byte pairs, characters, bytes or other byte pairs
//! bpe             byte pairs of other vocabularies, and their training
//! chat            the tokens of conversations, and what counts in the loss; a folder's chat template
//! tokenizer       text or conversations -> token ids; tokenizer_files are its files in a model folder
//! encode          tokenizes on several threads
//! writer          writes train.bin, val.bin, meta.json
//! prepare         all of the above, in bounded memory
//! tokens          token files -> random access to one split
//! markov          how predictable a text is
//! dataset         a folder or a built-in corpus -> train and val splits
//! stream          tokens during generation -> whole characters
//! windows         (seed, step, sequence) -> the start of a training window
//! packing         windows of text, and of whole conversations
//! hellaswag       a file of questions with endings to choose from
//! stories         the built-in corpus, generated from a grammar with a known entropy
//! chats           the built-in conversations, from a grammar too
//! ```

mod bpe;
mod characters;
mod chat;
mod chats;
mod dataset;
mod encode;
mod error;
mod gpt2;
mod grammar;
mod hellaswag;
mod markov;
mod meta;
mod packing;
mod pieces;
mod prepare;
mod source;
mod special_names;
mod spelling;
pub mod stories;
mod stream;
mod text_tokenizer;
mod tokenizer;
mod tokenizer_choice;
mod tokenizer_files;
mod tokenizer_json;
mod tokens;
mod vocabulary;
mod windows;
mod writer;

pub use crate::protocol::{Message, Role, TokenizerKind};
pub use characters::CharVocab;
pub use chat::{ChatTemplate, END_OF_MESSAGE, Ending};
pub use chats::{SUBJECT as CHAT_SUBJECT, examples as chat_examples};
pub use dataset::{Dataset, has_tokens, is_builtin};
pub use error::DataError;
pub use hellaswag::{Question, Questions};
pub use markov::markov_bits;
pub use meta::{ConversationCounts, Meta, TokenDtype};
pub use packing::Windows;
pub use prepare::{Phase, PrepareOptions, PrepareProgress, Prepared, StopRequest, prepare};
pub use source::TextEncoding;
pub use stream::TextStream;
pub use text_tokenizer::TextTokenizer;
pub use tokenizer::Tokenizer;
pub use tokenizer_choice::TokenizerChoice;
pub use tokenizer_files::{
    FolderTokenizer, TOKENIZER_FILE, TOKENIZER_FILES, TokenizerError, pairs_of_folder,
};
pub use tokens::Split;
pub use vocabulary::{TokenKind, Vocabulary};

#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use super::{CharVocab, TextTokenizer, Tokenizer};

    /// The `meta.json` of a folder whose splits have 9 tokens each.
    pub const META_JSON: &str = r#"{"version":1,"tokenizer":{"kind":"byte"},"vocab_size":257,"dtype":"u16","documents":2,"train_tokens":9,"val_tokens":9,"sources":["a.txt"],"train_blake3":"ab","val_blake3":"cd"}"#;

    /// Checks that a message has this part.
    #[track_caller]
    pub fn assert_says(message: impl ToString, part: &str) {
        let message = message.to_string();
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }

    pub fn characters(text: &str) -> Tokenizer {
        TextTokenizer::Char(CharVocab::new(text.chars()).unwrap()).into()
    }

    /// Returns bytes with the special tokens of ChatML, and those of thoughts.
    pub fn chat_ml() -> Tokenizer {
        bytes_with(&["<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    }

    /// Returns bytes with 261 tokens, and one for padding that text does not become.
    pub fn padded_bytes() -> Tokenizer {
        bytes_with(&["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|pad|>"])
    }

    /// Returns [`padded_bytes`] with a template in which only a system prompt has the token for padding.
    pub fn padded_chat() -> Tokenizer {
        let template = "{% for m in messages %}{% if m.role == 'system' %}{{ '<|pad|>' }}{% endif %}{{ \
                        '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}{% if \
                        add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let base = serde_json::to_value(padded_bytes()).unwrap();
        let chat =
            serde_json::json!({"kind": "chat", "base": base, "template": {"text": template}});
        serde_json::from_value(chat).unwrap()
    }

    /// Returns bytes with these tokens from 257 on. Those in `<|` and `|>` are special.
    fn bytes_with(added: &[&str]) -> Tokenizer {
        let mut file: serde_json::Value =
            serde_json::from_str(&TextTokenizer::Byte.json_file()).unwrap();
        file["pre_tokenizer"]["use_regex"] = true.into();
        let token = |(content, id): (&&str, u32)| {
            let special = content.starts_with("<|");
            serde_json::json!({ "id": id, "content": content, "special": special })
        };
        let added = added.iter().zip(257..).map(token);
        file["added_tokens"].as_array_mut().unwrap().extend(added);
        Tokenizer::from_hugging_face(file.to_string().as_bytes()).unwrap()
    }

    /// Returns the content of a token file.
    pub fn bytes(ids: impl IntoIterator<Item = u16>) -> Vec<u8> {
        ids.into_iter().flat_map(u16::to_le_bytes).collect()
    }

    /// Returns the content of a file of llm.c, with the first words of its header.
    pub fn shard(header: [i32; 3], ids: impl IntoIterator<Item = u16>) -> Vec<u8> {
        let words = header.into_iter().chain([0; 253]);
        words.flat_map(i32::to_le_bytes).chain(bytes(ids)).collect()
    }

    /// Creates a folder with these files.
    pub fn folder(files: &[(impl AsRef<Path>, impl AsRef<[u8]>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        folder
    }
}
