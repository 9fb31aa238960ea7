//! Streams documents from files.
//!
//! `.jsonl` and `.parquet` files have a document per line or row; any other file is UTF-8 text. The
//! lines of `.jsonl` files may be conversations instead, but then all files must have them.
//! All but `.parquet` may be compressed as `.gz` or `.zst`. A folder means all files below it that
//! are text, sorted by name.

mod file;
mod jsonl;
#[cfg(not(target_arch = "wasm32"))]
mod parquet;
mod plain_text;

use std::io;
use std::path::{Path, PathBuf};

use super::pieces::PIECE;
use super::{ChatTemplate, DataError, Message, PrepareOptions};
use crate::disk::{self, File};
use file::Format;
pub(super) use file::SourceFile;
pub(super) use jsonl::read_line;

/// The input that means stdin.
#[cfg(not(target_arch = "wasm32"))]
const STDIN: &str = "-";

/// A part of the stream of documents.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DocumentPart<'a> {
    /// Text of the current document; never empty.
    Text(&'a str),
    /// A whole document that is a conversation; no end follows.
    Conversation(&'a [Message]),
    /// The end of the current document, which is not empty.
    EndOfDocument,
}

/// Ends the reading of sources: an error, or `None` if their sink needs no more.
pub(super) type Stop = Option<DataError>;

/// Receives the parts, each with the number of input bytes read so far.
pub(super) type Sink<'a> = dyn FnMut(DocumentPart<'_>, u64) -> Result<(), Stop> + 'a;

/// The lines that were left out.
#[derive(Debug, Default)]
pub(super) struct BadLines {
    are_skipped: bool,
    pub count: u64,
    pub first: Option<DataError>,
}

impl BadLines {
    /// Leaves out a line, or returns its error if bad lines are not skipped.
    fn skip(&mut self, error: DataError) -> Result<(), DataError> {
        if !self.are_skipped {
            return Err(error);
        }
        self.count += 1;
        self.first.get_or_insert(error);
        Ok(())
    }
}

/// The input files, not yet opened.
#[derive(Debug)]
pub(super) struct Sources {
    files: Vec<SourceFile>,
    options: PrepareOptions,
    /// True if they have conversations, false if they have documents.
    pub(super) has_conversations: bool,
    /// Conversations that it refuses are bad lines.
    pub(super) template: Option<ChatTemplate>,
    /// The entries of folders that are not UTF-8 text.
    pub(super) skipped: Vec<PathBuf>,
}

impl Sources {
    /// Finds the files of `inputs`, except for those in `out`, the folder that will be written.
    /// Stdin is copied first, and `copied` is called with the bytes so far.
    pub(super) fn find(
        inputs: &[PathBuf],
        options: &PrepareOptions,
        out: &Path,
        #[cfg_attr(target_arch = "wasm32", expect(unused_variables, reason = "it has no stdin"))]
        copied: &mut dyn FnMut(u64),
    ) -> Result<Self, DataError> {
        let mut sources = Self {
            files: Vec::new(),
            options: options.clone(),
            has_conversations: false,
            template: None,
            skipped: Vec::new(),
        };
        let out = disk::absolute(out);
        for input in inputs {
            #[cfg(not(target_arch = "wasm32"))]
            if input.as_os_str() == STDIN {
                let (copy, bytes) = copy_stdin(&out, copied)?;
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
            let skipped = match sources.skipped.len() {
                0 => String::new(),
                skipped => format!(" ({skipped} skipped, not UTF-8 text)"),
            };
            return Err(DataError::bad(
                format!("no text files in {}{skipped}", inputs.join(", ")),
                "give at least one file or folder with UTF-8 text",
            ));
        }
        for file in &mut sources.files {
            file.recognise(&options.text_field)?;
        }
        let is_chat = |file: &&SourceFile| file.format == Format::Conversations;
        let chat = sources.files.iter().find(is_chat);
        if let (Some(chat), Some(text)) = (chat, sources.files.iter().find(|file| !is_chat(file))) {
            let problem = format!(
                "{} has conversations and {} has text, which cannot be in one data folder",
                chat.path.display(),
                text.path.display()
            );
            return Err(DataError::bad(problem, "prepare each of them into its own folder"));
        }
        sources.has_conversations = chat.is_some();
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

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the total size of the files on disk, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the names of the files, without their folders.
    pub(super) fn names(&self) -> Vec<String> {
        self.files
            .iter()
            .filter_map(|file| file.path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    /// Reads every document of every file into `sink`, in order. Returns the lines that were left out.
    pub(super) fn read(&self, sink: &mut Sink<'_>) -> Result<BadLines, DataError> {
        let PrepareOptions { text_field, skip_bad_lines, .. } = &self.options;
        let mut bad = BadLines { are_skipped: *skip_bad_lines, ..BadLines::default() };
        let mut done = 0;
        for file in &self.files {
            let mut sink = |part: DocumentPart<'_>, bytes: u64| sink(part, done + bytes);
            match file.read(text_field, self.template.as_ref(), &mut bad, &mut sink) {
                Ok(()) => done += file.bytes,
                Err(None) => break,
                Err(Some(error)) => return Err(error),
            }
        }
        Ok(bad)
    }
}

/// Copies stdin to a file without a name, which ends with this process; also returns its length.
/// The file is on the disk of `out`, the output folder: that disk needs the room for the tokens
/// anyway, while the system's folder for temporary files may be in memory. `progress` is called with
/// the bytes so far.
#[cfg(not(target_arch = "wasm32"))]
fn copy_stdin(out: &Path, progress: &mut dyn FnMut(u64)) -> Result<(File, u64), DataError> {
    use std::io::{Read, Write};

    let folder = out.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let mut copied = || -> io::Result<(File, u64)> {
        let mut file = tempfile::tempfile_in(folder)?;
        let (mut stdin, mut bytes) = (io::stdin().lock(), 0);
        let mut block = Vec::with_capacity(PIECE);
        while (&mut stdin).take(PIECE as u64).read_to_end(&mut block)? > 0 {
            file.write_all(&block)?;
            bytes += block.len() as u64;
            block.clear();
            progress(bytes);
        }
        Ok((file, bytes))
    };
    copied().map_err(DataError::io("copy stdin to", folder))
}

#[cfg(test)]
mod tests;
