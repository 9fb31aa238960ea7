//! Reads plain text block by block.
//!
//! A file is one document, unless it contains the separator `<|endoftext|>`. One line break after a
//! separator belongs to it, so it may have its own line. Empty documents are skipped.

use std::io::Read;

use super::input::{BLOCK, Input};
use super::platform::{TextDecoder, TextEncoding};
use super::{DataError, DocumentPart, Sink, Stop};
use crate::data::spelling::END_OF_TEXT;

pub(super) fn read(
    input: &mut Input<'_>,
    encoding: TextEncoding,
    sink: &mut Sink<'_>,
) -> Result<(), Stop> {
    // A mark of UTF-8 decides.
    let decoder = encoding.decoder().filter(|_| input.mark == 0);
    let mut splitter = Splitter { decoder, offset: input.mark, ..Splitter::default() };
    loop {
        let read = (&mut input.reader).take(BLOCK as u64).read_to_end(&mut splitter.bytes);
        let end = read.map_err(|error| input.failed(error))? == 0;
        let bytes_read = input.bytes_read();
        splitter
            .decode(end)
            .map_err(|offset| DataError::not_encoded(input.path, encoding.name(), offset))?;
        splitter.split(end, &mut |part| sink(part, bytes_read))?;
        if end {
            return Ok(());
        }
    }
}

/// Splits documents at `<|endoftext|>`.
#[derive(Default)]
struct Splitter {
    /// Decodes other text than UTF-8.
    decoder: Option<TextDecoder>,
    /// Bytes that are not decoded yet. A character may continue in the next block.
    bytes: Vec<u8>,
    /// The position of `bytes` in the file.
    offset: u64,
    /// Text that is not yet passed on.
    pending: String,
    has_text: bool,
}

impl Splitter {
    /// Moves the text of `bytes` to `pending`, except for an incomplete character at its end. The
    /// error is the offset of the first invalid byte.
    fn decode(&mut self, end: bool) -> Result<(), u64> {
        if let Some(decoder) = &mut self.decoder {
            let bytes = std::mem::take(&mut self.bytes);
            let decoded = decoder.decode(&bytes, end, &mut self.pending);
            decoded.map_err(|at| self.offset.saturating_add_signed(at))?;
            self.offset += bytes.len() as u64;
            return Ok(());
        }
        let length = match str::from_utf8(&self.bytes) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() && !end => error.valid_up_to(),
            Err(error) => return Err(self.offset + error.valid_up_to() as u64),
        };
        let text = str::from_utf8(&self.bytes[..length]).unwrap_or_default();
        self.pending.push_str(text);
        self.offset += length as u64;
        self.bytes.drain(..length);
        Ok(())
    }

    /// Passes on `pending`, except for a possible start of a separator and its line break before the end
    /// of the file.
    fn split(
        &mut self,
        end: bool,
        sink: &mut dyn FnMut(DocumentPart<'_>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_str();
        let mut emit = |text: &str, last: bool| -> Result<(), Stop> {
            if !text.is_empty() {
                self.has_text = true;
                sink(DocumentPart::Text(text))?;
            }
            if last && std::mem::take(&mut self.has_text) {
                sink(DocumentPart::EndOfDocument)?;
            }
            Ok(())
        };
        while let Some((document, after)) = rest.split_once(END_OF_TEXT) {
            if matches!(after, "" | "\r") && !end {
                break;
            }
            emit(document, true)?;
            let line_break = ["\r\n", "\n"].into_iter().find_map(|it| after.strip_prefix(it));
            rest = line_break.unwrap_or(after);
        }
        let open = if end { 0 } else { separator_start(rest) };
        let (complete, open) = rest.split_at(rest.len() - open);
        emit(complete, end)?;
        self.pending.push_str(open);
        Ok(())
    }
}

/// Returns the length of the longest suffix of `text` that is the start of a separator and a line break.
fn separator_start(text: &str) -> usize {
    let separator = format!("{END_OF_TEXT}\r");
    (1..=separator.len()).rev().find(|&length| text.ends_with(&separator[..length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads the documents of `text` in blocks of `size` bytes.
    fn split(text: &[u8], size: usize) -> Result<Vec<String>, u64> {
        let mut splitter = Splitter::default();
        let (mut found, mut current) = (vec![], String::new());
        for (block, end) in text.chunks(size).map(|b| (b, false)).chain([(&[][..], true)]) {
            splitter.bytes.extend(block);
            splitter.decode(end)?;
            let split = splitter.split(end, &mut |part| {
                match part {
                    DocumentPart::Text(text) => current.push_str(text),
                    DocumentPart::EndOfDocument => found.push(std::mem::take(&mut current)),
                    DocumentPart::Conversation(_) => unreachable!("a text has none"),
                }
                Ok(())
            });
            split.unwrap();
        }
        assert!(current.is_empty());
        Ok(found)
    }

    #[test]
    fn separators_are_found_in_blocks_of_any_size() {
        let text = "One \u{e9}\n<|endoftext|>\r\nTwo<|endoftext|>\n\nThree <|end<|endoftext|>\
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
