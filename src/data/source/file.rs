//! One input file: its format, its compression and its documents.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::input::{Compression, Input};
use super::jsonl::{Dialect, Shape};
use super::platform::{self, TextEncoding};
use super::sniff::{self, Layout, START};
use super::table::TableForm;
use super::{BadLines, Sink, Stop, jsonl, plain_text};
use crate::data::{ChatTemplate, DataError};
use crate::disk::{self, File};

#[derive(Debug)]
pub struct SourceFile {
    pub path: PathBuf,
    pub format: Format,
    pub compression: Compression,
    /// Of plain text, and of tables.
    pub encoding: TextEncoding,
    pub bytes: u64,
    /// The copy of stdin, which has no name.
    pub copy: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Documents(Layout),
    Conversations(Layout, Dialect),
    Parquet,
}

/// Why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotText {
    /// It is something else: "it is {..}".
    Foreign(&'static str),
    /// The pointer of Git LFS to a file that is elsewhere.
    Pointer,
    /// UTF-16 without a mark, with its label.
    Unmarked(&'static str),
    /// Zero bytes in what is not UTF-8, either.
    Zeros,
    /// Bytes that are no text in the encoding, or zero bytes in what is.
    Binary,
}

/// The endings of files with JSON lines.
const LINES: [&str; 2] = ["jsonl", "ndjson"];

/// The endings of tables, with what is between two fields.
const TABLES: [(&str, u8); 2] = [("csv", b','), ("tsv", b'\t')];

impl SourceFile {
    /// Creates the source of a file of plain text. [`recognise`](Self::recognise) finds out what else it is.
    pub fn new(path: &Path, bytes: u64) -> Self {
        Self {
            path: path.to_owned(),
            format: Format::Text,
            compression: Compression::None,
            encoding: TextEncoding::default(),
            bytes,
            copy: None,
        }
    }

    pub fn is_compressed(&self) -> bool {
        self.compression != Compression::None || self.format == Format::Parquet
    }

    /// Returns true if the name says that the file has JSON lines.
    pub fn has_lines(&self) -> bool {
        LINES.contains(&&*self.ending())
    }

    /// Returns what is between the fields of a table, if the name says that the file is one.
    pub fn named_separator(&self) -> Option<u8> {
        let ending = self.ending();
        TABLES.iter().find(|(name, _)| *name == ending).map(|(_, separator)| *separator)
    }

    /// Returns true if the file may be in any encoding.
    pub fn has_encoding(&self) -> bool {
        matches!(
            self.format,
            Format::Text
                | Format::Documents(Layout::Table(_))
                | Format::Conversations(Layout::Table(_), _)
        )
    }

    pub fn has_conversations(&self) -> bool {
        matches!(self.format, Format::Conversations(..))
    }

    /// Finds out what the file is, from its content. Plain text and tables are in `encoding`, unless a mark says
    /// otherwise. Rows of a table are documents if it has the column `field`, or conversations. JSON objects are
    /// documents if they have the field `field`, or conversations; other objects are only taken for documents if
    /// somebody has named the file, to say what they lack. A file that cannot be read is text: reading it reports
    /// the error.
    pub fn recognise(
        &mut self,
        encoding: TextEncoding,
        field: &str,
        is_named: bool,
    ) -> Result<Option<NotText>, DataError> {
        self.encoding = encoding;
        let Some(raw) = self.raw_start() else { return Ok(None) };
        if disk::is_lfs_pointer(&raw) {
            return Ok(Some(NotText::Pointer));
        }
        // One that is damaged is not text, either.
        if sniff::is_parquet(&raw) || self.ending() == "parquet" {
            self.format = Format::Parquet;
            return Ok(None);
        }
        self.compression = sniff::compression(&raw);
        let mut start = Vec::new();
        let mut is_marked = false;
        let read = self.open().map(|input| {
            is_marked = input.mark > 0;
            input.reader.take(START as u64).read_to_end(&mut start)
        });
        if !matches!(read, Ok(Ok(_))) {
            return Ok(None);
        }
        if let Some(name) = sniff::foreign(&start) {
            return Ok(Some(NotText::Foreign(name)));
        }
        if let Some(marked) = sniff::marked(&start) {
            self.encoding = marked;
            return Ok(self.no_text(&start));
        }
        let ending = self.ending();
        let is_lines = self.has_lines();
        let layout = sniff::json(&start).filter(|_| encoding.is_utf8());
        // The first of the lines may be a bad one.
        if let Some(layout) = layout.or(is_lines.then_some(Layout::Lines)) {
            let is_json = is_lines || is_named && (ending == "json" || self.copy.is_some());
            let shape = jsonl::shape(&mut self.open()?, layout, field, is_lines);
            self.format = match shape {
                Ok(Some(Shape::Conversations(dialect))) => Format::Conversations(layout, dialect),
                Ok(Some(Shape::Texts)) => Format::Documents(layout),
                // An object over several lines is one text, like the settings of a program.
                Ok(Some(Shape::Other)) if is_json => Format::Documents(layout),
                _ if is_lines => Format::Documents(layout),
                _ => Format::Text,
            };
        }
        let encoding = if is_marked { TextEncoding::default() } else { encoding };
        if self.format == Format::Text && encoding.is_ascii_compatible() {
            let named = self.named_separator();
            let found = TableForm::find(&start, encoding, named, |columns| {
                jsonl::shape_of_columns(columns, field)
            });
            self.format = match found {
                Some((form, None)) => Format::Documents(Layout::Table(form)),
                Some((form, Some(dialect))) => Format::Conversations(Layout::Table(form), dialect),
                None => Format::Text,
            };
        }
        Ok(if self.format == Format::Text { self.no_text(&start) } else { None })
    }

    /// Returns why the beginning of a file is no text in its encoding, if it is none.
    fn no_text(&self, start: &[u8]) -> Option<NotText> {
        if let Some(mut decoder) = self.encoding.decoder() {
            let mut text = String::new();
            let is_text = decoder.decode(start, false, &mut text).is_ok() && !text.contains('\0');
            return (!is_text).then_some(NotText::Binary);
        }
        let is_utf8 = match str::from_utf8(start) {
            Ok(_) => true,
            // The last character may continue after the start.
            Err(error) => error.error_len().is_none() && start.len() == START,
        };
        let has_zeros = start.contains(&0);
        match sniff::looks_like_utf16(start) {
            _ if is_utf8 && !has_zeros => None,
            Some(label) => Some(NotText::Unmarked(label)),
            None if has_zeros && !is_utf8 => Some(NotText::Zeros),
            None => Some(NotText::Binary),
        }
    }

    /// Returns the first bytes on the disk, if they can be read.
    fn raw_start(&self) -> Option<Vec<u8>> {
        let mut start = Vec::new();
        self.file().ok()?.take(64).read_to_end(&mut start).ok()?;
        Some(start)
    }

    /// Returns the extension in small letters, ignoring `.gz` and `.zst`.
    pub fn ending(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let stem = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending));
        let stem = stem.unwrap_or(&name);
        // A leading dot marks a hidden file.
        let ending = stem.rsplit_once('.').filter(|(stem, _)| !stem.is_empty());
        ending.map_or(String::new(), |(_, ending)| ending.to_owned())
    }

    /// Reads every document into `sink`, from the field or column `field` if it has some, or every
    /// conversation that `template` accepts.
    pub fn read(
        &self,
        field: &str,
        template: Option<&ChatTemplate>,
        bad: &mut BadLines,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
        match self.format {
            Format::Text => plain_text::read(&mut self.open()?, self.encoding, sink),
            Format::Documents(layout) => {
                jsonl::read(&mut self.open()?, layout, Some(field), None, bad, sink)
            }
            Format::Conversations(layout, _) => {
                jsonl::read(&mut self.open()?, layout, None, template, bad, sink)
            }
            Format::Parquet => platform::read_parquet(&self.path, self.bytes, field, bad, sink),
        }
    }

    pub fn open(&self) -> Result<Input<'_>, DataError> {
        let compression =
            self.raw_start().map_or(Compression::None, |raw| sniff::compression(&raw));
        let file = self.file().map_err(DataError::io("read", &self.path))?;
        Input::new(file, &self.path, compression)
    }

    fn file(&self) -> std::io::Result<File> {
        match &self.copy {
            Some(copy) => platform::reopen(copy),
            None => File::open(&self.path),
        }
    }
}
