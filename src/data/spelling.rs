//! The spelling of tokens in files of tokenizers: bytes as characters, and the name of the end of a document.

use std::collections::HashMap;

pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

/// Returns the character that represents a byte in Hugging Face files: the byte itself if it is a
/// visible Latin-1 character, else the next unused character from U+0100.
pub(super) fn byte_character(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        0..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + (code - 0x7f),
        0xad => 0x143,
        _ => code,
    };
    char::from_u32(code).unwrap_or_default()
}

/// Spells the bytes of a token with those characters.
pub(super) fn spell(token: &[u8]) -> String {
    token.iter().map(|&byte| byte_character(byte)).collect()
}

/// Returns the byte that each character stands for.
pub(super) fn bytes_of_characters() -> HashMap<char, u8> {
    (0..=u8::MAX).map(|byte| (byte_character(byte), byte)).collect()
}

/// Returns the bytes that a token of a file stands for; `None` if it has other characters.
pub(super) fn spelled(name: &str, bytes: &HashMap<char, u8>) -> Option<Vec<u8>> {
    name.chars().map(|character| bytes.get(&character).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spelled_as_in_the_published_files() {
        // Invisible bytes, counted from 0: the space is number 32.
        let invisible = (0..=u8::MAX).filter(|&byte| byte_character(byte) != char::from(byte));
        assert!(invisible.map(byte_character).eq('\u{100}'..='\u{143}'));
        assert_eq!(byte_character(b' '), '\u{120}');
    }
}
