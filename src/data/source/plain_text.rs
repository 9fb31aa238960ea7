//! Reads plain text block by block.
//!
//! A file is one document, unless it contains the separator `<|endoftext|>`. One line break after a
//! separator belongs to it, so it may have its own line. Empty documents and a byte order mark are
//! skipped.

use std::io::Read;
use std::ops::ControlFlow;

use super::super::tokenizer::END_OF_TEXT;
use super::file::{BLOCK, Input};
use super::{DataError, DocumentPart, Sink};

/// Reads the documents of a text file into `sink`.
pub(super) fn read(
    input: &mut Input<'_>,
    sink: &mut Sink<'_>,
) -> Result<ControlFlow<()>, DataError> {
    let mut decoder = Decoder::default();
    let mut splitter = Splitter::default();
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        let read = (&mut input.reader)
            .take(BLOCK as u64)
            .read_to_end(&mut block)
            .map_err(input.read_error())?;
        let end = read == 0;
        let bytes_read = input.bytes_read();
        decoder
            .push(&block, end, &mut splitter.pending)
            .map_err(|offset| DataError::not_utf8(input.path, offset))?;
        let flow = splitter.split(end, &mut |part| sink(part, bytes_read))?;
        if end || flow.is_break() {
            return Ok(flow);
        }
    }
}

#[derive(Default)]
struct Decoder {
    /// The first bytes of a character that continues in the next block.
    carry: Vec<u8>,
    offset: u64,
}

impl Decoder {
    /// Appends the text of `block` to `text`, except for an incomplete character at its end. The
    /// error is the offset of the first invalid byte.
    fn push(&mut self, block: &[u8], end: bool, text: &mut String) -> Result<(), u64> {
        self.carry.extend_from_slice(block);
        let (valid, incomplete) = match str::from_utf8(&self.carry) {
            Ok(valid) => (valid, false),
            Err(error) => {
                let (valid, _) = self.carry.split_at(error.valid_up_to());
                let incomplete = error.error_len().is_none() && !end;
                if !incomplete {
                    return Err(self.offset.saturating_add(valid.len() as u64));
                }
                (str::from_utf8(valid).unwrap_or_default(), true)
            }
        };
        let new = match valid.strip_prefix('\u{feff}') {
            Some(rest) if self.offset == 0 => rest,
            _ => valid,
        };
        text.push_str(new);
        let length = valid.len();
        self.offset = self.offset.saturating_add(length as u64);
        if incomplete {
            self.carry.drain(..length);
        } else {
            self.carry.clear();
        }
        Ok(())
    }
}

/// Splits documents at `<|endoftext|>`.
#[derive(Default)]
struct Splitter {
    /// Text that is not yet passed on.
    pending: String,
    /// Directly after a separator, whose line break may follow.
    after_separator: bool,
    /// The current document is not empty.
    has_text: bool,
}

type Parts<'a> = dyn FnMut(DocumentPart<'_>) -> Result<ControlFlow<()>, DataError> + 'a;

impl Splitter {
    /// Passes on `pending`, except for a possible start of a separator before the end of the file.
    fn split(&mut self, end: bool, sink: &mut Parts<'_>) -> Result<ControlFlow<()>, DataError> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_str();
        loop {
            if self.after_separator {
                if !end && (rest.is_empty() || rest == "\r") {
                    break;
                }
                rest = strip_line_break(rest);
                self.after_separator = false;
            }
            let Some((document, after)) = rest.split_once(END_OF_TEXT) else {
                break;
            };
            if self.emit(document, true, sink)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            self.after_separator = true;
            rest = after;
        }
        if self.after_separator && !end {
            self.pending.push_str(rest);
            return Ok(ControlFlow::Continue(()));
        }
        let start = if end { 0 } else { separator_start(rest) };
        let (complete, start) = rest.split_at(rest.len() - start);
        self.pending.push_str(start);
        self.emit(complete, end, sink)
    }

    fn emit(
        &mut self,
        text: &str,
        last: bool,
        sink: &mut Parts<'_>,
    ) -> Result<ControlFlow<()>, DataError> {
        if !text.is_empty() {
            self.has_text = true;
            if sink(DocumentPart::Text(text))?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if last && std::mem::take(&mut self.has_text) {
            return sink(DocumentPart::EndOfDocument);
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn strip_line_break(text: &str) -> &str {
    text.strip_prefix("\r\n").or_else(|| text.strip_prefix('\n')).unwrap_or(text)
}

/// Returns the length of the longest suffix of `text` that is the start of a separator.
fn separator_start(text: &str) -> usize {
    (1..END_OF_TEXT.len())
        .rev()
        .find(|&length| END_OF_TEXT.get(..length).is_some_and(|start| text.ends_with(start)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::documents;
    use super::*;
    use proptest::prelude::*;

    /// Reads the documents of `text` in blocks of `size` bytes.
    fn split(text: &[u8], size: usize) -> Result<Vec<String>, u64> {
        let (mut decoder, mut splitter) = (Decoder::default(), Splitter::default());
        let (mut found, mut current) = (vec![], String::new());
        let empty: &[u8] = &[];
        for (block, end) in text.chunks(size).map(|b| (b, false)).chain([(empty, true)]) {
            decoder.push(block, end, &mut splitter.pending)?;
            let _continue = splitter
                .split(end, &mut |part| {
                    match part {
                        DocumentPart::Text(text) => current.push_str(text),
                        DocumentPart::EndOfDocument => found.push(std::mem::take(&mut current)),
                        DocumentPart::Conversation(_) => unreachable!("a text has none"),
                    }
                    Ok(ControlFlow::Continue(()))
                })
                .unwrap();
        }
        assert!(current.is_empty());
        Ok(found)
    }

    #[test]
    fn separators_are_found_in_blocks_of_any_size() {
        let text = "\u{feff}One \u{e9}\n<|endoftext|>\r\nTwo<|endoftext|>\n\nThree <|end<|endoftext|>\
                    <|endoftext|>\nFour<|endoftext|>\n";
        for size in 1..=text.len() {
            assert_eq!(
                split(text.as_bytes(), size).unwrap(),
                ["One \u{e9}\n", "Two", "\nThree <|end", "Four"],
                "blocks of {size}"
            );
        }
        assert!(split(b"<|endoftext|>\n", 3).unwrap().is_empty());
        assert_eq!(split(b"a<|endoftext|>\r", 1).unwrap(), ["a", "\r"]);
    }

    #[test]
    fn errors_give_the_offset_of_an_invalid_byte() {
        for size in 1..8 {
            assert_eq!(split(b"ab\xc3\xa9\xff!", size), Err(4), "in the middle");
            assert_eq!(split(b"ab\xe4\xb8", size), Err(2), "incomplete at the end");
        }
    }

    #[test]
    fn the_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("utf16.txt");
        let mut bytes = vec![b'a'; BLOCK];
        bytes.extend(b"\xff\xfe");
        std::fs::write(&path, bytes).unwrap();
        let message = documents(&[path], "text").unwrap_err().to_string();
        assert!(message.contains("utf16.txt") && message.contains("byte 65536"), "{message}");
    }

    proptest! {
        #[test]
        fn documents_do_not_depend_on_the_block_size(
            parts in proptest::collection::vec("[a<|\n\u{e9}]{0,6}|<\\|endoftext\\|>", 0..12),
            size in 1_usize..20,
        ) {
            let text = parts.concat();
            prop_assert_eq!(
                split(text.as_bytes(), size).unwrap(),
                split(text.as_bytes(), usize::MAX).unwrap()
            );
        }
    }
}
