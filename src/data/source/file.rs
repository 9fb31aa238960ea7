//! One input file: its format, its compression and its documents.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::input::{Compression, Input};
use super::platform::{self, TextEncoding};
use super::{BadLines, Sink, Stop, jsonl, plain_text};
use crate::data::{ChatTemplate, DataError};
use crate::disk::File;

/// Bytes at the start of a file that show if it is text.
pub(super) const START: u64 = 8 << 10;

#[derive(Debug)]
pub struct SourceFile {
    pub path: PathBuf,
    pub format: Format,
    pub compression: Compression,
    pub bytes: u64,
    /// The copy of stdin, which has no name.
    pub copy: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    JsonLines,
    /// JSON lines with conversations, see [`SourceFile::recognise`].
    Conversations,
    Parquet,
}

impl SourceFile {
    pub fn new(path: &Path, bytes: u64) -> Self {
        let (format, compression) = file_type(path);
        Self { path: path.to_owned(), format, compression, bytes, copy: None }
    }

    pub fn is_compressed(&self) -> bool {
        self.compression != Compression::None || self.format == Format::Parquet
    }

    /// Returns false if the beginning of the file is not text in `encoding`, or has a zero, as binary files do. A
    /// file that cannot be read may be text: reading it reports the error.
    pub fn may_be_text(&self, encoding: TextEncoding) -> bool {
        if self.format != Format::Text {
            return true;
        }
        let mut start = Vec::new();
        let read = self.open().map(|input| input.reader.take(START).read_to_end(&mut start));
        if !matches!(read, Ok(Ok(_))) {
            return true;
        }
        if let Some(mut decoder) = encoding.decoder() {
            let mut text = String::new();
            return decoder.decode(&start, false, &mut text).is_ok() && !text.contains('\0');
        }
        let is_utf8 = match str::from_utf8(&start) {
            Ok(_) => true,
            // The last character may continue after the start.
            Err(error) => error.error_len().is_none() && start.len() as u64 == START,
        };
        is_utf8 && !start.contains(&0)
    }

    /// Finds out whether JSON lines are conversations or documents in the field `field`.
    pub fn recognise(&mut self, field: &str) -> Result<(), DataError> {
        if self.format == Format::JsonLines && jsonl::has_conversations(&mut self.open()?, field)? {
            self.format = Format::Conversations;
        }
        Ok(())
    }

    /// Reads every document into `sink`, from the field or column `field` if it has some, or every
    /// conversation that `template` accepts. Plain text is in `encoding`.
    pub fn read(
        &self,
        field: &str,
        encoding: TextEncoding,
        template: Option<&ChatTemplate>,
        bad: &mut BadLines,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
        match self.format {
            Format::Text => plain_text::read(&mut self.open()?, encoding, sink),
            Format::JsonLines => jsonl::read(&mut self.open()?, Some(field), None, bad, sink),
            Format::Conversations => jsonl::read(&mut self.open()?, None, template, bad, sink),
            Format::Parquet => platform::read_parquet(&self.path, self.bytes, field, sink),
        }
    }

    pub fn open(&self) -> Result<Input<'_>, DataError> {
        let file = match &self.copy {
            Some(copy) => platform::reopen(copy),
            None => File::open(&self.path),
        };
        let file = file.map_err(DataError::io("read", &self.path))?;
        Input::new(file, &self.path, self.compression)
    }
}

pub(super) fn file_type(path: &Path) -> (Format, Compression) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    // A dot at the start marks a hidden file.
    let extension = |name| str::rsplit_once(name, '.').filter(|(stem, _)| !stem.is_empty());
    let (stem, compression) = match extension(&name) {
        Some((stem, "gz")) => (stem, Compression::Gzip),
        Some((stem, "zst")) => (stem, Compression::Zstd),
        _ => (&*name, Compression::None),
    };
    let format = match extension(stem) {
        Some((_, "jsonl")) => Format::JsonLines,
        // Parquet compresses its own pages, and its reader needs to seek.
        Some((_, "parquet")) if compression == Compression::None => Format::Parquet,
        _ => Format::Text,
    };
    (format, compression)
}
