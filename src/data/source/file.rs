//! One input file: its format and compression, and its bytes, counted and decompressed.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{BadLines, PrepareOptions, Sink, jsonl, plain_text};
#[cfg(not(target_arch = "wasm32"))]
use super::{parquet, stdin};
use crate::data::DataError;
use crate::disk::File;

pub(super) const BLOCK: usize = 64 << 10;

/// Bytes at the start of a file that show if it is text.
pub(super) const START: u64 = 8 << 10;

/// A file, not yet opened.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub path: PathBuf,
    pub format: Format,
    pub compression: Compression,
    pub bytes: u64,
    /// The content, for stdin.
    #[cfg(not(target_arch = "wasm32"))]
    pub copy: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    JsonLines,
    /// JSON lines with conversations, see [`SourceFile::recognise`].
    Conversations,
    Parquet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
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

    /// Returns false if the file starts with bytes that are not UTF-8, or with a zero, as binary
    /// files do. A file that cannot be read may be text: reading it reports the error.
    pub fn may_be_text(&self) -> bool {
        if self.format != Format::Text {
            return true;
        }
        let mut start = Vec::new();
        let read = self.open().map(|input| input.reader.take(START).read_to_end(&mut start));
        if !matches!(read, Ok(Ok(_))) {
            return true;
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

    /// Reads every document into `sink`, and adds the lines that are left out to `bad`.
    pub fn read(
        &self,
        options: &PrepareOptions,
        bad: &mut BadLines,
        sink: &mut Sink<'_>,
    ) -> Result<ControlFlow<()>, DataError> {
        match self.format {
            Format::Text => plain_text::read(&mut self.open()?, sink),
            Format::JsonLines | Format::Conversations => {
                let has_conversations = self.format == Format::Conversations;
                jsonl::read(&mut self.open()?, options, has_conversations, bad, sink)
            }
            #[cfg(not(target_arch = "wasm32"))]
            Format::Parquet => parquet::read(&self.path, self.bytes, &options.text_field, sink),
            #[cfg(target_arch = "wasm32")]
            Format::Parquet => Err(self.not_in_browser()),
        }
    }

    fn open(&self) -> Result<Input<'_>, DataError> {
        let io = || DataError::io("read", &self.path);
        let count = Rc::new(Cell::new(0));
        #[cfg(not(target_arch = "wasm32"))]
        let file = match &self.copy {
            Some(copy) => stdin::rewound(copy),
            None => File::open(&self.path),
        };
        #[cfg(target_arch = "wasm32")]
        let file = File::open(&self.path);
        let file = Counted { file: file.map_err(io())?, count: Rc::clone(&count) };
        let reader: Box<dyn BufRead> = match self.compression {
            Compression::None => Box::new(BufReader::with_capacity(BLOCK, file)),
            // A file may have several members, as written by `cat a.gz b.gz`.
            Compression::Gzip => Box::new(BufReader::with_capacity(
                BLOCK,
                flate2::read::MultiGzDecoder::new(BufReader::with_capacity(BLOCK, file)),
            )),
            #[cfg(not(target_arch = "wasm32"))]
            Compression::Zstd => Box::new(BufReader::with_capacity(
                BLOCK,
                zstd::stream::read::Decoder::new(file).map_err(io())?,
            )),
            #[cfg(target_arch = "wasm32")]
            Compression::Zstd => return Err(self.not_in_browser()),
        };
        let compressed = self.compression != Compression::None;
        Ok(Input { reader, count, path: &self.path, compressed })
    }

    #[cfg(target_arch = "wasm32")]
    fn not_in_browser(&self) -> DataError {
        let problem = "a browser does not read this format";
        DataError::at(&self.path, problem, "choose a text or a .jsonl file")
    }
}

/// An open file, decompressed, which counts the bytes read.
pub(super) struct Input<'a> {
    pub reader: Box<dyn BufRead>,
    count: Rc<Cell<u64>>,
    pub path: &'a Path,
    compressed: bool,
}

impl Input<'_> {
    /// Returns the number of bytes read from the file on disk.
    pub fn bytes_read(&self) -> u64 {
        self.count.get()
    }

    /// Wraps a read error, for `map_err`. Errors of a compressed file that have no OS error code
    /// come from the decoder.
    pub fn read_error(&self) -> impl FnOnce(io::Error) -> DataError + use<> {
        let (path, compressed) = (self.path.to_owned(), self.compressed);
        move |source| {
            if !compressed || source.raw_os_error().is_some() {
                return DataError::io("read", &path)(source);
            }
            let problem = format!("cannot decompress {}: {source}", path.display());
            DataError::bad(problem, "the file is damaged or incomplete: download it again")
        }
    }
}

/// A file that counts the bytes read.
struct Counted {
    file: File,
    count: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.set(self.count.get().saturating_add(read as u64));
        Ok(read)
    }
}

/// Returns the format and compression of a file by its extensions.
pub(super) fn file_type(path: &Path) -> (Format, Compression) {
    let extension = |path: &Path| {
        let extension = path.extension().and_then(OsStr::to_str);
        extension.map(str::to_ascii_lowercase).unwrap_or_default()
    };
    let compression = match extension(path).as_str() {
        "gz" => Compression::Gzip,
        "zst" => Compression::Zstd,
        _ => Compression::None,
    };
    let inner = match (compression, path.file_stem()) {
        (Compression::None, _) | (_, None) => extension(path),
        (_, Some(stem)) => extension(Path::new(stem)),
    };
    let format = match (inner.as_str(), compression) {
        ("jsonl", _) => Format::JsonLines,
        // Parquet compresses its own pages, and its reader needs to seek.
        ("parquet", Compression::None) => Format::Parquet,
        _ => Format::Text,
    };
    (format, compression)
}
