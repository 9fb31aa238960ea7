//! Random access to the tokens of a split, in files or in memory.
//!
//! Two file layouts are supported: headerless tokens, as written by nanoGPT and `wgpt prepare`, and
//! llm.c's shards with a header of 256 i32 (20240520, 1, tokens, 0, ...). A split may consist of
//! several files, in the given order. Files are neither mapped nor kept in memory; reading a window
//! is a seek and a read.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::dataset::NANOGPT_META;
use super::error::COPY_AGAIN;
use super::packing::Conversations;
use super::writer::META;
use super::{ChatTemplate, DataError, TokenDtype};
use crate::disk::{self, File};

const SHARD_MAGIC: i32 = 20_240_520;
const SHARD_VERSION: i32 = 1;
const SHARD_HEADER: u64 = 256 * 4;
/// llm.c's token files of other kinds: multiple-choice evaluations and Llama 3 tokens.
const OTHER_MAGIC: [i32; 2] = [20_240_522, 20_240_801];

/// The tokens of one split (train or val). Several threads may share it; file reads take a lock.
#[derive(Debug)]
pub struct Split {
    store: Store,
    vocab_size: u32,
    len: u64,
    /// `None` for text.
    pub(super) conversations: Option<Conversations>,
}

#[derive(Debug)]
enum Store {
    Memory(Vec<u32>),
    Files { files: Vec<TokenFile>, open: OpenFile },
}

/// The file of the last read. Only one stays open, because a thousand shards would exceed the limit of
/// open files.
type OpenFile = Mutex<Option<(PathBuf, File)>>;

#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    dtype: TokenDtype,
    header: u64,
    tokens: u64,
    /// Index in the split of the first token of this file.
    first: u64,
}

impl Split {
    pub(super) fn from_memory(tokens: Vec<u32>, vocab_size: u32) -> Self {
        let len = tokens.len() as u64;
        Self { len, store: Store::Memory(tokens), vocab_size, conversations: None }
    }

    /// Opens a split in files. With `dtype` they are headerless; without, the layout and the dtype follow from
    /// the first bytes of each file.
    pub(super) fn from_files(
        paths: Vec<PathBuf>,
        vocab_size: u32,
        dtype: Option<TokenDtype>,
    ) -> Result<Self, DataError> {
        let mut files = Vec::new();
        let mut len = 0;
        for path in paths {
            let file = TokenFile::inspect(path, dtype, len)?;
            len += file.tokens;
            files.push(file);
        }
        let store = Store::Files { files, open: Mutex::new(None) };
        Ok(Self { store, vocab_size, len, conversations: None })
    }

    /// Finds the conversations of the split in the file `name`, if it has them.
    pub(super) fn with_conversations(
        mut self,
        name: &str,
        template: Option<&ChatTemplate>,
    ) -> Result<Self, DataError> {
        let found = template.map(|template| Conversations::find(&self, name, template.clone()));
        self.conversations = found.transpose()?;
        Ok(self)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads `count` tokens from `start` on. All are below the vocabulary size, because the device looks them up
    /// without a check.
    pub fn window(&self, start: u64, count: usize) -> Result<Vec<u32>, DataError> {
        let end = start.checked_add(count as u64).filter(|&end| end <= self.len);
        let end = end.ok_or_else(|| {
            let len = self.len;
            let problem =
                format!("tokens {start}..{start}+{count} are outside a split of {len} tokens");
            DataError::bad(problem, "please report this as a bug in wgpt")
        })?;
        match &self.store {
            Store::Memory(tokens) => {
                let ids = tokens[start as usize..end as usize].to_vec();
                self.check_range(ids, Path::new("built-in corpus"), start)
            }
            Store::Files { files, open } => {
                let mut ids = Vec::with_capacity(count);
                let from = files.partition_point(|file| file.first + file.tokens <= start);
                for file in files[from..].iter().take_while(|file| file.first < end) {
                    let first = start.max(file.first) - file.first;
                    let last = (end - file.first).min(file.tokens);
                    let part = file.read(first..last, open)?;
                    ids.append(&mut self.check_range(part, &file.path, first)?);
                }
                Ok(ids)
            }
        }
    }

    /// Checks that all tokens are below `vocab_size`, which is the size of the vocabulary from now on.
    pub(super) fn fit(&mut self, vocab_size: u32) -> Result<(), DataError> {
        const BLOCK: u64 = 1 << 20;
        for start in (0..self.len).step_by(BLOCK as usize) {
            let ids = self.window(start, BLOCK.min(self.len - start) as usize)?;
            if let Some(id) = ids.iter().find(|id| **id >= vocab_size) {
                let problem =
                    format!("the data uses token {id}, but the model has {vocab_size} tokens");
                let hint = "use a model that has this token, or prepare the data without such conversations";
                return Err(DataError::bad(problem, hint));
            }
        }
        self.vocab_size = vocab_size;
        Ok(())
    }

    fn check_range(&self, ids: Vec<u32>, path: &Path, first: u64) -> Result<Vec<u32>, DataError> {
        let unknown = (first..).zip(&ids).find(|(_, id)| **id >= self.vocab_size);
        let Some((position, id)) = unknown else { return Ok(ids) };
        let size = self.vocab_size;
        let problem =
            format!("token {id} at position {position} is outside the vocabulary of {size}");
        let has_meta =
            [META, NANOGPT_META].iter().any(|name| disk::exists(&path.with_file_name(name)));
        let hint = if has_meta {
            "the file is damaged or was made with another tokenizer: prepare the data again with --force"
        } else {
            "without meta.json or meta.pkl these are tokens of GPT-2: for others, write a meta.pkl with \
             their vocab_size, as nanoGPT does"
        };
        Err(DataError::at(path, problem, hint))
    }

    /// Adds a cheap fingerprint to `hasher`: the length of each file, and 32 Ki tokens from either
    /// end of the split.
    pub(super) fn fingerprint(&self, hasher: &mut blake3::Hasher) -> Result<(), DataError> {
        const ENDS: u64 = 32 << 10;
        if let Store::Files { files, .. } = &self.store {
            for file in files {
                hasher.update(&file.tokens.to_le_bytes());
            }
        }
        hasher.update(&self.len.to_le_bytes());
        let count = self.len.min(ENDS);
        for start in [0, self.len - count] {
            // Hashes ids, so that the file layout does not matter.
            for id in self.window(start, count as usize)? {
                hasher.update(&id.to_le_bytes());
            }
        }
        Ok(())
    }
}

impl TokenFile {
    fn inspect(path: PathBuf, dtype: Option<TokenDtype>, first: u64) -> Result<Self, DataError> {
        let io = || DataError::io("read", &path);
        let mut file = disk::open_regular(&path).map_err(io())?;
        let bytes = file.metadata().map_err(io())?.len();
        if dtype.is_none() {
            let mut head = Vec::with_capacity(12);
            (&mut file).take(12).read_to_end(&mut head).map_err(io())?;
            if let Some(expected) = shard_tokens(&path, &head)? {
                let found = bytes.saturating_sub(SHARD_HEADER) / 2;
                return match u64::try_from(expected) {
                    Ok(tokens) if bytes >= SHARD_HEADER && tokens <= found => Ok(Self {
                        path,
                        dtype: TokenDtype::U16,
                        header: SHARD_HEADER,
                        tokens,
                        first,
                    }),
                    _ => Err(DataError::token_count(&path, "its header", expected, found)),
                };
            }
        }
        let dtype = match dtype {
            Some(dtype) => dtype,
            None if is_wide(&mut file).map_err(io())? => TokenDtype::U32,
            None => TokenDtype::U16,
        };
        let width = dtype.width();
        if bytes % width != 0 {
            let problem = format!("{bytes} bytes are not a whole number of {width}-byte tokens");
            return Err(DataError::at(&path, problem, COPY_AGAIN));
        }
        Ok(Self { path, dtype, header: 0, tokens: bytes / width, first })
    }

    fn read(&self, tokens: Range<u64>, open: &OpenFile) -> Result<Vec<u32>, DataError> {
        let io = || DataError::io("read", &self.path);
        // A poisoned lock is harmless: every read seeks first.
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, file) = match open.take().filter(|(path, _)| *path == self.path) {
            Some(same) => open.insert(same),
            None => open.insert((self.path.clone(), disk::open_regular(&self.path).map_err(io())?)),
        };
        let width = self.dtype.width();
        // Within the length that `inspect` checked, so nothing overflows.
        file.seek(SeekFrom::Start(self.header + tokens.start * width)).map_err(io())?;
        let mut bytes = vec![0; ((tokens.end - tokens.start) * width) as usize];
        file.read_exact(&mut bytes).map_err(io())?;
        Ok(match self.dtype {
            TokenDtype::U16 => {
                bytes.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair).into()).collect()
            }
            TokenDtype::U32 => {
                bytes.as_chunks().0.iter().map(|&quad| u32::from_le_bytes(quad)).collect()
            }
        })
    }
}

/// Reads the token count from the header of a shard; `None` for a headerless file. A headerless GPT-2
/// file never looks like a shard, because the lower 16 bits of each magic number are above 55,000, which
/// is not a token of GPT-2.
fn shard_tokens(path: &Path, head: &[u8]) -> Result<Option<i32>, DataError> {
    let (words, _) = head.as_chunks();
    let words: Vec<_> = words.iter().map(|&w| i32::from_le_bytes(w)).collect();
    match words[..] {
        [SHARD_MAGIC, SHARD_VERSION, tokens] => Ok(Some(tokens)),
        [magic, version, _] if magic == SHARD_MAGIC || OTHER_MAGIC.contains(&magic) => {
            let problem = format!(
                "unsupported shard header (magic {magic}, version {version}), expected magic \
                 {SHARD_MAGIC}, version {SHARD_VERSION}"
            );
            Err(DataError::at(path, problem, "prepare the text with `wgpt prepare`"))
        }
        _ => Ok(None),
    }
}

/// Returns true if every second of the first numbers of 16 bits is zero: then they have 32.
fn is_wide(file: &mut File) -> io::Result<bool> {
    const SEEN: u64 = 16 << 10;
    let mut head = Vec::new();
    file.rewind()?;
    file.take(SEEN).read_to_end(&mut head)?;
    let (pairs, rest) = head.as_chunks::<4>();
    let has_text = pairs.iter().any(|pair| pair[..2] != [0, 0]);
    // Two tokens prove little.
    Ok(pairs.len() >= 16
        && rest.is_empty()
        && has_text
        && pairs.iter().all(|pair| pair[2..] == [0, 0]))
}

#[cfg(test)]
mod tests;
