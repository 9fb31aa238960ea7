//! Writes a data folder so that an interruption never leaves it looking complete.
//!
//! All files are written under temporary names and renamed at the end. The old `meta.json` is
//! removed before the first rename and the new one appears with the last; in between,
//! `meta.json.tmp` marks the folder as unfinished.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::encode::Encoded;
use super::tokenizer_files::DATA_FILES;
use super::{
    ChatTemplate, ConversationCounts, DataError, Meta, TOKENIZER_FILE, TextTokenizer, TokenDtype,
    Tokenizer,
};
use crate::disk::{self, File, FolderKind};

pub(super) const TRAIN: &str = "train.bin";
pub(super) const VAL: &str = "val.bin";
pub(super) const META: &str = "meta.json";
/// Marks an unfinished folder.
pub(super) const META_TEMPORARY: &str = "meta.json.tmp";

/// Writes a data folder. If dropped before [`FolderWriter::finish`], removes its temporary files and the folders
/// that it has created.
pub(super) struct FolderWriter {
    folder: PathBuf,
    pub(super) train: TokenWriter,
    pub(super) val: TokenWriter,
    finished: bool,
    /// Dropped after the files are closed: Windows keeps a deleted file in its folder until then.
    _created: CreatedFolders,
}

/// The folders that were created for a data folder, the inner ones first. Removes the empty ones when dropped.
struct CreatedFolders(Vec<PathBuf>);

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        for folder in &self.0 {
            // One with files stays.
            let _ = disk::remove_dir(folder);
        }
    }
}

/// Returns an error if the folder already holds data, unless `force` is set, or files of a tokenizer that
/// belong to no data.
pub(super) fn check_vacant(folder: &Path, force: bool) -> Result<(), DataError> {
    if let Some(problem) = disk::other_kind(folder, FolderKind::Data) {
        return Err(DataError::usage(problem, disk::OTHER_KIND_HINT));
    }
    let data = disk::first_in(folder, [META, TRAIN, VAL, META_TEMPORARY]);
    let (found, hint) = match (data, disk::first_in(folder, DATA_FILES)) {
        (Some(found), _) if !force => {
            (found, "choose another folder, or replace the data with --force")
        }
        (None, Some(found)) => (found, "choose another folder: this is another program's"),
        _ => return Ok(()),
    };
    let problem = format!("{} already contains {found}", folder.display());
    Err(DataError::usage(problem, hint))
}

impl FolderWriter {
    /// Creates the folder and the temporary files. `begin` is the token that begins a conversation, for data of
    /// conversations.
    pub fn create(folder: &Path, dtype: TokenDtype, begin: Option<u32>) -> Result<Self, DataError> {
        let is_new = |folder: &&Path| !folder.as_os_str().is_empty() && !disk::exists(folder);
        let created = folder.ancestors().take_while(is_new).map(Path::to_owned);
        let created = CreatedFolders(created.collect());
        disk::create_dir_all(folder).map_err(DataError::io("create", folder))?;
        Ok(Self {
            folder: folder.to_owned(),
            train: TokenWriter::create(temporary(folder, TRAIN), dtype, begin)?,
            val: TokenWriter::create(temporary(folder, VAL), dtype, begin)?,
            finished: false,
            _created: created,
        })
    }

    pub fn write(&mut self, encoded: &Encoded) -> Result<(), DataError> {
        self.train.write(&encoded.train)?;
        self.val.write(&encoded.val)
    }

    /// Completes the folder with its description. `tokenizer` is the one that made the tokens.
    pub fn finish(
        mut self,
        tokenizer: Tokenizer,
        documents: u64,
        sources: Vec<String>,
    ) -> Result<Meta, DataError> {
        let train_blake3 = self.train.finish()?;
        let val_blake3 = self.val.finish()?;
        let Self { train, val, .. } = &self;
        let meta = Meta {
            version: Meta::VERSION,
            vocab_size: tokenizer.vocab_size(),
            tokenizer,
            dtype: train.dtype,
            documents,
            conversations: train.begin.map(|_| ConversationCounts {
                train: train.conversations,
                val: val.conversations,
                longest: train.longest.max(val.longest),
            }),
            train_tokens: train.tokens,
            val_tokens: val.tokens,
            sources,
            train_blake3,
            val_blake3,
        };
        let path = temporary(&self.folder, META);
        let json =
            serde_json::to_vec_pretty(&meta).map_err(|error| DataError::meta(&path, error))?;
        let mut texts = vec![(META, json)];
        // For other programs, and to prepare other data: wgpt reads the tokenizer in `meta.json`.
        match &meta.tokenizer {
            tokenizer if has_names(tokenizer) => {
                let files = meta.tokenizer.hugging_face_files().into_iter();
                texts.extend(files.map(|(name, text)| (name, text.into_bytes())));
            }
            Tokenizer::Text(TextTokenizer::Bpe(_)) | Tokenizer::Chat(_) => {
                texts.push((TOKENIZER_FILE, meta.tokenizer.json_file().into_bytes()));
            }
            _ => {}
        }
        for (name, text) in &texts {
            let path = temporary(&self.folder, name);
            disk::write(&path, text)
                .and_then(|()| disk::sync_file(&path))
                .map_err(DataError::io("write", &path))?;
        }

        // From here on, `meta.json.tmp` must be there until all files are complete.
        let sync = || disk::sync_folder(&self.folder).map_err(DataError::io("sync", &self.folder));
        sync()?;
        // The tokenizer of the former data would tokenize other data into ids that mean other text.
        for old in [META].iter().chain(&DATA_FILES).map(|name| self.folder.join(name)) {
            if disk::exists(&old) {
                disk::remove_file(&old).map_err(DataError::io("replace", &old))?;
            }
        }
        // meta.json is the last.
        let texts = texts.iter().rev().map(|(name, _)| *name);
        for name in [TRAIN, VAL].into_iter().chain(texts) {
            if name == META {
                sync()?;
            }
            let to = self.folder.join(name);
            disk::rename(temporary(&self.folder, name), &to)
                .map_err(DataError::io("write", &to))?;
        }
        sync()?;
        self.finished = true;
        Ok(meta)
    }
}

impl Drop for FolderWriter {
    fn drop(&mut self) {
        if !self.finished {
            // Errors are ignored, because an earlier one is already reported. meta.json.tmp stays, because some
            // files may have been renamed.
            for name in [TRAIN, VAL].iter().chain(&DATA_FILES) {
                let _ = disk::remove_file(temporary(&self.folder, name));
            }
        }
    }
}

/// Returns true for a tokenizer whose own file does not say all about it.
fn has_names(tokenizer: &Tokenizer) -> bool {
    let is_of_folder = tokenizer.chat().is_some_and(ChatTemplate::is_of_folder);
    is_of_folder || tokenizer.chat().is_none() && tokenizer.base().names().is_some()
}

fn temporary(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.tmp"))
}

pub(super) struct TokenWriter {
    path: PathBuf,
    file: File,
    dtype: TokenDtype,
    hasher: blake3::Hasher,
    pub(super) tokens: u64,
    begin: Option<u32>,
    conversations: u64,
    current: u64,
    longest: u64,
}

impl TokenWriter {
    fn create(path: PathBuf, dtype: TokenDtype, begin: Option<u32>) -> Result<Self, DataError> {
        let file = File::create(&path).map_err(DataError::io("create", &path))?;
        Ok(Self {
            path,
            file,
            dtype,
            hasher: blake3::Hasher::new(),
            tokens: 0,
            begin,
            conversations: 0,
            current: 0,
            longest: 0,
        })
    }

    fn write(&mut self, ids: &[u32]) -> Result<(), DataError> {
        let width = self.dtype.width() as usize;
        let mut bytes = Vec::with_capacity(ids.len() * width);
        for &id in ids {
            // `TokenDtype::for_vocab` chose the width, so every id fits.
            bytes.extend_from_slice(&id.to_le_bytes()[..width]);
            if Some(id) == self.begin {
                self.conversations += 1;
                self.current = 0;
            }
            self.current += 1;
            self.longest = self.longest.max(self.current);
        }
        self.hasher.update(&bytes);
        self.tokens += ids.len() as u64;
        self.file.write_all(&bytes).map_err(DataError::io("write", &self.path))
    }

    /// Syncs the file to disk and returns the hash of its content.
    fn finish(&mut self) -> Result<String, DataError> {
        self.file.sync_all().map_err(DataError::io("write", &self.path))?;
        Ok(self.hasher.finalize().to_hex().to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::folder;
    use super::*;
    use crate::disk::recorder::{Call, record};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn write(folder: &Path, dtype: TokenDtype) -> FolderWriter {
        let mut output = FolderWriter::create(folder, dtype, Some(1)).unwrap();
        let encoded = Encoded { train: vec![1, 0x1_0203], val: vec![256] };
        output.write(&encoded).unwrap();
        output
    }

    #[test]
    fn a_dropped_writer_removes_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/data");
        let output = write(&path, TokenDtype::U16);
        assert_eq!(names(&path), ["train.bin.tmp", "val.bin.tmp"]);
        drop(output);
        assert!(names(folder.path()).is_empty(), "the folders are its own");

        std::fs::create_dir(folder.path().join("new")).unwrap();
        drop(write(&path, TokenDtype::U16));
        assert_eq!(names(folder.path()), ["new"], "this one was there before");
    }

    /// Without `meta.json` and its mark, a folder is one that nanoGPT has prepared.
    #[test]
    fn a_power_failure_leaves_a_folder_that_is_complete_or_marked() {
        let folder = tempfile::tempdir().unwrap();
        let output = write(folder.path(), TokenDtype::U16);
        let (meta, calls) = record(|| output.finish(Tokenizer::BYTE, 1, vec![]));
        meta.unwrap();
        let sync = Call::SyncFolder(folder.path().into());
        let rename = |name| Call::Rename(temporary(folder.path(), name), folder.path().join(name));
        let marked = calls.iter().position(|call| *call == sync).unwrap();
        assert_eq!(calls[..marked], [Call::SyncFile(temporary(folder.path(), META))]);
        assert_eq!(
            calls[marked..],
            [sync.clone(), rename(TRAIN), rename(VAL), sync.clone(), rename(META), sync]
        );
    }

    #[test]
    fn tokens_are_little_endian_in_both_widths() {
        for (dtype, expected) in
            [(TokenDtype::U16, &[1, 0, 3, 2][..]), (TokenDtype::U32, &[1, 0, 0, 0, 3, 2, 1, 0])]
        {
            let folder = tempfile::tempdir().unwrap();
            let output = write(folder.path(), dtype);
            // It has conversations, whatever their tokens are.
            let chat = Tokenizer::BYTE.with_chat();
            let meta = output.finish(chat, 1, vec![]).unwrap();
            let conversations = ConversationCounts { train: 1, val: 0, longest: 2 };
            assert_eq!((meta.conversations, meta.dtype), (Some(conversations), dtype));
            assert_eq!((meta.train_tokens, meta.val_tokens), (2, 1));
            assert_eq!(names(folder.path()), [META, TOKENIZER_FILE, TRAIN, VAL]);
            let bytes = fs::read(folder.path().join(TRAIN)).unwrap();
            assert_eq!(bytes, expected);
            assert_eq!(meta.train_blake3, blake3::hash(&bytes).to_hex().as_str());
            assert_eq!(Meta::load(&folder.path().join(META)).unwrap(), meta);
        }
    }

    #[test]
    fn a_folder_with_data_is_replaced_only_with_force() {
        check_vacant(tempfile::tempdir().unwrap().path(), false).unwrap();
        let folder = folder(&[(VAL, "x")]);
        let error = check_vacant(folder.path(), false).unwrap_err();
        assert!(error.to_string().contains(VAL) && error.hint().contains("--force"), "{error}");
        check_vacant(folder.path(), true).unwrap();
    }

    #[test]
    fn the_tokenizer_of_a_model_is_never_replaced() {
        for name in DATA_FILES {
            let model = folder(&[(name, "x")]);
            for force in [false, true] {
                let error = check_vacant(model.path(), force).unwrap_err();
                assert!(error.to_string().contains(name), "{error}");
                assert!(!error.hint().contains("--force"), "{}", error.hint());
            }
        }
    }
}
