//! The browser build trains no byte pairs: its page does not offer them.

use super::super::DataError;
use super::Bpe;

pub(in crate::data) struct WordCounts(());

impl WordCounts {
    pub fn new(_: u32) -> Result<Self, DataError> {
        Err(unavailable())
    }

    pub fn is_full(&self) -> bool {
        true
    }

    pub fn push(&mut self, _: &str) -> Result<(), DataError> {
        Err(unavailable())
    }

    pub fn end_document(&mut self) -> Result<(), DataError> {
        Err(unavailable())
    }

    pub fn train(self) -> Result<Bpe, DataError> {
        Err(unavailable())
    }
}

fn unavailable() -> DataError {
    let hint =
        "choose characters, bytes or GPT-2's tokens, or prepare the text with `wgpt prepare`";
    DataError::bad("a browser cannot train a tokenizer", hint)
}
