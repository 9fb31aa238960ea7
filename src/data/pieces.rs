//! Cutting text into pieces that are tokenised one by one.
//!
//! GPT-2's pre-tokenizer splits text into words before any byte pair is
//! merged, so text may be cut wherever that split always falls and wherever
//! neither side can tell that it was cut. Between a character that is not
//! whitespace and one that is, both hold:
//!
//! - no alternative of the pattern matches whitespace after something else, so
//!   a word always ends there;
//! - what lies left of the cut sees the end of the text where it would have
//!   seen whitespace. Only the whitespace alternatives (`\s++$`, `\s+(?!\S)`)
//!   look at what follows them, and the left side does not end in whitespace;
//! - the pattern never looks back, so the right side is read as before.
//!
//! The other tokenizers work character by character and may be cut anywhere.

/// Longest piece in bytes. Small enough to spread over threads and to stay
/// clear of the backtracking limit of the pre-tokenizer's regular expression
/// (one million), large enough to make the cost of a piece invisible.
pub(super) const PIECE: usize = 256 << 10;

/// Where the first piece of `text` ends.
///
/// A text of at most [`PIECE`] bytes is one piece. A longer one is cut at the
/// last safe place in its first [`PIECE`] bytes. An unbroken run longer than
/// that has no safe place and is cut at a character; its tokens around the cut
/// then differ from an uncut tokenisation, and nothing else does. The answer
/// depends on those bytes alone, so cutting a stream as it arrives and cutting
/// the whole text give the same pieces.
pub(super) fn piece_end(text: &str) -> usize {
    if text.len() <= PIECE {
        return text.len();
    }
    let limit = text.floor_char_boundary(PIECE);
    let (head, tail) = text.split_at(limit);
    let mut before_space = tail.starts_with(char::is_whitespace);
    for (start, character) in head.char_indices().rev() {
        let space = character.is_whitespace();
        if before_space && !space {
            return start + character.len_utf8();
        }
        before_space = space;
    }
    limit
}

/// The pieces of a whole text, in order.
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
    fn cuts_before_whitespace_only() {
        let text = "word and  more\n\nlines ".repeat(PIECE / 10);
        let mut rest = text.as_str();
        let mut count = 0;
        while rest.len() > PIECE {
            let end = piece_end(rest);
            let (left, right) = rest.split_at(end);
            assert!(end > PIECE - 20, "cut far from the limit, at {end}");
            assert!(!left.ends_with(char::is_whitespace));
            assert!(right.starts_with(char::is_whitespace));
            rest = right;
            count += 1;
        }
        assert_eq!(count, 2);
        assert_eq!(pieces(&text).collect::<String>(), text);
    }

    #[test]
    fn an_unbroken_run_is_cut_at_a_character() {
        // Three bytes each, and PIECE is not a multiple of three.
        let text = "\u{4e2d}".repeat(PIECE / 3 + 10);
        assert_eq!(piece_end(&text), PIECE / 3 * 3);
        let spaces = " ".repeat(PIECE + 1);
        assert_eq!(piece_end(&spaces), PIECE);
        let late = format!("a{spaces}");
        assert_eq!(piece_end(&late), 1, "the only safe cut is after the a");
    }

    #[test]
    fn the_boundary_itself_is_a_cut() {
        let text = format!("{} b", "a".repeat(PIECE));
        assert_eq!(piece_end(&text), PIECE);
        assert_eq!(piece_end(&text[..PIECE]), PIECE);
        assert_eq!(pieces("").count(), 0);
    }
}
