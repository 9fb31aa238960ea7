//! Files: those of the operating system or, in a browser, the private files of the page's origin.
//!
//! Both are used under the names of `std::fs`, so that the code for runs, checkpoints and data is
//! the same on the desktop and in a browser.

#[cfg(any(target_arch = "wasm32", test))]
#[cfg_attr(test, allow(dead_code, reason = "the tests use a part of what the browser build uses"))]
pub mod pool;

use std::path::{Path, PathBuf};

/// Returns an absolute path for `path`, without following links. A browser has no working folder:
/// a path is the same there.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::io::{self, Write};
    use std::path::Path;

    pub use std::fs::{
        DirEntry, File, OpenOptions, TryLockError, create_dir_all, metadata, read, read_dir,
        read_to_string, remove_dir_all, remove_file, rename, write,
    };

    /// Returns true if a file or folder exists at `path`.
    pub fn exists(path: &Path) -> bool {
        path.exists()
    }

    /// Returns true if a folder exists at `path`.
    pub fn is_dir(path: &Path) -> bool {
        path.is_dir()
    }

    /// Returns true if a file exists at `path`.
    pub fn is_file(path: &Path) -> bool {
        path.is_file()
    }

    /// Replaces the content of a file atomically: after a crash the file has either the old or the
    /// new content.
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

    /// Syncs the entries of a folder to disk, so that they survive a power failure. Does nothing on
    /// Windows, which has no call for it and needs none.
    ///
    /// # Errors
    /// If the folder cannot be opened or synced.
    pub fn sync_folder(folder: &Path) -> io::Result<()> {
        if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
    }

    /// Locks a file. Retries for 0.2 s, since a check of whether a run is active holds its lock for
    /// a moment.
    ///
    /// # Errors
    /// `WouldBlock` if another process holds the lock.
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
