//! The files of the operating system.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::folder_of;

mod plain;

pub use plain::*;
pub use std::fs::{
    DirEntry, File, TryLockError, metadata, read, read_dir, read_to_string, remove_dir, write,
};

#[cfg(test)]
use super::recorder::{Call, note};

/// Replaces the content of a file atomically: after a crash the file has either the old or the
/// new content. An existing file keeps its permissions, and a new one gets those that the umask allows. A link
/// is replaced by a file.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = temporary(folder_of(path), path)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    #[cfg(test)]
    note(Call::SyncFile(file.path().to_owned()));
    // Not `persist`, which fails on Windows while another process reads `path`.
    let (file, written) = file.keep().map_err(|error| error.error)?;
    drop(file);
    if let Err(error) = rename(&written, path) {
        let _ = remove_file(&written);
        return Err(error);
    }
    sync_folder(folder_of(path))
}

/// Creates a folder, and those above it that are missing, so that they survive a power failure.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let is_new = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let new: Vec<&Path> = path.ancestors().take_while(is_new).collect();
    fs::create_dir_all(path)?;
    for folder in new {
        match sync_folder(folder_of(folder)) {
            // A user may create folders in a folder without the right to list it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// Creates a file in `folder` that is to become `path`.
#[cfg(unix)]
fn temporary(folder: &Path, path: &Path) -> io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    // The system applies the umask. Without this, only the owner could read the file.
    let usual = fs::Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().permissions(usual).tempfile_in(folder)?;
    if let Ok(former) = fs::symlink_metadata(path)
        && former.is_file()
    {
        // Some disks have no permissions.
        let _ = file.as_file().set_permissions(former.permissions());
    }
    Ok(file)
}

#[cfg(not(unix))]
fn temporary(folder: &Path, _path: &Path) -> io::Result<tempfile::NamedTempFile> {
    tempfile::NamedTempFile::new_in(folder)
}

/// Returns the bytes that this user may still write to the disk of a path, if the system reports them.
pub fn free_space(path: &Path) -> Option<u64> {
    fs4::available_space(path).ok()
}

/// Makes the content of the file `target`, which is relative to the folder of `link`, available as `link`: as a
/// symbolic link, or as a second name or a copy where the system or the disk has none.
pub fn link_file(target: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    let linked = std::os::windows::fs::symlink_file(target, link);
    linked.or_else(|_| {
        let target = link.with_file_name(target);
        fs::hard_link(&target, link).or_else(|_| fs::copy(&target, link).map(drop))
    })
}

/// Returns true if `link` is what [`link_file`] makes of `target`, and there is a file. A second name or a copy is
/// only known by its length.
pub fn leads_to(link: &Path, target: &Path) -> bool {
    let length = |path: &Path| metadata(path).ok().filter(Metadata::is_file).map(|file| file.len());
    let Some(here) = length(link) else { return false };
    match fs::read_link(link) {
        Ok(found) => found == target,
        Err(_) => length(&link.with_file_name(target)) == Some(here),
    }
}

pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    #[cfg(test)]
    note(Call::Rename(from.as_ref().to_owned(), to.as_ref().to_owned()));
    patiently(|| fs::rename(&from, &to))
}

pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    patiently(|| fs::remove_file(&path))
}

pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    patiently(|| fs::remove_dir_all(&path))
}

/// Retries for two seconds, because Windows refuses to rename or remove a file that is open, or its
/// folder, and virus scanners and search indexers open each file that was just written.
fn patiently(action: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..40 {
        match action() {
            Err(error) if is_in_use(&error) => sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
    action()
}

fn is_in_use(error: &io::Error) -> bool {
    const ACCESS_DENIED: i32 = 5;
    const SHARING_VIOLATION: i32 = 32;
    const DIR_NOT_EMPTY: i32 = 145;
    let codes = [ACCESS_DENIED, SHARING_VIOLATION, DIR_NOT_EMPTY];
    cfg!(windows) && error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Syncs the content of a file to disk, so that it survives a power failure.
pub fn sync_file(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    note(Call::SyncFile(path.to_owned()));
    // Windows syncs a file only if it is open for writing.
    OpenOptions::new().write(true).open(path)?.sync_all()
}

/// Syncs the entries of a folder to disk, so that they survive a power failure. Does nothing on
/// Windows, which has no call for it and needs none.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(test)]
    note(Call::SyncFolder(folder.to_owned()));
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Locks a file, or returns `WouldBlock` if another process holds the lock. We retry for 0.2 s, because
/// a program that checks whether a run is active holds the lock for a moment. On Windows we retry for
/// two seconds, because it may release the lock of a killed process late.
pub fn lock(file: &File) -> Result<(), TryLockError> {
    let tries = if cfg!(windows) { 100 } else { 10 };
    for _ in 0..tries {
        if file.try_lock().is_ok() {
            return Ok(());
        }
        sleep(Duration::from_millis(20));
    }
    file.try_lock()
}

/// Returns true if `path` leads to this open file. Windows removes no name of a file that is open.
pub fn is_same(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let number = |found: fs::Metadata| (found.dev(), found.ino());
        let own = file.metadata().map(number);
        own.is_ok_and(|own| fs::symlink_metadata(path).is_ok_and(|found| number(found) == own))
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}

/// A folder that this process works in, which may be moved or deleted meanwhile.
#[derive(Debug)]
pub struct HeldFolder {
    path: PathBuf,
    /// Kept open so that no new folder gets its inode number.
    #[cfg(unix)]
    open: File,
}

impl HeldFolder {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_path_buf(),
            #[cfg(unix)]
            open: File::open(path)?,
        })
    }

    /// Returns false if the folder was deleted, moved or replaced. Windows moves no folder with open files.
    pub fn is_in_place(&self) -> bool {
        match fs::metadata(&self.path) {
            #[cfg(unix)]
            Ok(found) => {
                use std::os::unix::fs::MetadataExt;
                let is_same =
                    |own: fs::Metadata| (own.dev(), own.ino()) == (found.dev(), found.ino());
                self.open.metadata().is_ok_and(is_same)
            }
            #[cfg(not(unix))]
            Ok(found) => found.is_dir(),
            // A network drive may fail for a moment.
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }
}
