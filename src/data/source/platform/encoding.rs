//! The encoding of plain text: one that the WHATWG has a label for.

use std::str::FromStr;

use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8};

use crate::config::most_similar;
use crate::data::DataError;

/// Labels to suggest: a common one for each encoding. The crate does not list the others.
const LABELS: &str = "utf-8 utf-16 utf-16le utf-16be latin1 latin2 latin3 latin4 latin5 latin6 \
    ascii cyrillic greek arabic hebrew iso-8859-1 iso-8859-2 iso-8859-15 iso-8859-16 windows-1250 \
    windows-1251 windows-1252 windows-1253 windows-1254 windows-1257 windows-1258 windows-874 ibm866 \
    koi8-r koi8-u macintosh gbk gb18030 big5 shift_jis euc-jp iso-2022-jp euc-kr";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextEncoding(&'static Encoding);

impl TextEncoding {
    pub fn is_utf8(self) -> bool {
        self.0 == UTF_8
    }

    /// Returns true if the characters of ASCII are the same bytes in it, and no other character has these.
    pub fn is_ascii_compatible(self) -> bool {
        self.0.is_ascii_compatible()
    }

    /// Returns its usual name.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Returns a decoder; `None` for UTF-8.
    pub fn decoder(self) -> Option<TextDecoder> {
        // A byte order mark decides for the Unicode encodings, and is left out.
        (!self.is_utf8()).then(|| TextDecoder(self.0.new_decoder()))
    }
}

impl Default for TextEncoding {
    fn default() -> Self {
        Self(UTF_8)
    }
}

impl FromStr for TextEncoding {
    type Err = DataError;

    fn from_str(label: &str) -> Result<Self, DataError> {
        let found = Encoding::for_label_no_replacement(label.as_bytes());
        found.map(Self).ok_or_else(|| {
            let hint = match most_similar(label, LABELS.split(' ')) {
                Some(near) => format!("did you mean {near}?"),
                None => "give a label like latin1, windows-1251, utf-16le, gbk or shift_jis".into(),
            };
            DataError::usage(format!("unknown encoding {label:?}"), hint)
        })
    }
}

/// Decodes text block by block.
pub struct TextDecoder(Decoder);

impl TextDecoder {
    /// Decodes `bytes`, the last ones if `end` is true, and appends the result to `text`. The error is the
    /// position of the first bytes that are not a character, which is negative if they begin before `bytes`.
    pub fn decode(&mut self, bytes: &[u8], end: bool, text: &mut String) -> Result<(), i64> {
        let mut done = 0;
        loop {
            let rest = &bytes[done..];
            let most = self.0.max_utf8_buffer_length_without_replacement(rest.len());
            text.reserve(most.unwrap_or(rest.len()));
            let (result, read) = self.0.decode_to_string_without_replacement(rest, text, end);
            done += read;
            match result {
                DecoderResult::InputEmpty => return Ok(()),
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(length, after) => {
                    return Err(done as i64 - i64::from(length) - i64::from(after));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suggested_label_is_known_and_others_are_not() {
        for label in LABELS.split(' ') {
            label.parse::<TextEncoding>().unwrap();
        }
        // The decoder of this one only refuses.
        assert!("hz-gb-2312".parse::<TextEncoding>().is_err());
        for (label, hint) in [
            ("latn1", "did you mean latin1?"),
            ("window-1251", "did you mean windows-1251?"),
            ("shiftjis2", "did you mean shift_jis?"),
            ("qqqq", "give a label like latin1, windows-1251, utf-16le, gbk or shift_jis"),
        ] {
            let error = label.parse::<TextEncoding>().unwrap_err();
            assert_eq!(error.to_string(), format!("unknown encoding {label:?}"));
            assert_eq!(error.hint(), hint);
        }
    }

    /// Decodes in blocks of `size` bytes.
    fn decode(label: &str, bytes: &[u8], size: usize) -> Result<String, i64> {
        let mut decoder = label.parse::<TextEncoding>().unwrap().decoder().unwrap();
        let (mut text, mut offset) = (String::new(), 0);
        for block in bytes.chunks(size) {
            decoder.decode(block, false, &mut text).map_err(|at| offset + at)?;
            offset += block.len() as i64;
        }
        decoder.decode(&[], true, &mut text).map_err(|at| offset + at)?;
        Ok(text)
    }

    #[test]
    fn blocks_of_any_size_give_the_same_text() {
        let wide: Vec<u8> =
            "\u{feff}h\u{e9} \u{1f600}".encode_utf16().flat_map(u16::to_be_bytes).collect();
        for size in 1..20 {
            assert_eq!(decode("latin1", b"caf\xe9 \x80", size).unwrap(), "caf\u{e9} \u{20ac}");
            // The mark knows the order of bytes better.
            assert_eq!(decode("utf-16", &wide, size).unwrap(), "h\u{e9} \u{1f600}");
            assert_eq!(decode("shift_jis", b"a\x93\xfa\x96{", size).unwrap(), "a\u{65e5}\u{672c}");
            assert_eq!(decode("shift_jis", b"ab\x93\xfa\xff!", size), Err(4));
            assert_eq!(decode("gbk", b"ab\xc4", size), Err(2), "incomplete at the end");
        }
    }
}
