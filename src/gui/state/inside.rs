//! Text that the shown model scores, token by token.

use crate::gui::intent::Intent;
use crate::protocol::{SampleInput, ScoredToken};

#[derive(Debug, Default)]
pub struct InsideState {
    /// True if this is shown in place of the samples.
    pub is_open: bool,
    pub text: String,
    pub tokens: Vec<ScoredToken>,
    pub is_reading: bool,
}

impl InsideState {
    /// Adds tokens, unless the text is no longer being read.
    pub fn scored(&mut self, tokens: Vec<ScoredToken>, done: bool) {
        if self.is_reading {
            self.tokens.extend(tokens);
            self.is_reading = !done;
        }
    }

    /// Ends the reading; the tokens so far stay. Returns true if text was being read.
    pub fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_reading)
    }

    /// Opens this with `text`, and requests its tokens.
    pub fn look_into(&mut self, text: String) -> Intent {
        *self = Self { is_open: true, is_reading: true, text: text.clone(), tokens: Vec::new() };
        Intent::Generate(SampleInput::Text(text))
    }
}
