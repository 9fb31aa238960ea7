//! Sends documents and conversations to the splits, as text and tokens.

use super::super::chat::{Span, refused};
use super::super::encode::{Batcher, SplitKind};
use super::super::source::DocumentPart;
use super::super::windows::hash;
use super::super::{DataError, Message, Tokenizer};
use super::survey::SplitRule;

pub(super) struct Router<'a> {
    rule: SplitRule,
    tokenizer: &'a Tokenizer,
    pub(super) batcher: Batcher,
    pub(super) documents: u64,
    pub(super) chars: u64,
    /// Bytes of text, as UTF-8.
    pub(super) bytes: u64,
    position: u64,
}

impl<'a> Router<'a> {
    pub(super) fn new(rule: SplitRule, tokenizer: &'a Tokenizer) -> Self {
        Self {
            rule,
            tokenizer,
            batcher: Batcher::default(),
            documents: 0,
            chars: 0,
            bytes: 0,
            position: 0,
        }
    }

    pub(super) fn route(&mut self, part: DocumentPart<'_>) -> Result<(), DataError> {
        match part {
            DocumentPart::Text(text) => self.route_text(text),
            DocumentPart::Conversation(messages) => self.route_conversation(messages)?,
            DocumentPart::EndOfDocument => self.end_document(),
        }
        Ok(())
    }

    /// Sends the tokens of `ChatTemplate::conversation`, after the one that separates conversations.
    fn route_conversation(&mut self, messages: &[Message]) -> Result<(), DataError> {
        let Some(template) = self.tokenizer.chat() else { return Ok(()) };
        let split = self.split();
        if template.is_separated() {
            self.batcher.end(split, Some(template.begin));
        }
        for Span { text, after } in template.spans(messages).map_err(refused)? {
            self.batcher.push(&text, split);
            self.batcher.end(split, after);
        }
        self.chars += messages.iter().map(|m| m.content.chars().count() as u64).sum::<u64>();
        self.bytes += messages.iter().map(|m| m.content.len() as u64).sum::<u64>();
        self.documents += 1;
        Ok(())
    }

    fn route_text(&mut self, text: &str) {
        let chars = text.chars().count() as u64;
        let before = self.position;
        self.position += chars;
        self.chars += chars;
        self.bytes += text.len() as u64;
        match self.train_chars() {
            // The two parts of a document are tokenized independently.
            Some(train_chars) if before < train_chars && self.position >= train_chars => {
                let (train, val) = split_at_char(text, train_chars - before);
                self.batcher.push(train, SplitKind::Train);
                let end = self.tokenizer.end_of_text().filter(|_| self.separates_parts());
                self.batcher.end(SplitKind::Train, end);
                self.batcher.push(val, SplitKind::Val);
            }
            Some(train_chars) if before < train_chars => self.batcher.push(text, SplitKind::Train),
            Some(_) => self.batcher.push(text, SplitKind::Val),
            None => self.batcher.push(text, self.split()),
        }
    }

    fn end_document(&mut self) {
        match self.train_chars() {
            // The whole document is in train, and has ended there.
            Some(train_chars) if self.position <= train_chars => {}
            Some(_) => self.batcher.end(SplitKind::Val, self.tokenizer.end_of_text()),
            None => self.batcher.end(self.split(), self.tokenizer.end_of_text()),
        }
        self.documents += 1;
        self.position = 0;
    }

    /// Returns the characters of the current document that are train, if it is split by position.
    fn train_chars(&self) -> Option<u64> {
        let SplitRule::Position { train_chars } = &self.rule else { return None };
        // The input may have grown since the survey, which is an error at the end.
        Some(train_chars.get(self.documents as usize).copied().unwrap_or(0))
    }

    /// Returns true if the part of a document in train needs an end, as the next document follows
    /// it there. A single document ends once, in val.
    fn separates_parts(&self) -> bool {
        matches!(&self.rule, SplitRule::Position { train_chars } if train_chars.len() > 1)
    }

    /// Returns the split of the current document, if documents are not split.
    fn split(&self) -> SplitKind {
        match self.rule {
            SplitRule::Documents { seed, below } if hash([seed, self.documents]) < below => {
                SplitKind::Val
            }
            _ => SplitKind::Train,
        }
    }
}

/// Splits `text` before its character number `index`.
fn split_at_char(text: &str, index: u64) -> (&str, &str) {
    text.split_at(text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at))
}
