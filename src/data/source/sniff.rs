//! Recognises files by their first bytes, because names say less and are often wrong.

use super::input::Compression;
use super::platform::{self, TextEncoding};
use super::table::TableForm;

/// Bytes at the start of a file that show what it is.
pub(super) const START: usize = 8 << 10;

/// The marks that programs begin UTF-8 and both orders of UTF-16 with.
pub(super) const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16_MARKS: [(&[u8], &str); 2] = [(b"\xff\xfe", "utf-16le"), (b"\xfe\xff", "utf-16be")];

/// Archives and documents that hold text in a way that wgpt does not read. The first that fits counts.
const FOREIGN: [(&[u8], &str); 9] = [
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ\0", "compressed with xz"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"{\\rtf", "an RTF document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of an old Office"),
    (b"ARROW1", "an Arrow file"),
];

/// What zip archives are that other programs know by another name, by a part of their first entries.
const ZIPPED: [(&[u8], &str); 4] = [
    (b"application/epub+zip", "an EPUB book"),
    (b"word/", "a Word document"),
    (b"xl/", "an Excel table"),
    (b"application/vnd.oasis", "an OpenDocument"),
];

pub(super) fn compression(start: &[u8]) -> Compression {
    match start {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        // A skippable frame may come first, as pzstd writes it.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

pub(super) fn is_parquet(start: &[u8]) -> bool {
    start.starts_with(b"PAR1")
}

/// Returns what a file is that wgpt does not read: "it is {..}".
pub(super) fn foreign(start: &[u8]) -> Option<&'static str> {
    if start.get(257..262) == Some(b"ustar") {
        return Some("a tar archive");
    }
    let contains = |part: &[u8]| start.windows(part.len()).any(|window| window == part);
    let (mark, name) = *FOREIGN.iter().find(|(mark, _)| start.starts_with(mark))?;
    if mark == b"BZh" && start.get(4..10) != Some(b"1AY&SY") {
        return None;
    }
    let zipped = ZIPPED.iter().find(|(part, _)| mark == b"PK\x03\x04" && contains(part));
    Some(zipped.map_or(name, |(_, name)| name))
}

/// Returns the encoding that a byte order mark tells, other than UTF-8.
pub(super) fn marked(start: &[u8]) -> Option<TextEncoding> {
    let found = UTF16_MARKS.iter().find(|(mark, _)| start.starts_with(mark));
    found.and_then(|(_, label)| platform::encoding(label))
}

/// Returns the label of UTF-16 if most characters of the text have a zero in the same one of their two bytes.
pub(super) fn looks_like_utf16(start: &[u8]) -> Option<&'static str> {
    let (pairs, _) = start.as_chunks::<2>();
    let most = |at: usize| pairs.iter().filter(|pair| pair[at] == 0).count() * 2 > pairs.len();
    match [most(0), most(1)] {
        [false, true] => Some("utf-16le"),
        [true, false] => Some("utf-16be"),
        _ => None,
    }
}

/// The layouts of files with several records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One JSON object a line.
    Lines,
    /// One JSON array of objects, over any number of lines.
    Array,
    /// One row of texts each, with a header.
    Table(TableForm),
}

/// Returns how text that begins like this has JSON objects, if it may have some.
pub(super) fn json(start: &[u8]) -> Option<Layout> {
    let start = start.strip_prefix(UTF8_MARK).unwrap_or(start).trim_ascii_start();
    match start {
        [b'{', ..] => Some(Layout::Lines),
        [b'[', rest @ ..] if rest.trim_ascii_start().starts_with(b"{") => Some(Layout::Array),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_their_first_bytes() {
        let epub = b"PK\x03\x04\x0a\0\0\0mimetypeapplication/epub+zipPK";
        for (start, expected) in [
            (&b"%PDF-1.7\n"[..], Some("a PDF document")),
            (epub, Some("an EPUB book")),
            (b"PK\x03\x04..word/document.xml", Some("a Word document")),
            (b"PK\x03\x04..a.txt", Some("a zip archive")),
            (b"BZh91AY&SY", Some("compressed with bzip2")),
            (b"BZhou said: 1AY&SY", None),
            (b"Once upon a time", None),
            (b"", None),
        ] {
            assert_eq!(foreign(start), expected, "{start:?}");
        }
        assert_eq!(compression(b"\x1f\x8b\x08"), Compression::Gzip);
        assert_eq!(compression(b"\x28\xb5\x2f\xfd"), Compression::Zstd);
        assert_eq!(compression(b"(text)"), Compression::None);
    }

    #[test]
    fn utf16_without_a_mark_has_zeros_in_one_of_two_bytes() {
        let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        assert_eq!(looks_like_utf16(&wide("A story, and \u{4e2d}.")), Some("utf-16le"));
        assert_eq!(looks_like_utf16(b"\0A\0 \0s"), Some("utf-16be"));
        assert_eq!(looks_like_utf16(b"A story"), None);
        assert_eq!(looks_like_utf16(&[0; 100]), None);
    }

    #[test]
    fn json_begins_with_an_object_or_a_list_of_them() {
        for (start, expected) in [
            ("\u{feff} {\"text\"", Some(Layout::Lines)),
            ("[\n  {\"text\"", Some(Layout::Array)),
            ("[1, 2]", None),
            ("[chapter one]", None),
            ("Once", None),
        ] {
            assert_eq!(json(start.as_bytes()), expected, "{start}");
        }
    }
}
