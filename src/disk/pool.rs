//! Files with names and folders on a pool of slots that can only be read and written.
//!
//! A browser opens a file of its own storage only when asked beforehand, and then reads and writes it
//! at once. So the files are opened when the program starts, as slots, and a file's name stands in
//! the head of its slot. This is what SQLite does there, too (its "opfs-sahpool").
//!
//! Names change by one write, with a checksum: after a crash a file has its former name or its new
//! one, and of two of one name the newer stands. Folders are what names begin with.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use web_time::SystemTime;

/// A file that is open for good. Offsets and lengths are in bytes.
pub trait Slot {
    /// Reads at an offset; gives how much there was.
    ///
    /// # Errors
    /// If the browser refuses.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes` at an offset.
    ///
    /// # Errors
    /// If the browser refuses: there may be no room.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts it, or makes it longer.
    ///
    /// # Errors
    /// If the browser refuses.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Its length.
    ///
    /// # Errors
    /// If the browser refuses.
    fn size(&self) -> io::Result<u64>;
    /// Makes what was written survive.
    ///
    /// # Errors
    /// If the browser refuses.
    fn flush(&self) -> io::Result<()>;
}

/// Bytes of a slot before a file's content.
const HEAD: u64 = 4096;
const MAGIC: &[u8] = b"wgpt file 1\n";
const CHECKSUM: usize = 32;

/// The head of a slot in use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    /// Larger than that of any slot that was named before.
    generation: u64,
    /// Milliseconds since 1970 when it was named or made.
    modified: u64,
    path: String,
}

impl Head {
    /// `None` where the path is too long.
    fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.modified.to_le_bytes());
        bytes.extend((self.path.len() as u32).to_le_bytes());
        bytes.extend(self.path.as_bytes());
        bytes.extend(blake3::hash(&bytes).as_bytes());
        (bytes.len() as u64 <= HEAD).then(|| {
            bytes.resize(HEAD as usize, 0);
            bytes
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (generation, rest) = rest.split_first_chunk::<8>()?;
        let (modified, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let path = rest.get(..u32::from_le_bytes(*len) as usize)?;
        let end = MAGIC.len() + 20 + path.len();
        let checksum = bytes.get(end..end + CHECKSUM)?;
        if blake3::hash(&bytes[..end]).as_bytes() != checksum {
            return None;
        }
        Some(Self {
            generation: u64::from_le_bytes(*generation),
            modified: u64::from_le_bytes(*modified),
            path: str::from_utf8(path).ok()?.to_owned(),
        })
    }
}

#[derive(Clone)]
struct Entry {
    slot: Rc<dyn Slot>,
    head: Head,
}

/// Slots, and the names of those in use.
#[derive(Default)]
pub struct Pool {
    files: BTreeMap<String, Entry>,
    free: Vec<Rc<dyn Slot>>,
    /// Folders that were made. Those of files exist without.
    folders: BTreeSet<String>,
    locked: BTreeSet<String>,
    generation: u64,
}

/// `a/b` of `./a//b/`.
fn key(path: &Path) -> String {
    let parts = path.components().filter_map(|part| match part {
        std::path::Component::Normal(part) => part.to_str(),
        _ => None,
    });
    parts.collect::<Vec<_>>().join("/")
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

fn missing(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no `{path}`"))
}

impl Pool {
    /// Takes more slots: those with a name are files, the others are free.
    ///
    /// # Errors
    /// If a slot cannot be read or emptied.
    pub fn add(&mut self, slots: Vec<Rc<dyn Slot>>) -> io::Result<()> {
        for slot in slots {
            let mut bytes = vec![0; HEAD as usize];
            let read = slot.read_at(0, &mut bytes)?;
            let Some(head) = Head::decode(&bytes[..read]) else {
                slot.set_len(0)?;
                self.free.push(slot);
                continue;
            };
            self.generation = self.generation.max(head.generation);
            let newer = |entry: &Entry| entry.head.generation > head.generation;
            let old = if self.files.get(&head.path).is_some_and(newer) {
                Some(slot)
            } else {
                let path = head.path.clone();
                self.files.insert(path, Entry { slot, head }).map(|entry| entry.slot)
            };
            if let Some(old) = old {
                old.set_len(0)?;
                self.free.push(old);
            }
        }
        Ok(())
    }

    /// Slots that are not in use.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    fn head(&mut self, path: &str) -> Head {
        self.generation += 1;
        Head { generation: self.generation, modified: now(), path: path.to_owned() }
    }

    /// The file at `path`, made if `create` says so, emptied if `truncate` does.
    fn open(&mut self, path: &str, create: bool, truncate: bool) -> io::Result<Rc<dyn Slot>> {
        if let Some(entry) = self.files.get(path) {
            if truncate {
                entry.slot.set_len(HEAD)?;
            }
            return Ok(entry.slot.clone());
        }
        if !create {
            return Err(missing(path));
        }
        let head = self.head(path);
        let bytes = head.encode().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidFilename, "the name is too long")
        })?;
        let Some(slot) = self.free.pop() else {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "too many files at a time"));
        };
        if let Err(error) = slot.write_at(0, &bytes) {
            let _ = slot.set_len(0);
            self.free.push(slot);
            return Err(error);
        }
        self.files.insert(path.to_owned(), Entry { slot: slot.clone(), head });
        Ok(slot)
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        let entry = self.files.remove(path).ok_or_else(|| missing(path))?;
        entry.slot.set_len(0)?;
        self.free.push(entry.slot);
        Ok(())
    }

    /// Files in a folder and below, the oldest first.
    fn below(&self, folder: &str) -> Vec<String> {
        let prefix = format!("{folder}/");
        let mut found: Vec<(u64, String)> = self
            .files
            .range(prefix.clone()..)
            .take_while(|(path, _)| path.starts_with(&prefix))
            .map(|(path, entry)| (entry.head.generation, path.clone()))
            .collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }

    fn is_folder(&self, path: &str) -> bool {
        let within = |name: &String| {
            path.is_empty() || name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
        };
        path.is_empty()
            || self.folders.contains(path)
            || self.files.keys().any(within)
            || self.folders.iter().any(within)
    }

    fn remove_folder(&mut self, folder: &str) -> io::Result<()> {
        if !self.is_folder(folder) {
            return Err(missing(folder));
        }
        for path in self.below(folder) {
            self.remove(&path)?;
        }
        let prefix = format!("{folder}/");
        self.folders.retain(|made| made != folder && !made.starts_with(&prefix));
        Ok(())
    }

    /// Names a file anew, in place of another if there is one. Of a folder, the file that was made
    /// last comes last: in a checkpoint that is the one that makes it valid.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        if self.files.contains_key(from) {
            return self.rename_file(from, to);
        }
        if !self.is_folder(from) {
            return Err(missing(from));
        }
        for path in self.below(from) {
            self.rename_file(&path, &format!("{to}{}", &path[from.len()..]))?;
        }
        self.remove_folder(from).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        self.folders.insert(to.to_owned());
        Ok(())
    }

    fn rename_file(&mut self, from: &str, to: &str) -> io::Result<()> {
        let entry = self.files.get(from).cloned().ok_or_else(|| missing(from))?;
        let head = Head { modified: entry.head.modified, ..self.head(to) };
        let bytes = head.encode().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidFilename, "the name is too long")
        })?;
        entry.slot.write_at(0, &bytes)?;
        entry.slot.flush()?;
        self.files.remove(from);
        if let Some(old) = self.files.insert(to.to_owned(), Entry { head, ..entry }) {
            old.slot.set_len(0)?;
            self.free.push(old.slot);
        }
        Ok(())
    }

    /// The names in a folder.
    fn names(&self, folder: &str) -> io::Result<BTreeSet<String>> {
        if !self.is_folder(folder) {
            return Err(missing(folder));
        }
        let all = self.files.keys().chain(&self.folders);
        let name = |path: &String| {
            let rest = match folder {
                "" => path.as_str(),
                _ => path.strip_prefix(folder)?.strip_prefix('/')?,
            };
            rest.split('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
        };
        Ok(all.filter_map(name).collect())
    }
}

/// A slot in memory: for a page that may store nothing.
#[derive(Debug, Default)]
pub struct InMemory(RefCell<Vec<u8>>);

impl Slot for InMemory {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.borrow();
        let rest = bytes.get(at as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.borrow_mut();
        let end = at as usize + bytes.len();
        if all.len() < end {
            all.resize(end, 0);
        }
        all[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut all = self.0.borrow_mut();
        all.resize(len as usize, 0);
        all.shrink_to_fit();
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len() as u64)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

pub mod mounted;

#[cfg(test)]
mod tests;
