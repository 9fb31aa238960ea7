//! The pool of this thread, under the names of `std::fs`.

use super::*;

thread_local! {
    /// A program has one file system, which it does not hand around.
    static DISK: RefCell<Pool> = RefCell::default();
}

fn with<R>(work: impl FnOnce(&mut Pool) -> R) -> R {
    DISK.with(|disk| work(&mut disk.borrow_mut()))
}

/// Gives this thread more slots: see [`Pool::add`].
///
/// # Errors
/// If a slot cannot be read or emptied.
pub fn mount(slots: Vec<Rc<dyn Slot>>) -> io::Result<()> {
    with(|disk| disk.add(slots))
}

/// Slots of this thread that are not in use.
pub fn free_slots() -> usize {
    with(|disk| disk.free())
}

/// Why a file was not locked.
#[derive(Debug)]
pub enum TryLockError {
    /// Another has locked it.
    WouldBlock,
    /// The system refused.
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

    /// Opens a file to read it.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = key(path.as_ref());
        let slot = with(|disk| disk.open(&path, false, false))?;
        Ok(Self::of(path, slot, false))
    }

    /// Makes a file, or empties it.
    ///
    /// # Errors
    /// If there is no room.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().create(true).write(true).truncate(true).open(path)
    }

    /// What is known of it.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn metadata(&self) -> io::Result<Metadata> {
        let modified = with(|disk| disk.files.get(&self.path).map(|entry| entry.head.modified));
        let len = self.slot.size()?.saturating_sub(HEAD);
        Ok(Metadata { len, folder: false, modified: modified.unwrap_or(0) })
    }

    /// Makes what was written survive.
    ///
    /// # Errors
    /// If the browser refuses.
    pub fn sync_all(&self) -> io::Result<()> {
        self.slot.flush()
    }

    /// Locks it for this file alone.
    ///
    /// # Errors
    /// `WouldBlock` if another has done so.
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

    /// Looks whether another has locked it.
    ///
    /// # Errors
    /// `WouldBlock` if so.
    pub fn try_lock_shared(&self) -> Result<(), TryLockError> {
        match with(|disk| disk.locked.contains(&self.path)) {
            true => Err(TryLockError::WouldBlock),
            false => Ok(()),
        }
    }

    /// Gives the lock back, if it holds it.
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
        let read = self.slot.read_at(HEAD + self.at, buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.append {
            self.at = self.slot.size()?.saturating_sub(HEAD);
        }
        self.slot.write_at(HEAD + self.at, bytes)?;
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
            SeekFrom::End(by) => (self.slot.size()?.saturating_sub(HEAD), by),
            SeekFrom::Current(by) => (self.at, by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "before the start of the file");
        self.at = from.checked_add_signed(by).ok_or_else(before)?;
        Ok(self.at)
    }
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    create: bool,
    truncate: bool,
    append: bool,
}

impl OpenOptions {
    /// To read alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Make it if there is none.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Write to it. Every file can be read and written.
    pub fn write(self, _write: bool) -> Self {
        self
    }

    /// Empty it.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Write at its end.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Opens it.
    ///
    /// # Errors
    /// If there is none, or no room to make one.
    pub fn open(self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = key(path.as_ref());
        let slot = with(|disk| disk.open(&path, self.create, self.truncate))?;
        Ok(File::of(path, slot, self.append))
    }
}

/// What is known of a file or a folder.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    len: u64,
    folder: bool,
    modified: u64,
}

#[allow(clippy::len_without_is_empty, reason = "as in std::fs")]
impl Metadata {
    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is a folder.
    pub fn is_dir(&self) -> bool {
        self.folder
    }

    /// When it was made or named.
    ///
    /// # Errors
    /// Never.
    pub fn modified(&self) -> io::Result<SystemTime> {
        Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(self.modified))
    }
}

/// A name in a folder.
#[derive(Clone, Debug)]
pub struct DirEntry {
    folder: PathBuf,
    name: String,
}

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> std::ffi::OsString {
        self.name.clone().into()
    }

    /// The folder and the name.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// What it is.
    ///
    /// # Errors
    /// If it is gone.
    pub fn file_type(&self) -> io::Result<Metadata> {
        metadata(self.path())
    }
}

/// The names in a folder, sorted.
///
/// # Errors
/// If there is no such folder.
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<std::vec::IntoIter<io::Result<DirEntry>>> {
    let folder = path.as_ref().to_path_buf();
    let names = with(|disk| disk.names(&key(&folder)))?;
    let entry = |name| Ok(DirEntry { folder: folder.clone(), name });
    Ok(names.into_iter().map(entry).collect::<Vec<_>>().into_iter())
}

/// What is known of a file or a folder.
///
/// # Errors
/// If there is none.
pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref();
    if is_dir(path) {
        return Ok(Metadata { len: 0, folder: true, modified: 0 });
    }
    File::open(path)?.metadata()
}

/// Makes a folder. It lasts as long as there are files in it.
///
/// # Errors
/// Never.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.folders.insert(key(path.as_ref())));
    Ok(())
}

/// A file's content.
///
/// # Errors
/// If there is none.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len() as usize);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file's content as text.
///
/// # Errors
/// If there is none, or it is no text.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Makes a file with this content.
///
/// # Errors
/// If there is no room.
pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    File::create(path)?.write_all(content.as_ref())
}

/// Replaces a file by another content: whatever happens, one of the two is there, whole.
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

/// Names a file or a folder anew.
///
/// # Errors
/// If there is none, or the browser refuses.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.rename(&key(from.as_ref()), &key(to.as_ref())))
}

/// Removes a file.
///
/// # Errors
/// If there is none.
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.remove(&key(path.as_ref())))
}

/// Removes a folder and all that is in it.
///
/// # Errors
/// If there is none.
pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    with(|disk| disk.remove_folder(&key(path.as_ref())))
}

/// Whether there is a file or a folder.
pub fn exists(path: &Path) -> bool {
    is_file(path) || is_dir(path)
}

/// Whether there is a folder.
pub fn is_dir(path: &Path) -> bool {
    with(|disk| disk.is_folder(&key(path)))
}

/// Whether there is a file.
pub fn is_file(path: &Path) -> bool {
    with(|disk| disk.files.contains_key(&key(path)))
}

/// Names survive as soon as they are written.
///
/// # Errors
/// Never.
pub fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Locks a file.
///
/// # Errors
/// `WouldBlock` if another has locked it.
pub fn lock(file: &File) -> Result<(), TryLockError> {
    file.try_lock()
}
