//! Vocabularies as files of byte-level BPE spell them, for programs that know no other tokenizer, like
//! llama.cpp.

use super::hugging_face::{byte_characters, gpt2_merges, gpt2_tokens};
use super::tokenizer::END_OF_TEXT;
use super::{ChatTemplate, Tokenizer};

/// A vocabulary of byte-level BPE with GPT-2's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// The tokens by their ids. Bytes are spelled as in Hugging Face's files.
    pub tokens: Vec<(String, TokenKind)>,
    /// The merges in the order of their ranks, each two spelled parts with a space between them.
    pub merges: Vec<String>,
    /// The token that begins a text.
    pub begin: Option<u32>,
    /// The token that ends what a model writes.
    pub end: Option<u32>,
    /// The template of conversations, in Hugging Face's language.
    pub chat_template: Option<String>,
}

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Text.
    Normal,
    /// A token that is not printed, like the end of a document.
    Control,
    /// Text that is found before all other tokens.
    UserDefined,
    /// A row of the embedding without a token.
    Unused,
}

impl Vocabulary {
    /// Adds rows without tokens, as models have that are padded, up to `size`.
    pub fn pad(&mut self, size: usize) {
        for id in self.tokens.len()..size {
            self.tokens.push((format!("[PAD{id}]"), TokenKind::Unused));
        }
    }
}

impl Tokenizer {
    /// Returns the tokenizer as a vocabulary of byte-level BPE.
    ///
    /// # Errors
    /// A clause that says why it is none.
    pub fn vocabulary(&self) -> Result<Vocabulary, String> {
        let characters = byte_characters();
        let spell = |token: &[u8]| -> String {
            token.iter().map(|&byte| characters[usize::from(byte)]).collect()
        };
        let text = |tokens, merges| Vocabulary {
            tokens,
            merges,
            begin: self.end_of_text(),
            end: self.end_of_text(),
            chat_template: None,
        };
        let mut vocabulary = match self {
            Self::Bpe(bpe) => return bpe.vocabulary(),
            Self::Chat(template) => return chat_vocabulary(template),
            Self::Gpt2 => {
                let tokens = gpt2_tokens();
                let merges = gpt2_merges(&tokens);
                let merge = |[left, right]: [&[u8]; 2]| format!("{} {}", spell(left), spell(right));
                let merges = merges.into_iter().map(merge).collect();
                let tokens = tokens.iter().map(|token| (spell(token), TokenKind::Normal)).collect();
                text(tokens, merges)
            }
            Self::Byte => {
                let tokens =
                    characters.iter().map(|c| (c.to_string(), TokenKind::Normal)).collect();
                text(tokens, Vec::new())
            }
            Self::Char(vocab) => {
                let texts: Vec<String> = vocab.chars.iter().map(char::to_string).collect();
                let tokens =
                    texts.iter().map(|text| (spell(text.as_bytes()), TokenKind::Normal)).collect();
                let merges = texts.iter().flat_map(|text| byte_merges(text.as_bytes(), &spell));
                // Characters share their first bytes.
                let mut known = std::collections::HashSet::new();
                let merges = merges.filter(|merge| known.insert(merge.clone())).collect();
                text(tokens, merges)
            }
        };
        if vocabulary.end.is_some() {
            vocabulary.tokens.push((END_OF_TEXT.to_owned(), TokenKind::Control));
        }
        Ok(vocabulary)
    }
}

/// Returns the vocabulary of a template: that of its text, and the tokens of conversations.
fn chat_vocabulary(template: &ChatTemplate) -> Result<Vocabulary, String> {
    let mut vocabulary = template.base().vocabulary()?;
    vocabulary.pad(template.vocab_size() as usize);
    for (id, name) in template.specials() {
        vocabulary.tokens[id as usize] = (name.to_owned(), TokenKind::Control);
    }
    vocabulary.begin = Some(template.begin());
    vocabulary.end = Some(template.end());
    vocabulary.chat_template = Some(template.jinja());
    Ok(vocabulary)
}

/// Returns the merges that make a character of its bytes, from the left.
fn byte_merges(bytes: &[u8], spell: &dyn Fn(&[u8]) -> String) -> Vec<String> {
    let merge = |end: usize| format!("{} {}", spell(&bytes[..end]), spell(&bytes[end..=end]));
    (1..bytes.len()).map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::super::CharVocab;
    use super::*;

    #[test]
    fn every_tokenizer_has_as_many_tokens_as_its_vocabulary() {
        let char = Tokenizer::Char(CharVocab::new("ab\u{e9}\u{4e2d}\u{4e3d}".chars()).unwrap());
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Byte, char] {
            let mut vocabulary = tokenizer.vocabulary().unwrap();
            assert_eq!(vocabulary.tokens.len(), tokenizer.vocab_size() as usize);
            assert_eq!(vocabulary.end, tokenizer.end_of_text());
            vocabulary.pad(60_000);
            assert_eq!(vocabulary.tokens[59_999], ("[PAD59999]".into(), TokenKind::Unused));
        }
    }

    #[test]
    fn characters_are_merged_from_their_bytes() {
        let tokenizer =
            Tokenizer::Char(CharVocab::new("a \u{e9}\u{4e2d}\u{4e2e}".chars()).unwrap());
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
        let template = ChatTemplate::new(Tokenizer::Gpt2);
        let vocabulary = Tokenizer::Chat(template.clone().into()).vocabulary().unwrap();
        assert_eq!((vocabulary.begin, vocabulary.end), (Some(50_256), Some(50_260)));
        assert_eq!(vocabulary.tokens.len(), 50_261);
        assert_eq!(vocabulary.tokens[50_259], ("<|assistant|>".into(), TokenKind::Control));
        assert_eq!(vocabulary.chat_template, Some(template.jinja()));
    }

    #[test]
    fn gpt2_has_its_merges() {
        let vocabulary = Tokenizer::Gpt2.vocabulary().unwrap();
        assert_eq!(vocabulary.merges.len(), 50_000);
        assert_eq!(vocabulary.merges[0], "\u{120} t");
        assert_eq!(vocabulary.tokens[262].0, "\u{120}the");
        assert_eq!(vocabulary.tokens[50_256], (END_OF_TEXT.to_owned(), TokenKind::Control));
    }
}
