//! Files: the operating system's, or in a browser a pool of files that the page's origin owns.
//!
//! What is used of `std::fs` goes through here, under the same names, so that whoever reads and
//! writes runs, checkpoints and data does not know where it is.

#[cfg(any(target_arch = "wasm32", test))]
pub mod pool;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::io::{self, Write};
    use std::path::Path;

    pub use std::fs::{
        DirEntry, File, OpenOptions, TryLockError, create_dir_all, metadata, read, read_dir,
        read_to_string, remove_dir_all, remove_file, rename, write,
    };

    /// Whether there is a file or a folder.
    pub fn exists(path: &Path) -> bool {
        path.exists()
    }

    /// Whether there is a folder.
    pub fn is_dir(path: &Path) -> bool {
        path.is_dir()
    }

    /// Whether there is a file.
    pub fn is_file(path: &Path) -> bool {
        path.is_file()
    }

    /// Replaces a file by another content: whatever happens, one of the two is there, whole.
    ///
    /// # Errors
    /// If the new content cannot be written.
    pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        super::sync_folder(folder)
    }

    /// Makes the names in a folder survive a power cut. Windows has no such call, and needs none.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn sync_folder(folder: &Path) -> io::Result<()> {
        if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
    }

    /// Locks a file. Whoever looks whether a run is going on holds its lock for a moment.
    ///
    /// # Errors
    /// `WouldBlock` if another process keeps it.
    pub fn lock(file: &File) -> Result<(), TryLockError> {
        for _ in 0..10 {
            if file.try_lock().is_ok() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        file.try_lock()
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub use native::{
    DirEntry, File, OpenOptions, TryLockError, create_dir_all, exists, is_dir, is_file, lock,
    metadata, read, read_dir, read_to_string, remove_dir_all, remove_file, rename, replace,
    sync_folder, write,
};
#[cfg(target_arch = "wasm32")]
pub use pool::mounted::{
    DirEntry, File, OpenOptions, TryLockError, create_dir_all, exists, is_dir, is_file, lock,
    metadata, mount, read, read_dir, read_to_string, remove_dir_all, remove_file, rename, replace,
    sync_folder, write,
};
