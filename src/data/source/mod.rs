//! Streams documents from files.
//!
//! JSON and Parquet files and tables have a document per object or row; any other file is plain text. The objects
//! and the rows of tables may be conversations instead, but then all files must have them. All but Parquet may be compressed with
//! gzip or Zstandard. What a file is, its first bytes show. A folder means all files below it that are text,
//! sorted by name, without those that describe a data set or are to test with.

mod file;
mod input;
mod jsonl;
mod plain_text;
#[cfg_attr(target_arch = "wasm32", path = "browser.rs")]
mod platform;
mod records;
mod sniff;
mod table;

use std::io;
use std::path::{Path, PathBuf};

use super::{ChatTemplate, DataError, Message, PrepareOptions};
use crate::disk;
pub(super) use file::SourceFile;
use file::{Format, NotText};
use jsonl::Dialect;
pub(super) use jsonl::read_line;
pub use platform::TextEncoding;
use sniff::Layout;

/// The input that means stdin.
const STDIN: &str = "-";

/// Files that describe a data set, by the first words of their names.
const ABOUT: [&str; 6] = ["readme", "license", "licence", "citation", "notice", "changelog"];

/// Files and folders that are not to train with, by the first words of their names.
const OTHER_SPLITS: [&str; 6] = ["validation", "valid", "val", "dev", "test", "eval"];

/// Returns the beginning of a name up to the first `-`, `_` or `.`, in small letters.
fn first_word(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    name.split(['-', '_', '.']).next().unwrap_or_default().to_owned()
}

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
    /// Texts that are null.
    pub nulls: u64,
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

/// An entry of a folder that is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    NotText,
    /// Git LFS has the file.
    Pointer,
    /// It is about the data, like a README.
    AboutData,
    /// Its name says that it is to validate or test with, next to one to train with.
    OtherSplit,
    LinkToNothing,
    LinkToFolder,
    /// A socket, a pipe or a device.
    NotAFile,
    /// The system does not report what it is.
    Unreadable,
}

impl SkipReason {
    pub const ALL: [Self; 8] = [
        Self::NotText,
        Self::Pointer,
        Self::AboutData,
        Self::OtherSplit,
        Self::LinkToNothing,
        Self::LinkToFolder,
        Self::NotAFile,
        Self::Unreadable,
    ];

    /// Returns the nouns for one and for several entries.
    pub fn words(self, encoding: TextEncoding) -> [String; 2] {
        let [one, many] = match self {
            Self::NotText => {
                let name = encoding.name();
                return [
                    format!("file that is not {name} text"),
                    format!("files that are not {name} text"),
                ];
            }
            Self::Pointer => ["pointer of Git LFS", "pointers of Git LFS"],
            Self::AboutData => ["file about the data", "files about the data"],
            Self::OtherSplit => ["validation or test file", "validation or test files"],
            Self::LinkToNothing => ["link to a missing file", "links to missing files"],
            Self::LinkToFolder => ["link to a folder", "links to folders"],
            Self::NotAFile => ["entry that is not a file", "entries that are not files"],
            Self::Unreadable => ["file that cannot be opened", "files that cannot be opened"],
        };
        [one, many].map(str::to_owned)
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
    pub(super) skipped: Vec<(PathBuf, SkipReason)>,
}

impl Sources {
    /// Finds the files of `inputs`, except for those in `out`, the folder that will be written.
    /// Stdin is copied first, and `copied` is called with the bytes so far.
    pub(super) fn find(
        inputs: &[PathBuf],
        options: &PrepareOptions,
        out: &Path,
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
            if input.as_os_str() == STDIN {
                let (copy, bytes) = platform::copy_stdin(&out, copied)?;
                let file = SourceFile::new(Path::new("stdin"), bytes);
                sources.add_named(SourceFile { copy: Some(copy), ..file })?;
                continue;
            }
            let metadata = disk::metadata(input).map_err(DataError::io("read", input))?;
            if metadata.is_dir() {
                let first = sources.files.len();
                sources.add_folder(input, &out)?;
                sources.leave_out_companions(input, first);
            } else if metadata.is_file() {
                sources.add_named(SourceFile::new(input, metadata.len()))?;
            } else {
                // It is opened more than once, which a pipe is not made for.
                let hint = "give a file, or `-` to read a pipe from stdin";
                return Err(DataError::at(input, "this is a pipe or a device", hint));
            }
        }
        if sources.files.is_empty() {
            let inputs: Vec<_> = inputs.iter().map(|i| i.display().to_string()).collect();
            let skipped = match sources.skipped_files() {
                skipped if skipped.is_empty() => String::new(),
                skipped => format!(": skipped {}", skipped.join("; ")),
            };
            let has_pointers =
                sources.skipped.iter().any(|(_, reason)| *reason == SkipReason::Pointer);
            let hint = if has_pointers {
                disk::LFS_HINT
            } else {
                "give at least one file or folder with text, and its --encoding if it is not UTF-8"
            };
            let problem = format!("no text files in {}{skipped}", inputs.join(", "));
            return Err(DataError::bad(problem, hint));
        }
        if !options.encoding.is_utf8() && !sources.files.iter().any(SourceFile::has_encoding) {
            let problem = "--encoding is for plain text and tables, and no input is one of them";
            return Err(DataError::usage(problem, "leave out --encoding: .jsonl files are UTF-8"));
        }
        let is_chat = |file: &&SourceFile| file.has_conversations();
        let chat = sources.files.iter().find(is_chat);
        if let (Some(chat), Some(text)) = (chat, sources.files.iter().find(|file| !is_chat(file))) {
            let problem = format!(
                "{} has conversations and {} has text, but a data folder cannot hold both",
                chat.path.display(),
                text.path.display()
            );
            return Err(DataError::bad(problem, "prepare each into its own folder"));
        }
        sources.has_conversations = chat.is_some();
        Ok(sources)
    }

    /// Adds a file that somebody has named.
    fn add_named(&mut self, mut file: SourceFile) -> Result<(), DataError> {
        let PrepareOptions { encoding, text_field, .. } = &self.options;
        let not_text = file.recognise(*encoding, text_field, true)?;
        let (reason, hint) = match not_text {
            Some(NotText::Foreign(what)) => (
                format!("this is {what}, which wgpt does not read"),
                "unpack it, or save its text as .txt or .jsonl".to_owned(),
            ),
            Some(NotText::Pointer) => (disk::LFS_POINTER.to_owned(), disk::LFS_HINT.to_owned()),
            Some(NotText::Zeros) => (
                "this is not text: it has zero bytes".to_owned(),
                "leave it out, or name its encoding with --encoding if it is text".to_owned(),
            ),
            Some(NotText::Unmarked(label)) => (
                "not UTF-8: it looks like UTF-16".to_owned(),
                format!("say so with --encoding={label}"),
            ),
            // Reading it says where.
            Some(NotText::Binary) | None => {
                self.files.push(file);
                return Ok(());
            }
        };
        Err(DataError::at(&file.path, reason, hint))
    }

    /// Leaves out files from `first` on, all below `folder`, that describe or load a published data set, or are
    /// meant for validation and tests.
    fn leave_out_companions(&mut self, folder: &Path, first: usize) {
        let found = self.files.split_off(first);
        let is_data = |file: &SourceFile| file.format != Format::Text;
        let is_about = |file: &SourceFile| {
            let is_at_root = file.path.parent() == Some(folder);
            is_at_root && !is_data(file) && ABOUT.contains(&&*first_word(&file.path))
        };
        // A script that loads the data, unless the folder has texts of its own.
        let is_script = |file: &SourceFile| {
            let is_at_root = file.path.parent() == Some(folder);
            is_at_root && ["py", "yaml", "json"].contains(&&*file.ending())
        };
        let has_data = found.iter().any(is_data);
        let has_texts =
            found.iter().any(|file| !is_data(file) && !is_about(file) && !is_script(file));
        let is_of = |file: &SourceFile, splits: &[&str]| {
            let path = file.path.strip_prefix(folder).unwrap_or(&file.path);
            let may_be_split = is_data(file) || file.ending() == "txt";
            may_be_split && path.iter().any(|part| splits.contains(&&*first_word(part.as_ref())))
        };
        let has_train = found.iter().any(|file| is_of(file, &["train"]));
        for file in found {
            let is_companion = is_about(&file) || !has_texts && !is_data(&file);
            if has_data && is_companion {
                self.skipped.push((file.path, SkipReason::AboutData));
            } else if has_train && is_of(&file, &OTHER_SPLITS) {
                self.skipped.push((file.path, SkipReason::OtherSplit));
            } else {
                self.files.push(file);
            }
        }
    }

    /// Returns a sentence for each form of data that the names of the files do not tell.
    pub(super) fn recognised(&self) -> Vec<String> {
        let field = &self.options.text_field;
        let table_as_text = format!(
            "a table without the column {field:?}, read as plain text; name the column of its texts with --text-field"
        );
        let form = |file: &SourceFile| match file.format {
            // As its name says.
            Format::Conversations(_, Dialect::Messages) | Format::Documents(_)
                if file.has_lines() =>
            {
                None
            }
            Format::Conversations(_, dialect) => Some(dialect.name()),
            Format::Documents(Layout::Table(_)) => Some("a table, each row a document"),
            Format::Documents(_) => Some("documents in JSON"),
            Format::Text
                if file.named_separator().is_some() && !file.encoding.is_ascii_compatible() =>
            {
                Some("a table, read as plain text; saved as UTF-8, each row is a document")
            }
            Format::Text if file.named_separator().is_some() => Some(table_as_text.as_str()),
            Format::Text => match file.ending().as_str() {
                "json" => Some("JSON without a list of objects, read as plain text"),
                _ => None,
            },
            Format::Parquet => None,
        };
        let mut forms: Vec<(&str, &SourceFile, usize)> = Vec::new();
        for file in &self.files {
            let Some(name) = form(file) else { continue };
            match forms.iter_mut().find(|(known, ..)| *known == name) {
                Some((.., others)) => *others += 1,
                None => forms.push((name, file, 0)),
            }
        }
        let sentence = |(name, file, others): (&str, &SourceFile, usize)| {
            let more = if others == 0 { String::new() } else { format!(" and {others} more") };
            format!("{}{more}: {name}", file.path.display())
        };
        forms.into_iter().map(sentence).collect()
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
            let reason = match disk::metadata(&path) {
                Ok(metadata) if metadata.is_file() => {
                    let mut file = SourceFile::new(&path, metadata.len());
                    let PrepareOptions { encoding, text_field, .. } = &self.options;
                    match file.recognise(*encoding, text_field, false)? {
                        None => {
                            self.files.push(file);
                            continue;
                        }
                        Some(NotText::Pointer) => SkipReason::Pointer,
                        Some(_) => SkipReason::NotText,
                    }
                }
                // A folder itself is read above.
                Ok(metadata) if metadata.is_dir() => SkipReason::LinkToFolder,
                Ok(_) => SkipReason::NotAFile,
                Err(error) if error.kind() == io::ErrorKind::NotFound => SkipReason::LinkToNothing,
                Err(_) => SkipReason::Unreadable,
            };
            self.skipped.push((path, reason));
        }
        Ok(())
    }

    /// Describes the skipped entries: a clause for each reason, with the first names.
    pub(super) fn skipped_files(&self) -> Vec<String> {
        let clause = |reason: SkipReason| {
            let of_reason = self.skipped.iter().filter(|(_, why)| *why == reason);
            let paths: Vec<_> = of_reason.map(|(path, _)| path.display().to_string()).collect();
            let [one, many] = reason.words(self.options.encoding);
            let what = match paths.len() {
                0 => return None,
                1 => format!("1 {one}"),
                count => format!("{count} {many}"),
            };
            let mut names = paths[..paths.len().min(3)].to_vec();
            if paths.len() > names.len() {
                names.push(format!("and {} more", paths.len() - names.len()));
            }
            Some(format!("{what}: {}", names.join(", ")))
        };
        SkipReason::ALL.into_iter().filter_map(clause).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Estimates the bytes of text: a file that is compressed has about three times its size.
    pub(super) fn text_bytes(&self) -> u64 {
        let factor = |file: &SourceFile| if file.is_compressed() { 3 } else { 1 };
        self.files.iter().map(|file| file.bytes.saturating_mul(factor(file))).sum()
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
            let template = self.template.as_ref();
            match file.read(text_field, template, &mut bad, &mut sink) {
                Ok(()) => done += file.bytes,
                Err(None) => break,
                Err(Some(error)) => return Err(error),
            }
        }
        Ok(bad)
    }
}

#[cfg(test)]
mod tests;
