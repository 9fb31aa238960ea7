//! One input file: its format and compression, and its bytes, counted and decompressed.

use std::cell::Cell;
#[cfg(not(target_arch = "wasm32"))]
use std::io::Seek;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::encoding::TextEncoding;
#[cfg(not(target_arch = "wasm32"))]
use super::parquet;
use super::{BadLines, Sink, Stop, jsonl, plain_text};
use crate::data::{ChatTemplate, DataError};
use crate::disk::File;

pub(super) const BLOCK: usize = 64 << 10;

/// Bytes at the start of a file that show if it is text.
pub(super) const START: u64 = 8 << 10;

#[derive(Debug)]
pub struct SourceFile {
    pub path: PathBuf,
    pub format: Format,
    pub compression: Compression,
    pub bytes: u64,
    #[cfg(not(target_arch = "wasm32"))]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl SourceFile {
    pub fn new(path: &Path, bytes: u64) -> Self {
        let (format, compression) = file_type(path);
        Self {
            path: path.to_owned(),
            format,
            compression,
            bytes,
            #[cfg(not(target_arch = "wasm32"))]
            copy: None,
        }
    }

    pub fn is_compressed(&self) -> bool {
        self.compression != Compression::None || self.format == Format::Parquet
    }

    /// Returns false if the file starts with bytes that are no text in `encoding`, or with a zero, as binary
    /// files do. A file that cannot be read may be text: reading it reports the error.
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
            #[cfg(not(target_arch = "wasm32"))]
            Format::Parquet => parquet::read(&self.path, self.bytes, field, sink),
            #[cfg(target_arch = "wasm32")]
            Format::Parquet => Err(self.not_in_browser().into()),
        }
    }

    pub fn open(&self) -> Result<Input<'_>, DataError> {
        let io = || DataError::io("read", &self.path);
        let count = Rc::new(Cell::new(0));
        #[cfg(not(target_arch = "wasm32"))]
        let file = match &self.copy {
            Some(copy) => copy.try_clone().and_then(|mut file| file.rewind().map(|()| file)),
            None => File::open(&self.path),
        };
        #[cfg(target_arch = "wasm32")]
        let file = File::open(&self.path);
        let file = Counted { file: file.map_err(io())?, count: Rc::clone(&count) };
        let reader: Box<dyn Read> = match self.compression {
            Compression::None => Box::new(file),
            // A file may have several members, as written by `cat a.gz b.gz`.
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(file)),
            #[cfg(not(target_arch = "wasm32"))]
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(file).map_err(io())?),
            #[cfg(target_arch = "wasm32")]
            Compression::Zstd => return Err(self.not_in_browser()),
        };
        let reader = BufReader::with_capacity(BLOCK, reader);
        Ok(Input { reader, count, path: &self.path, compression: self.compression })
    }

    #[cfg(target_arch = "wasm32")]
    fn not_in_browser(&self) -> DataError {
        let problem = "a browser does not read this format";
        DataError::at(&self.path, problem, "choose a text or a .jsonl file")
    }
}

/// An open file, decompressed, which counts the bytes read.
pub struct Input<'a> {
    pub reader: BufReader<Box<dyn Read>>,
    count: Rc<Cell<u64>>,
    pub path: &'a Path,
    compression: Compression,
}

impl Input<'_> {
    pub fn bytes_read(&self) -> u64 {
        self.count.get()
    }

    /// Wraps a read error. Errors of a compressed file that have no OS error code come from the decoder.
    pub fn failed(&self, error: io::Error) -> DataError {
        if self.compression == Compression::None || error.raw_os_error().is_some() {
            return DataError::io("read", self.path)(error);
        }
        let problem = format!("cannot decompress {}: {error}", self.path.display());
        DataError::bad(problem, "the file is damaged or incomplete: download it again")
    }
}

struct Counted {
    file: File,
    count: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

pub(super) fn file_type(path: &Path) -> (Format, Compression) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    // A dot at the start is that of a hidden file.
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
