//! The browser build trains no byte pairs: its page does not offer them.

use super::super::DataError;
use super::Bpe;

/// The counterpart of the desktop's, which cannot be made here.
pub(in crate::data) enum WordCounts {}

impl WordCounts {
    pub fn new() -> Result<Self, DataError> {
        let reason = "a browser does not train byte pairs: prepare the text with `wgpt prepare`";
        Err(DataError::Tokenize { reason: reason.to_owned() })
    }

    pub fn is_full(&self) -> bool {
        match *self {}
    }

    pub fn push(&mut self, _: &str) -> Result<(), DataError> {
        match *self {}
    }

    pub fn end_document(&mut self) -> Result<(), DataError> {
        match *self {}
    }

    pub fn train(self, _: u32) -> Result<Bpe, DataError> {
        match self {}
    }
}
