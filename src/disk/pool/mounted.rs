//! The file system of this thread's pool, under the names of `std::fs`.

use super::*;

thread_local! {
    /// Global like the file system of an operating system.
    static DISK: RefCell<Pool> = RefCell::default();
}

fn with<R>(access: impl FnOnce(&mut Pool) -> R) -> R {
    DISK.with(|disk| access(&mut disk.borrow_mut()))
}

/// Adds slots to the pool of this thread, see [`Pool::add`].
///
/// # Errors
/// If a slot cannot be read or truncated.
pub fn mount(slots: Vec<Rc<dyn Slot>>) -> io::Result<()> {
    with(|disk| disk.add(slots))
}

/// Counts the slots of this thread that are not in use.
pub fn free_slots() -> usize {
    with(|disk| disk.free())
}

/// An error of locking a file.
#[derive(Debug)]
pub enum TryLockError {
    /// Another handle holds the lock.
    WouldBlock,
    /// An I/O error.
    Error(io::Error),
}

/// An open file.
pub struct File {
    path: String,
    slot: Rc<dyn Slot>,
    at: u64,
    append: bool,
    holds_lock: RefCell<bool>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

impl File {
    fn of(path: String, slot: Rc<dyn Slot>, append: bool) -> Self {
        Self { path, slot, at: 0, append, holds_lock: RefCell::new(false) }
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// If the file does not exist.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = key(path.as_ref());
        let slot = with(|disk| disk.open(&path, false, false))?;
        Ok(Self::of(path, slot, false))
    }

    /// Creates a file, or truncates an existing one.
    ///
    /// # Errors
    /// If the storage is full.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().create(true).write(true).truncate(true).open(path)
    }

    /// Returns the length and the modification time.
    ///
    /// # Errors
    /// If the length cannot be read.
    pub fn metadata(&self) -> io::Result<Metadata> {
        let modified = with(|disk| disk.files.get(&self.path).map(|entry| entry.header.modified));
        let len = self.slot.size()?.saturating_sub(HEADER);
        Ok(Metadata { len, folder: false, modified: modified.unwrap_or(0) })
    }

    /// Writes buffered data to the storage.
    ///
    /// # Errors
    /// If the browser reports one.
    pub fn sync_all(&self) -> io::Result<()> {
        self.slot.flush()
    }

    /// Locks the file exclusively.
    ///
    /// # Errors
    /// `WouldBlock` if another handle holds the lock.
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        if *self.holds_lock.borrow() {
            return Ok(());
        }
        if !with(|disk| disk.locked.insert(self.path.clone())) {
            return Err(TryLockError::WouldBlock);
        }
        self.holds_lock.replace(true);
        Ok(())
    }

    /// Checks that no handle holds the lock.
    ///
    /// # Errors
    /// `WouldBlock` if one does.
    pub fn try_lock_shared(&self) -> Result<(), TryLockError> {
        match with(|disk| disk.locked.contains(&self.path)) {
            true => Err(TryLockError::WouldBlock),
            false => Ok(()),
        }
    }

    /// Releases the lock, if this handle holds it.
    ///
    /// # Errors
    /// Never.
    pub fn unlock(&self) -> io::Result<()> {
        if self.holds_lock.replace(false) {
            with(|disk| disk.locked.remove(&self.path));
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
        let read = self.slot.read_at(HEADER + self.at, buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.append {
            self.at = self.slot.size()?.saturating_sub(HEADER);
        }
        self.slot.write_at(HEADER + self.at, bytes)?;
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
            SeekFrom::End(by) => (self.slot.size()?.saturating_sub(HEADER), by),
            SeekFrom::Current(by) => (self.at, by),
        };
        let error = || io::Error::new(io::ErrorKind::InvalidInput, "before the start of the file");
        self.at = from.checked_add_signed(by).ok_or_else(error)?;
        Ok(self.at)
    }
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    create: bool,
    truncate: bool,
    append: bool,
}

impl OpenOptions {
    /// Returns options for reading.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the file if it does not exist.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Has no effect: every file can be read and written.
    pub fn write(self, _write: bool) -> Self {
        self
    }

    /// Truncates the file.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Writes at the end of the file.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Opens a file with these options.
    ///
    /// # Errors
    /// If the file does not exist, or cannot be created because the storage is full.
    pub fn open(self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = key(path.as_ref());
        let slot = with(|disk| disk.open(&path, self.create, self.truncate))?;
        Ok(File::of(path, slot, self.append))
    }
}

/// Metadata of a file or folder.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    len: u64,
    folder: bool,
    modified: u64,
}

#[allow(clippy::len_without_is_empty, reason = "as in std::fs")]
impl Metadata {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true for a folder.
    pub fn is_dir(&self) -> bool {
        self.folder
    }

    /// Returns true for a file.
    pub fn is_file(&self) -> bool {
        !self.folder
    }

    /// Returns the time of creation or of the last rename.
    ///
    /// # Errors
    /// Never.
    pub fn modified(&self) -> io::Result<SystemTime> {
        Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(self.modified))
    }
}

/// An entry of a folder.
#[derive(Clone, Debug)]
pub struct DirEntry {
    folder: PathBuf,
    name: String,
}

impl DirEntry {
    /// Returns the name.
    pub fn file_name(&self) -> std::ffi::OsString {
        self.name.clone().into()
    }

    /// Returns the path: the folder and the name.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Returns the metadata, which distinguishes files from folders.
    ///
    /// # Errors
    /// If the entry no longer exists.
    pub fn file_type(&self) -> io::Result<Metadata> {
        metadata(self.path())
    }
}

/// Lists the entries of a folder, sorted by name.
///
/// # Errors
/// If the folder does not exist.
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<std::vec::IntoIter<io::Result<DirEntry>>> {
    let folder = path.as_ref().to_path_buf();
    let names = with(|disk| disk.names(&key(&folder)))?;
    let entry = |name| Ok(DirEntry { folder: folder.clone(), name });
    Ok(names.into_iter().map(entry).collect::<Vec<_>>().into_iter())
}

/// Returns the metadata of a file or folder.
///
/// # Errors
/// If it does not exist.
pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref();
    if is_dir(path) {
        return Ok(Metadata { len: 0, folder: true, modified: 0 });
    }
    File::open(path)?.metadata()
}

/// Creates a folder. After a restart it exists only if it has files.
///
/// # Errors
/// Never.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.folders.insert(key(path.as_ref())));
    Ok(())
}

/// Reads a file.
///
/// # Errors
/// If the file does not exist.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len() as usize);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file as text.
///
/// # Errors
/// If the file does not exist or is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes a file, replacing an existing one.
///
/// # Errors
/// If the storage is full.
pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    File::create(path)?.write_all(content.as_ref())
}

/// Replaces the content of a file atomically: after a crash the file has either the old or the new
/// content.
///
/// # Errors
/// If the new content cannot be written.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = format!("{}.new", key(path));
    let written = write(&temporary, content).and_then(|()| File::open(&temporary)?.sync_all());
    match written {
        Ok(()) => rename(&temporary, path),
        Err(error) => {
            let _ = remove_file(&temporary);
            Err(error)
        }
    }
}

/// Renames a file or folder.
///
/// # Errors
/// If it does not exist, or the browser reports an error.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.rename(&key(from.as_ref()), &key(to.as_ref())))
}

/// Removes a file.
///
/// # Errors
/// If the file does not exist.
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.remove(&key(path.as_ref())))
}

/// Removes a folder and its contents.
///
/// # Errors
/// If the folder does not exist.
pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.remove_folder(&key(path.as_ref())))
}

/// Returns true if a file or folder exists at `path`.
pub fn exists(path: &Path) -> bool {
    is_file(path) || is_dir(path)
}

/// Returns true if a folder exists at `path`.
pub fn is_dir(path: &Path) -> bool {
    with(|disk| disk.is_folder(&key(path)))
}

/// Returns true if a file exists at `path`.
pub fn is_file(path: &Path) -> bool {
    with(|disk| disk.files.contains_key(&key(path)))
}

/// Writes the buffered data of a file to the storage.
///
/// # Errors
/// If the file does not exist, or the browser reports an error.
pub fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Does nothing: paths are written to the storage at once.
///
/// # Errors
/// Never.
pub fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Locks a file.
///
/// # Errors
/// `WouldBlock` if another handle holds the lock.
pub fn lock(file: &File) -> Result<(), TryLockError> {
    file.try_lock()
}
