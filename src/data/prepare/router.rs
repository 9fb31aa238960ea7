//! Sends documents and conversations to the splits, as text and tokens.

use super::super::chat::{Span, refused};
use super::super::encode::{Batcher, SplitKind};
use super::super::source::DocumentPart;
use super::super::windows::hash;
use super::super::{DataError, Message, Tokenizer};
use super::survey::SplitRule;

pub(super) struct Router<'a> {
    rule: SplitRule,
    pub(super) tokenizer: &'a Tokenizer,
    /// Between documents, if the tokenizer has no token that ends one.
    separator: Option<char>,
    pub(super) batcher: Batcher,
    pub(super) documents: u64,
    pub(super) chars: u64,
    /// Bytes of text, as UTF-8.
    pub(super) bytes: u64,
    /// The split that the text of the current document went to last, and its last character.
    split: SplitKind,
    last: Option<char>,
    /// True within a document.
    has_begun: bool,
}

impl<'a> Router<'a> {
    pub(super) fn new(rule: SplitRule, tokenizer: &'a Tokenizer, separator: Option<char>) -> Self {
        Self {
            rule,
            tokenizer,
            separator,
            batcher: Batcher::default(),
            documents: 0,
            chars: 0,
            bytes: 0,
            split: SplitKind::Train,
            last: None,
            has_begun: false,
        }
    }

    /// Returns a warning if nothing separates the documents.
    pub(super) fn joins_documents(&self) -> Option<String> {
        let ends = self.tokenizer.end_of_text().is_some() || self.separator.is_some();
        (self.documents > 1 && !ends).then(|| {
            "the documents follow each other without a mark: the tokenizer has neither a token that ends a \
             document nor one for a line break"
                .to_owned()
        })
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
        let split = self.document_split();
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
        let before = self.chars;
        self.chars += text.chars().count() as u64;
        self.bytes += text.len() as u64;
        self.last = text.chars().last().or(self.last);
        match self.rule {
            SplitRule::Position { train_chars } if before >= train_chars => {
                self.push(text, SplitKind::Val);
            }
            SplitRule::Position { train_chars } if self.chars <= train_chars => {
                self.push(text, SplitKind::Train);
            }
            SplitRule::Position { train_chars } => {
                let (train, val) = split_at_char(text, train_chars - before);
                self.push(train, SplitKind::Train);
                self.push(val, SplitKind::Val);
            }
            SplitRule::Documents { .. } => self.push(text, self.document_split()),
        }
    }

    /// The parts of a document in two splits are tokenized independently.
    fn push(&mut self, text: &str, split: SplitKind) {
        if split != self.split {
            self.batcher.end(self.split, None);
            self.split = split;
        }
        if !std::mem::replace(&mut self.has_begun, true)
            && let Some(begin) = self.tokenizer.added_begin()
        {
            self.batcher.end(split, Some(begin));
        }
        self.batcher.push(text, split);
    }

    fn end_document(&mut self) {
        let split = match self.rule {
            SplitRule::Position { .. } => self.split,
            SplitRule::Documents { .. } => self.document_split(),
        };
        if let (Some(separator), Some(last)) = (self.separator, self.last.take())
            && last != separator
        {
            self.push(separator.encode_utf8(&mut [0; 4]), split);
        }
        self.batcher.end(split, self.tokenizer.end_of_text());
        self.has_begun = false;
        self.documents += 1;
    }

    /// Returns the split of the current document, if documents are not split.
    fn document_split(&self) -> SplitKind {
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
