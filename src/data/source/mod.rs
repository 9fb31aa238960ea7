//! Streams documents from files.
//!
//! Supported are `.txt`, `.jsonl` and `.parquet` files, the first two also compressed as `.gz` or
//! `.zst`. A folder means all supported files below it, sorted by name.

mod jsonl;
#[cfg(not(target_arch = "wasm32"))]
mod parquet;
mod text;

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::DataError;
use crate::disk::{self, File};

/// The supported extensions, for messages.
const ACCEPTED: &str = ".txt, .jsonl (also .gz or .zst of either) and .parquet";

/// Bytes per read.
const BLOCK: usize = 64 << 10;

/// A part of the stream of documents.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text of the current document; never empty.
    Text(&'a str),
    /// The end of the current document, which is not empty.
    EndOfDocument,
}

/// Receives the parts, each with the number of input bytes read so far. A break stops reading.
pub(super) type Sink<'a> = dyn FnMut(Part<'_>, u64) -> Result<ControlFlow<()>, DataError> + 'a;

/// The input files, not yet opened.
#[derive(Debug)]
pub(super) struct Sources {
    files: Vec<SourceFile>,
    field: String,
    /// Number of files in folders that were skipped because of their type.
    pub(super) skipped: usize,
}

#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    format: Format,
    compression: Compression,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    JsonLines,
    Parquet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Sources {
    /// Finds the files of `inputs`. `field` is the text field of `.jsonl` and column of `.parquet`
    /// files.
    pub(super) fn find(inputs: &[PathBuf], field: &str) -> Result<Self, DataError> {
        let mut sources = Self { files: Vec::new(), field: field.to_owned(), skipped: 0 };
        for input in inputs {
            let metadata = disk::metadata(input).map_err(DataError::io("read", input))?;
            if metadata.is_dir() {
                sources.add_folder(input)?;
            } else if !sources.add_file(input, metadata.len()) {
                return Err(DataError::UnknownExtension {
                    path: input.clone(),
                    accepted: ACCEPTED,
                });
            }
        }
        if sources.files.is_empty() {
            let inputs: Vec<_> = inputs.iter().map(|i| i.display().to_string()).collect();
            return Err(DataError::NoInputs { inputs: inputs.join(", "), accepted: ACCEPTED });
        }
        Ok(sources)
    }

    /// Adds the files below a folder. Counts and skips files of other types, like licenses and
    /// readmes. Skips hidden entries, and links to folders because they may form a cycle.
    fn add_folder(&mut self, folder: &Path) -> Result<(), DataError> {
        let io = || DataError::io("read", folder);
        let mut entries = disk::read_dir(folder)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(io())?;
        entries.sort_by_key(disk::DirEntry::file_name);
        for entry in entries {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            if entry.file_type().map_err(io())?.is_dir() {
                self.add_folder(&path)?;
                continue;
            }
            let metadata = disk::metadata(&path).map_err(DataError::io("read", &path))?;
            if metadata.is_dir() || !self.add_file(&path, metadata.len()) {
                self.skipped += 1;
            }
        }
        Ok(())
    }

    /// Adds a file; returns false if its extension is not supported.
    fn add_file(&mut self, path: &Path, bytes: u64) -> bool {
        let Some((format, compression)) = file_type(path) else {
            return false;
        };
        self.files.push(SourceFile { path: path.to_owned(), format, compression, bytes });
        true
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the total size of the files on disk, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| file.bytes.saturating_add(sum))
    }

    /// Returns the names of the files, without their folders.
    pub(super) fn names(&self) -> Vec<String> {
        self.files
            .iter()
            .filter_map(|file| file.path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    /// Reads every document of every file into `sink`, in order.
    pub(super) fn read(&self, sink: &mut Sink<'_>) -> Result<(), DataError> {
        let mut done = 0_u64;
        for file in &self.files {
            let flow =
                file.read(&self.field, &mut |part, bytes| sink(part, done.saturating_add(bytes)))?;
            if flow.is_break() {
                break;
            }
            done = done.saturating_add(file.bytes);
        }
        Ok(())
    }
}

impl SourceFile {
    fn read(&self, field: &str, sink: &mut Sink<'_>) -> Result<ControlFlow<()>, DataError> {
        match self.format {
            Format::Text => text::read(&mut self.open()?, sink),
            Format::JsonLines => jsonl::read(&mut self.open()?, field, sink),
            #[cfg(not(target_arch = "wasm32"))]
            Format::Parquet => parquet::read(&self.path, self.bytes, field, sink),
            #[cfg(target_arch = "wasm32")]
            Format::Parquet => Err(self.unsupported()),
        }
    }

    /// Returns the error for a format whose library is not available in a browser.
    #[cfg(target_arch = "wasm32")]
    fn unsupported(&self) -> DataError {
        DataError::UnknownExtension { path: self.path.clone(), accepted: ".txt and .jsonl" }
    }

    fn open(&self) -> Result<Input<'_>, DataError> {
        let io = || DataError::io("read", &self.path);
        let count = Rc::new(Cell::new(0));
        let file =
            Counted { file: File::open(&self.path).map_err(io())?, count: Rc::clone(&count) };
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
            Compression::Zstd => return Err(self.unsupported()),
        };
        let compressed = self.compression != Compression::None;
        Ok(Input { reader, count, path: &self.path, compressed })
    }
}

/// An open file, decompressed, which counts the bytes read.
struct Input<'a> {
    reader: Box<dyn BufRead>,
    count: Rc<Cell<u64>>,
    path: &'a Path,
    compressed: bool,
}

impl Input<'_> {
    /// Returns the number of bytes read from the file on disk.
    fn bytes_read(&self) -> u64 {
        self.count.get()
    }

    /// Wraps a read error, for `map_err`. Errors of a compressed file that have no OS error code
    /// come from the decoder.
    fn read_error(&self) -> impl FnOnce(io::Error) -> DataError {
        let (path, compressed) = (self.path.to_owned(), self.compressed);
        move |source| {
            if compressed && source.raw_os_error().is_none() {
                DataError::Decompress { path, source: Arc::new(source) }
            } else {
                DataError::io("read", &path)(source)
            }
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
fn file_type(path: &Path) -> Option<(Format, Compression)> {
    let extension =
        |path: &Path| path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    let mut last = extension(path)?;
    let compression = match last.as_str() {
        "gz" => Compression::Gzip,
        "zst" => Compression::Zstd,
        _ => Compression::None,
    };
    if compression != Compression::None {
        last = extension(Path::new(path.file_stem()?))?;
    }
    match (last.as_str(), compression) {
        ("txt", _) => Some((Format::Text, compression)),
        ("jsonl", _) => Some((Format::JsonLines, compression)),
        // Parquet compresses its own pages, and its reader needs to seek.
        ("parquet", Compression::None) => Some((Format::Parquet, compression)),
        _ => None,
    }
}

/// Reads the documents of `inputs`, for tests here and in the readers.
#[cfg(test)]
pub(super) fn documents(inputs: &[PathBuf], field: &str) -> Result<Vec<String>, DataError> {
    let mut documents = vec![];
    let mut current = String::new();
    Sources::find(inputs, field)?.read(&mut |part, _| {
        match part {
            Part::Text(text) => {
                assert!(!text.is_empty(), "an empty part");
                current.push_str(text);
            }
            Part::EndOfDocument => documents.push(std::mem::take(&mut current)),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    assert!(current.is_empty(), "a document without an end");
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use std::io::Write;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn extensions_determine_the_file_type() {
        for (name, expected) in [
            ("a.txt", Some((Format::Text, Compression::None))),
            ("A.TXT", Some((Format::Text, Compression::None))),
            ("a.b.txt.gz", Some((Format::Text, Compression::Gzip))),
            ("a.jsonl.zst", Some((Format::JsonLines, Compression::Zstd))),
            ("a.parquet", Some((Format::Parquet, Compression::None))),
            ("a.parquet.gz", None),
            ("a.gz", None),
            ("a.json", None),
            ("txt", None),
        ] {
            assert_eq!(file_type(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn a_folder_is_read_recursively_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("b")).unwrap();
        fs::create_dir_all(at(".git")).unwrap();
        fs::write(at("c.txt.zst"), zstd::encode_all(&b"last"[..], 1).unwrap()).unwrap();
        fs::write(at("a.txt"), "first").unwrap();
        let two_members = [gzip("{\"text\":\"sec"), gzip("ond\"}\n")].concat();
        fs::write(at("b/x.jsonl.gz"), two_members).unwrap();
        fs::write(at("b/y.txt"), "third").unwrap();
        fs::write(at("b/README.md"), "not read").unwrap();
        fs::write(at(".git/z.txt"), "not read").unwrap();
        let inputs = [folder.path().to_owned()];
        let sources = Sources::find(&inputs, "text").unwrap();
        assert_eq!(sources.skipped, 1);
        assert_eq!(sources.names(), ["a.txt", "x.jsonl.gz", "y.txt", "c.txt.zst"]);
        let found = documents(&inputs, "text").unwrap();
        assert_eq!(found, ["first", "second", "third", "last"]);
    }

    #[test]
    fn progress_counts_compressed_bytes_up_to_the_total() {
        let folder = tempfile::tempdir().unwrap();
        let text = "some words. ".repeat(50_000);
        fs::write(folder.path().join("a.txt.gz"), gzip(&text)).unwrap();
        fs::write(folder.path().join("b.txt"), &text).unwrap();
        let sources = Sources::find(&[folder.path().to_owned()], "text").unwrap();
        let mut seen = vec![];
        sources
            .read(&mut |_, bytes| {
                seen.push(bytes);
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
        assert!(seen.is_sorted());
        assert_eq!(seen.last(), Some(&sources.bytes()));
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pdf");
        fs::write(&file, "x").unwrap();
        let message = |inputs: &[PathBuf]| documents(inputs, "text").unwrap_err().to_string();
        let unknown = message(std::slice::from_ref(&file));
        assert!(unknown.contains("a.pdf") && unknown.contains(".jsonl"), "{unknown}");
        let empty = message(&[folder.path().to_owned()]);
        assert!(empty.contains("no supported files"), "{empty}");
        let missing = message(&[folder.path().join("none.txt")]);
        assert!(missing.contains("none.txt"), "{missing}");

        let mut bytes = gzip(&"words ".repeat(1000));
        bytes.truncate(bytes.len() / 2);
        let file = folder.path().join("half.txt.gz");
        fs::write(&file, bytes).unwrap();
        let half = message(&[file]);
        assert!(half.contains("cannot decompress") && half.contains("half.txt.gz"), "{half}");
    }
}
