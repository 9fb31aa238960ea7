//! Splits text into pieces that are tokenized independently.
//!
//! GPT-2's pre-tokenizer splits text into words before it merges byte pairs. Text can therefore be
//! split without changing its tokens at any position where a word always ends and neither side can
//! see the split. Every position after a non-whitespace and before a whitespace character is safe:
//!
//! - no alternative of the pattern matches whitespace after another character, so a word always
//!   ends there;
//! - the left side sees the end of the text instead of whitespace. Only the whitespace alternatives
//!   (`\s++$`, `\s+(?!\S)`) look ahead, and the left side does not end in whitespace;
//! - the pattern never looks back, so the right side matches as before.
//!
//! The words of other models may end with line breaks after a sign, as in `);` and a line break, so a
//! position before a space or a tab is better. Characters and bytes can be split anywhere.

/// Largest piece in bytes. Small enough to spread over threads and to stay below the backtracking
/// limit of the pre-tokenizer's regular expression (one million), large enough to make the cost of
/// a piece negligible.
pub(super) const PIECE: usize = 256 << 10;

/// Returns the end of the first piece of `text`.
///
/// Text of at most [`PIECE`] bytes is one piece. Longer text is split at the last safe position in
/// its first [`PIECE`] bytes, before a space if there is one. A longer run without whitespace is split
/// at a character boundary, which changes the tokens next to the split. The result depends on those
/// bytes alone, so a stream is split into the same pieces as the whole text.
pub(super) fn piece_end(text: &str) -> usize {
    if text.len() <= PIECE {
        return text.len();
    }
    let limit = text.floor_char_boundary(PIECE);
    let (head, tail) = text.split_at(limit);
    let mut next = tail.chars().next();
    let mut before_break = None;
    for (start, character) in head.char_indices().rev() {
        let end = start + character.len_utf8();
        match next {
            _ if character.is_whitespace() => {}
            Some('\n' | '\r') => before_break = before_break.or(Some(end)),
            Some(next) if next.is_whitespace() => return end,
            _ => {}
        }
        next = Some(character);
    }
    before_break.unwrap_or(limit)
}

/// Appends `text` to `open`, the start of a piece that may still grow, and returns the pieces that are
/// complete. They don't depend on the parts that the text arrives in.
pub(super) fn grow(open: &mut String, text: &str) -> Vec<String> {
    let mut complete = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(PIECE));
        open.push_str(part);
        rest = after;
        while open.len() > PIECE {
            let later = open.split_off(piece_end(open));
            complete.push(std::mem::replace(open, later));
        }
    }
    complete
}

pub(super) fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let (piece, rest) = text.split_at(piece_end(text));
        text = rest;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_only_before_whitespace() {
        let text = "word and  more\n\nlines ".repeat(PIECE / 10);
        let mut rest = text.as_str();
        let mut count = 0;
        while rest.len() > PIECE {
            let end = piece_end(rest);
            let (left, right) = rest.split_at(end);
            assert!(end > PIECE - 20, "split far from the limit, at {end}");
            assert!(!left.ends_with(char::is_whitespace));
            assert!(right.starts_with(char::is_whitespace));
            rest = right;
            count += 1;
        }
        assert_eq!(count, 2);
        assert_eq!(pieces(&text).collect::<String>(), text);
    }

    #[test]
    fn the_last_safe_position_is_taken() {
        let [spaces, lines] = [" ".repeat(PIECE + 1), "c\n".repeat(PIECE)];
        for (text, end, what) in [
            // Each character has three bytes, and PIECE is not a multiple of three.
            ("\u{4e2d}".repeat(PIECE / 3 + 10), PIECE / 3 * 3, "a character boundary"),
            (format!("a{spaces}"), 1, "the only safe position is after the a"),
            (spaces, PIECE, "no safe position"),
            (format!("a b{lines}"), 1, "before a space"),
            (lines, PIECE - 1, "before a line break"),
            (format!("{} b", "a".repeat(PIECE)), PIECE, "a piece of the full length"),
            ("a".repeat(PIECE), PIECE, "all of the text"),
        ] {
            assert_eq!(piece_end(&text), end, "{what}");
        }
        assert_eq!(pieces("").count(), 0);
    }
}
