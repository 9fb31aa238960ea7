//! Streams documents from files.
//!
//! `.jsonl` and `.parquet` files have a document per line or row; any other file is UTF-8 text.
//! All but `.parquet` may be compressed as `.gz` or `.zst`. A folder means all files below it that
//! are text, sorted by name.

mod jsonl;
#[cfg(not(target_arch = "wasm32"))]
mod parquet;
#[cfg(not(target_arch = "wasm32"))]
mod stdin;
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

/// Bytes per read.
const BLOCK: usize = 64 << 10;

/// Bytes at the start of a file that show if it is text.
const START: u64 = 8 << 10;

/// The input that means stdin.
#[cfg(not(target_arch = "wasm32"))]
const STDIN: &str = "-";

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
    /// The entries of folders that are not UTF-8 text.
    pub(super) skipped: Vec<PathBuf>,
}

#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    format: Format,
    compression: Compression,
    bytes: u64,
    /// The content, for stdin.
    #[cfg(not(target_arch = "wasm32"))]
    copy: Option<File>,
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
    /// Finds the files of `inputs`, except for those in `out`, the folder that will be written.
    /// `field` is the text field of `.jsonl` and column of `.parquet` files. Stdin is copied first,
    /// and `copied` is called with the bytes so far.
    pub(super) fn find(
        inputs: &[PathBuf],
        field: &str,
        out: &Path,
        #[cfg_attr(target_arch = "wasm32", expect(unused_variables, reason = "it has no stdin"))]
        copied: &mut dyn FnMut(u64),
    ) -> Result<Self, DataError> {
        let mut sources = Self { files: Vec::new(), field: field.to_owned(), skipped: Vec::new() };
        let out = disk::absolute(out);
        for input in inputs {
            #[cfg(not(target_arch = "wasm32"))]
            if input.as_os_str() == STDIN {
                let (copy, bytes) = stdin::copy(&out, copied)?;
                let file = SourceFile::new(Path::new("stdin"), bytes);
                sources.files.push(SourceFile { copy: Some(copy), ..file });
                continue;
            }
            let metadata = disk::metadata(input).map_err(DataError::io("read", input))?;
            if metadata.is_dir() {
                sources.add_folder(input, &out)?;
            } else {
                sources.files.push(SourceFile::new(input, metadata.len()));
            }
        }
        if sources.files.is_empty() {
            let inputs: Vec<_> = inputs.iter().map(|i| i.display().to_string()).collect();
            return Err(DataError::NoInputs {
                inputs: inputs.join(", "),
                skipped: sources.skipped.len(),
            });
        }
        Ok(sources)
    }

    /// Adds the text files below a folder. Skips hidden entries, and links to folders because they
    /// may form a cycle.
    fn add_folder(&mut self, folder: &Path, out: &Path) -> Result<(), DataError> {
        let io = || DataError::io("read", folder);
        if disk::absolute(folder) == out {
            return Ok(());
        }
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
                self.add_folder(&path, out)?;
                continue;
            }
            // A link that leads nowhere has no metadata.
            let metadata = disk::metadata(&path).ok().filter(|metadata| metadata.is_file());
            let file = metadata.map(|metadata| SourceFile::new(&path, metadata.len()));
            match file.filter(SourceFile::may_be_text) {
                Some(file) => self.files.push(file),
                None => self.skipped.push(path),
            }
        }
        Ok(())
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
    fn new(path: &Path, bytes: u64) -> Self {
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
    fn may_be_text(&self) -> bool {
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

    fn read(&self, field: &str, sink: &mut Sink<'_>) -> Result<ControlFlow<()>, DataError> {
        match self.format {
            Format::Text => text::read(&mut self.open()?, sink),
            Format::JsonLines => jsonl::read(&mut self.open()?, field, sink),
            #[cfg(not(target_arch = "wasm32"))]
            Format::Parquet => parquet::read(&self.path, self.bytes, field, sink),
            #[cfg(target_arch = "wasm32")]
            Format::Parquet => Err(DataError::NotInBrowser { path: self.path.clone() }),
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
            Compression::Zstd => {
                return Err(DataError::NotInBrowser { path: self.path.clone() });
            }
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
fn file_type(path: &Path) -> (Format, Compression) {
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

/// Reads the documents of `inputs`, for tests here and in the readers.
#[cfg(test)]
pub(super) fn documents(inputs: &[PathBuf], field: &str) -> Result<Vec<String>, DataError> {
    let mut documents = vec![];
    let mut current = String::new();
    Sources::find(inputs, field, Path::new("out"), &mut |_| {})?.read(&mut |part, _| {
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

    fn all_text(folder: &Path) -> Sources {
        Sources::find(&[folder.to_owned()], "text", Path::new("out"), &mut |_| {}).unwrap()
    }

    #[test]
    fn extensions_determine_the_file_type() {
        for (name, expected) in [
            ("a.txt", (Format::Text, Compression::None)),
            ("a.rs", (Format::Text, Compression::None)),
            ("LICENSE", (Format::Text, Compression::None)),
            ("a.b.TXT.GZ", (Format::Text, Compression::Gzip)),
            ("a.gz", (Format::Text, Compression::Gzip)),
            ("a.jsonl", (Format::JsonLines, Compression::None)),
            ("a.jsonl.zst", (Format::JsonLines, Compression::Zstd)),
            ("a.parquet", (Format::Parquet, Compression::None)),
            ("a.parquet.gz", (Format::Text, Compression::Gzip)),
            ("parquet", (Format::Text, Compression::None)),
        ] {
            assert_eq!(file_type(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn a_folder_is_read_recursively_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for folder in ["b", ".git", "out"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("c.txt.zst"), zstd::encode_all(&b"last"[..], 1).unwrap()).unwrap();
        fs::write(at("a.txt"), "first").unwrap();
        let two_members = [gzip("{\"text\":\"sec"), gzip("ond\"}\n")].concat();
        fs::write(at("b/x.jsonl.gz"), two_members).unwrap();
        fs::write(at("b/y.md"), "third").unwrap();
        fs::write(at(".git/z.txt"), "not read").unwrap();
        fs::write(at("out/meta.json"), "the output is not read").unwrap();
        let inputs = [folder.path().to_owned()];
        let sources = Sources::find(&inputs, "text", &at("out"), &mut |_| {}).unwrap();
        assert_eq!(sources.names(), ["a.txt", "x.jsonl.gz", "y.md", "c.txt.zst"]);
        fs::remove_dir_all(at("out")).unwrap();
        let found = documents(&inputs, "text").unwrap();
        assert_eq!(found, ["first", "second", "third", "last"]);
    }

    #[test]
    fn a_folder_skips_what_is_not_text() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // A character of three bytes across the end of the start.
        let long = format!("{}\u{4e2d}.", "x".repeat(START as usize - 1));
        for (name, content) in [
            ("a.py", b"print('text')".as_slice()),
            ("b.png", b"\x89PNG\r\n"),
            ("c.bin", b"a\0b"),
            ("d.tgz.gz", &gzip("zero\0")),
            ("e.log", long.as_bytes()),
            ("f.txt", b"half a character \xe4\xb8"),
            ("g.txt", b""),
        ] {
            fs::write(at(name), content).unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path(), at("b.folder")).unwrap();
        let sources = all_text(folder.path());
        assert_eq!(sources.names(), ["a.py", "e.log", "g.txt"]);
        let mut skipped = sources.skipped;
        skipped.retain(|path| !path.ends_with("b.folder"));
        assert_eq!(skipped, ["b.png", "c.bin", "d.tgz.gz", "f.txt"].map(at));
    }

    #[test]
    fn progress_counts_compressed_bytes_up_to_the_total() {
        let folder = tempfile::tempdir().unwrap();
        let text = "some words. ".repeat(50_000);
        fs::write(folder.path().join("a.txt.gz"), gzip(&text)).unwrap();
        fs::write(folder.path().join("b.txt"), &text).unwrap();
        let sources = all_text(folder.path());
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
        fs::write(&file, b"%PDF\xff\0").unwrap();
        let message = |inputs: &[PathBuf]| documents(inputs, "text").unwrap_err().to_string();
        let binary = message(std::slice::from_ref(&file));
        assert!(binary.contains("a.pdf: not UTF-8 at byte 4"), "{binary}");
        let empty = message(&[folder.path().to_owned()]);
        assert!(empty.contains("no text files") && empty.contains("1 skipped"), "{empty}");
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
