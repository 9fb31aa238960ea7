//! A file system on a pool of open files, for browsers.
//!
//! A browser reads and writes its private files synchronously, but opens them only asynchronously.
//! So a pool of files, called slots, is opened when the program starts, and the header of a slot
//! holds the path of the file stored in it. SQLite's "opfs-sahpool" works the same way.
//!
//! A rename is one write with a checksum, so that a file has either its old or its new path after a crash.
//! If two slots have the same path, the newer one counts. Folders are prefixes of paths, and exist as long
//! as they have files.
//!
//! Files are not kept in memory. A page has 4 GiB at most, and a model's last checkpoints can be as large. A
//! checkpoint that is reported must also be on the disk already.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use web_time::SystemTime;

/// A file that stays open. Offsets and lengths are in bytes. All methods fail if the browser
/// reports an error.
pub trait Slot: fmt::Debug {
    /// Reads at an offset and returns the number of bytes read.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes` at an offset.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn size(&self) -> io::Result<u64>;
    /// Writes buffered data to the storage.
    fn flush(&self) -> io::Result<()>;
}

/// Bytes of a slot before the content of its file.
const HEADER: u64 = 4096;
const MAGIC: &[u8] = b"wgpt file 1\n";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Header {
    /// Larger than in any header written before.
    generation: u64,
    /// Time of creation or of the last rename, in milliseconds since 1970.
    modified: u64,
    path: String,
}

impl Header {
    /// Returns the bytes of the header, unless the path is too long.
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.modified.to_le_bytes());
        bytes.extend((self.path.len() as u32).to_le_bytes());
        bytes.extend(self.path.as_bytes());
        bytes.extend(blake3::hash(&bytes).as_bytes());
        if bytes.len() as u64 > HEADER {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "the path is too long"));
        }
        Ok(bytes)
    }

    /// Returns the header that `bytes` begin with; `None` if it is damaged.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (modified, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let path = rest.get(..u32::from_le_bytes(*len) as usize)?;
        let header = Self {
            generation: u64::from_le_bytes(*generation),
            modified: u64::from_le_bytes(*modified),
            path: str::from_utf8(path).ok()?.to_owned(),
        };
        // This compares the checksums, too.
        bytes.starts_with(&header.encode().ok()?).then_some(header)
    }
}

#[derive(Clone, Debug)]
struct Entry {
    slot: Rc<dyn Slot>,
    header: Header,
    is_locked: Rc<Cell<bool>>,
}

#[derive(Default)]
pub struct Pool {
    files: BTreeMap<String, Entry>,
    free: Vec<Rc<dyn Slot>>,
    generation: u64,
}

/// Normalizes a path: `./a//b/` becomes `a/b`.
fn key(path: &Path) -> String {
    let parts = path.components().filter_map(|part| match part {
        std::path::Component::Normal(part) => part.to_str(),
        _ => None,
    });
    parts.collect::<Vec<_>>().join("/")
}

fn is_below(folder: &str, path: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn not_found(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("`{path}` does not exist"))
}

impl Pool {
    /// Adds slots. A slot with a valid header is a file, any other is free.
    pub fn add(&mut self, slots: Vec<Rc<dyn Slot>>) -> io::Result<()> {
        for slot in slots {
            let mut bytes = vec![0; HEADER as usize];
            let read = slot.read_at(0, &mut bytes)?;
            let header = Header::decode(&bytes[..read]);
            self.generation = header.as_ref().map_or(0, |it| it.generation).max(self.generation);
            let is_newest = |header: &Header| {
                let known = self.files.get(&header.path);
                known.is_none_or(|known| known.header.generation <= header.generation)
            };
            match header.filter(is_newest) {
                Some(header) => self.insert(Entry { slot, header, is_locked: Rc::default() })?,
                None => self.release(slot)?,
            }
        }
        Ok(())
    }

    fn release(&mut self, slot: Rc<dyn Slot>) -> io::Result<()> {
        let emptied = slot.set_len(0);
        self.free.push(slot);
        emptied
    }

    fn insert(&mut self, entry: Entry) -> io::Result<()> {
        match self.files.insert(entry.header.path.clone(), entry) {
            Some(old) => self.release(old.slot),
            None => Ok(()),
        }
    }

    fn next_header(&mut self, path: &str) -> Header {
        self.generation += 1;
        let modified = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
        Header { generation: self.generation, modified, path: path.to_owned() }
    }

    /// Opens the file at `path`; creates it if requested.
    fn open(&mut self, path: &str, create: bool) -> io::Result<Entry> {
        if let Some(entry) = self.files.get(path) {
            return Ok(entry.clone());
        }
        if !create {
            return Err(not_found(path));
        }
        let header = self.next_header(path);
        let bytes = header.encode()?;
        let Some(slot) = self.free.pop() else {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "too many files"));
        };
        if let Err(error) = slot.write_at(0, &bytes) {
            let _ = self.release(slot);
            return Err(error);
        }
        let entry = Entry { slot, header, is_locked: Rc::default() };
        self.files.insert(path.to_owned(), entry.clone());
        Ok(entry)
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        let entry = self.files.remove(path).ok_or_else(|| not_found(path))?;
        self.release(entry.slot)
    }

    /// Lists the files below a folder, the oldest first.
    fn files_below(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut found: Vec<&Header> = self.files.values().map(|entry| &entry.header).collect();
        found.retain(|header| is_below(folder, &header.path));
        if found.is_empty() {
            return Err(not_found(folder));
        }
        found.sort_by_key(|header| header.generation);
        Ok(found.into_iter().map(|header| header.path.clone()).collect())
    }

    fn is_folder(&self, path: &str) -> bool {
        path.is_empty() || self.files.keys().any(|known| is_below(path, known))
    }

    fn remove_folder(&mut self, folder: &str) -> io::Result<()> {
        self.files_below(folder)?.iter().try_for_each(|path| self.remove(path))
    }

    /// Renames a file or a folder, replacing an existing file. Files of a folder are renamed in the
    /// order of their creation, so that the last one, which makes a checkpoint valid, comes last.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        if self.files.contains_key(from) {
            return self.rename_file(from, to);
        }
        for path in self.files_below(from)? {
            self.rename_file(&path, &format!("{to}{}", &path[from.len()..]))?;
        }
        Ok(())
    }

    fn rename_file(&mut self, from: &str, to: &str) -> io::Result<()> {
        let entry = self.files.get(from).cloned().ok_or_else(|| not_found(from))?;
        let header = Header { modified: entry.header.modified, ..self.next_header(to) };
        let bytes = header.encode()?;
        entry.slot.write_at(0, &bytes)?;
        entry.slot.flush()?;
        self.files.remove(from);
        self.insert(Entry { header, ..entry })
    }

    fn names(&self, folder: &str) -> io::Result<BTreeSet<String>> {
        if !self.is_folder(folder) {
            return Err(not_found(folder));
        }
        let start = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let name = |path: &String| Some(path.strip_prefix(&start)?.split('/').next()?.to_owned());
        Ok(self.files.keys().filter_map(name).collect())
    }
}

/// A slot in memory, for pages without access to storage.
#[derive(Debug, Default)]
pub struct InMemory(RefCell<Vec<u8>>);

impl Slot for InMemory {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow().get(at as usize..).unwrap_or_default().read(buffer)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.borrow_mut();
        let mut writer = Cursor::new(&mut *all);
        writer.set_position(at);
        writer.write_all(bytes)
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
