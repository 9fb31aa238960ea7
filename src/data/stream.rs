//! Decodes tokens as they are generated.

/// Decodes tokens one by one into whole characters: some tokens are parts of one.
#[derive(Debug, Default)]
pub struct TextStream {
    /// The tokens since the last that ended a character.
    open: Vec<u32>,
    /// The bytes of their text that were returned.
    returned: usize,
}

impl TextStream {
    /// Adds a token, and returns the text that is complete. `decode` decodes ids.
    pub fn push(&mut self, decode: impl FnOnce(&[u32]) -> String, token: u32) -> String {
        self.open.push(token);
        let text = decode(&self.open);
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
    use crate::data::Tokenizer;

    #[test]
    fn pieces_are_whole_characters() {
        let byte = |ids: &[u32]| Tokenizer::BYTE.decode(ids);
        let mut stream = TextStream::default();
        let seen: Vec<String> =
            "aé😀b".bytes().map(|token| stream.push(byte, token.into())).collect();
        assert_eq!(seen, ["a", "", "é", "", "", "", "😀", "b"]);
        // A byte that begins no character is shown once it is known to be none.
        let seen = [b'x', 0xff, b'y'].map(|token| stream.push(byte, token.into()));
        assert_eq!(seen, ["x", "", "\u{fffd}y"]);
        let mut stream = TextStream::default();
        let text = "Ünïcode 😀 text";
        let ids = Tokenizer::GPT2.encode(text).unwrap();
        let decode = |ids: &[u32]| Tokenizer::GPT2.decode(ids);
        let pieces = ids.into_iter().map(|id| stream.push(decode, id));
        assert_eq!(pieces.collect::<String>(), text);
    }
}
