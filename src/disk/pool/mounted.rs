//! The file system of this thread's pool, under the names of `std::fs`.

pub use std::fs::TryLockError;

use super::*;

thread_local! {
    /// Global like the file system of an operating system.
    pub(super) static DISK: RefCell<Pool> = RefCell::default();
}

/// Adds slots to the pool of this thread, see [`Pool::add`].
pub fn mount(slots: Vec<Rc<dyn Slot>>) -> io::Result<()> {
    DISK.with_borrow_mut(|disk| disk.add(slots))
}

/// Counts the slots of this thread that are not in use.
pub fn free_slots() -> usize {
    DISK.with_borrow(|disk| disk.free.len())
}

#[derive(Debug)]
pub struct File {
    entry: Entry,
    at: u64,
    append: bool,
    holds_lock: Cell<bool>,
}

impl File {
    fn at(path: &Path, create: bool) -> io::Result<Self> {
        let entry = DISK.with_borrow_mut(|disk| disk.open(&key(path), create))?;
        Ok(Self { entry, at: 0, append: false, holds_lock: Cell::new(false) })
    }

    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::at(path.as_ref(), false)
    }

    /// Opens an empty file: creates it, or truncates the one that exists.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = Self::at(path.as_ref(), true)?;
        file.entry.slot.set_len(HEADER)?;
        Ok(file)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.entry.slot.size()?.saturating_sub(HEADER))
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata { len: self.len()?, folder: false, modified: self.entry.header.modified })
    }

    pub fn sync_all(&self) -> io::Result<()> {
        self.entry.slot.flush()
    }

    pub fn try_lock(&self) -> Result<(), TryLockError> {
        if !self.holds_lock.get() && self.entry.is_locked.replace(true) {
            return Err(TryLockError::WouldBlock);
        }
        self.holds_lock.set(true);
        Ok(())
    }

    pub fn try_lock_shared(&self) -> Result<(), TryLockError> {
        if self.entry.is_locked.get() { Err(TryLockError::WouldBlock) } else { Ok(()) }
    }

    pub fn unlock(&self) -> io::Result<()> {
        if self.holds_lock.replace(false) {
            self.entry.is_locked.set(false);
        }
        Ok(())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = self.unlock();
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.entry.slot.read_at(HEADER + self.at, buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.append {
            self.at = self.len()?;
        }
        self.entry.slot.write_at(HEADER + self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.len()?, by),
            SeekFrom::Current(by) => (self.at, by),
        };
        self.at = from.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

pub fn append(path: impl AsRef<Path>) -> io::Result<File> {
    let mut file = File::at(path.as_ref(), true)?;
    file.append = true;
    Ok(file)
}

/// Opens a file. A browser's storage has nothing but files, and they are the page's own.
pub fn open_own(path: impl AsRef<Path>) -> io::Result<File> {
    File::open(path)
}

pub fn create_own(path: impl AsRef<Path>) -> io::Result<File> {
    File::create(path)
}

/// Returns an error if `path` does not exist.
pub fn check_own(path: &Path) -> io::Result<()> {
    metadata(path).map(drop)
}

/// Does nothing: a folder exists as long as it has files.
pub fn own_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

pub fn is_same(_: &File, _: &Path) -> bool {
    true
}

/// Returns `None`: the errors of a browser's storage speak for themselves.
pub fn hint(_: &io::Error) -> Option<&'static str> {
    None
}

/// Returns `None`: a browser does not report it.
pub fn free_space(_: &Path) -> Option<u64> {
    None
}

/// A folder that this page works in, which nobody moves.
#[derive(Debug)]
pub struct HeldFolder;

impl HeldFolder {
    pub fn open(_: &Path) -> io::Result<Self> {
        Ok(Self)
    }

    pub fn is_in_place(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    len: u64,
    folder: bool,
    modified: u64,
}

#[allow(clippy::len_without_is_empty, reason = "as in std::fs")]
impl Metadata {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_dir(&self) -> bool {
        self.folder
    }

    pub fn is_file(&self) -> bool {
        !self.folder
    }

    /// Returns the time of creation or of the last rename.
    pub fn modified(&self) -> io::Result<SystemTime> {
        Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(self.modified))
    }
}

#[derive(Clone, Debug)]
pub struct DirEntry(PathBuf);

impl DirEntry {
    pub fn file_name(&self) -> std::ffi::OsString {
        self.0.file_name().unwrap_or_default().to_owned()
    }

    pub fn path(&self) -> PathBuf {
        self.0.clone()
    }

    pub fn file_type(&self) -> io::Result<Metadata> {
        metadata(&self.0)
    }
}

pub fn read_dir(path: impl AsRef<Path>) -> io::Result<std::vec::IntoIter<io::Result<DirEntry>>> {
    let folder = path.as_ref();
    let names = DISK.with_borrow(|disk| disk.names(&key(folder)))?;
    let entries: Vec<_> = names.into_iter().map(|name| Ok(DirEntry(folder.join(name)))).collect();
    Ok(entries.into_iter())
}

pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref();
    if DISK.with_borrow(|disk| disk.is_folder(&key(path))) {
        return Ok(Metadata { len: 0, folder: true, modified: 0 });
    }
    File::open(path)?.metadata()
}

/// Does nothing: a folder exists as long as it has files.
pub fn create_dir_all(_: impl AsRef<Path>) -> io::Result<()> {
    Ok(())
}

/// Does nothing: an empty folder does not exist.
pub fn remove_dir(_: impl AsRef<Path>) -> io::Result<()> {
    Ok(())
}

pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len() as usize);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    io::read_to_string(File::open(path)?)
}

pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    File::create(path)?.write_all(content.as_ref())
}

/// Replaces the content of a file atomically: after a crash the file has either the old or the new
/// content.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = format!("{}.new", key(path));
    let written = write(&temporary, content).and_then(|()| sync_file(Path::new(&temporary)));
    if written.is_err() {
        let _ = remove_file(&temporary);
    }
    written.and_then(|()| rename(&temporary, path))
}

pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    DISK.with_borrow_mut(|disk| disk.rename(&key(from.as_ref()), &key(to.as_ref())))
}

pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    DISK.with_borrow_mut(|disk| disk.remove(&key(path.as_ref())))
}

pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    DISK.with_borrow_mut(|disk| disk.remove_folder(&key(path.as_ref())))
}

/// Writes the buffered data of a file to the storage.
pub fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Does nothing: paths are written to the storage at once.
pub fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

pub fn lock(file: &File) -> Result<(), TryLockError> {
    file.try_lock()
}
