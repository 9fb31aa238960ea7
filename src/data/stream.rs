//! Decodes tokens as they are generated.

use super::Tokenizer;

/// Decodes tokens one by one into whole characters: some tokens are parts of one.
#[derive(Debug, Default)]
pub struct TextStream {
    /// The tokens since the last that ended a character.
    open: Vec<u32>,
    /// The bytes of their text that were returned.
    returned: usize,
}

impl TextStream {
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> String {
        self.open.push(token);
        let text = tokenizer.decode(&self.open);
        // The text may end in a part of a character, which the next token completes.
        let complete = text.trim_end_matches('\u{fffd}').len().max(self.returned);
        let piece = text[self.returned..complete].to_string();
        self.returned = complete;
        if complete == text.len() {
            self.open.clear();
            self.returned = 0;
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_characters() {
        let byte = Tokenizer::Byte;
        let mut stream = TextStream::default();
        let seen: Vec<String> =
            "aé😀b".bytes().map(|token| stream.push(&byte, token.into())).collect();
        assert_eq!(seen, ["a", "", "é", "", "", "", "😀", "b"]);
        // A byte that begins no character is shown once it is known to be none.
        let seen = [b'x', 0xff, b'y'].map(|token| stream.push(&byte, token.into()));
        assert_eq!(seen, ["x", "", "\u{fffd}y"]);
        let mut stream = TextStream::default();
        let text = "Ünïcode 😀 text";
        let ids = Tokenizer::Gpt2.encode(text).unwrap();
        let pieces = ids.into_iter().map(|id| stream.push(&Tokenizer::Gpt2, id));
        assert_eq!(pieces.collect::<String>(), text);
    }
}
