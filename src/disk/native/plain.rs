//! Opens files in folders that somebody else may have made: run folders and models.
//!
//! A link in a run folder could lead a write to any file of the user, and reading a named pipe or a device could
//! take forever. So wgpt opens only regular files there. In its own folders, which it also writes to, it follows
//! no links. The folder itself may be a link, because a person has named it. A path is checked before it is
//! opened: a folder is not defended against somebody who changes it meanwhile.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// The reason why wgpt does not open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("it is a link")]
    Link,
    #[error("it is not a regular file")]
    Special,
}

/// Returns what to do about an error, if its reason is known.
pub fn hint(error: &io::Error) -> Option<&'static str> {
    let refused = error.get_ref().and_then(|inner| inner.downcast_ref());
    match refused {
        Some(Refused::Link) => Some(
            "replace the link by the file or folder itself: wgpt follows no links inside its own \
             folders, because they may come from somebody else",
        ),
        Some(Refused::Special) => Some(
            "give a regular file: this is a device, a pipe or a socket, which wgpt does not use here",
        ),
        None => match error.kind() {
            ErrorKind::OutOfMemory => Some("close other programs"),
            ErrorKind::PermissionDenied => {
                Some("check the owner and the permissions: it may belong to another user")
            }
            ErrorKind::NotFound => Some("check the path"),
            ErrorKind::IsADirectory => Some(
                "a folder is in the place of a file: give another path, or move the folder away",
            ),
            ErrorKind::NotADirectory => {
                Some("a file is in the place of a folder: give another path, or move the file away")
            }
            ErrorKind::AlreadyExists => {
                Some("something of this name is already there: give another path, or move it away")
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Some("free some space on this disk, or use another one")
            }
            ErrorKind::ReadOnlyFilesystem => Some("this disk is read-only: use another one"),
            ErrorKind::InvalidData => {
                Some("the file is damaged, or is not what its name says: give another one")
            }
            _ => None,
        },
    }
}

/// Opens a regular file of wgpt's own folders for reading.
pub fn open_own(path: impl AsRef<Path>) -> io::Result<File> {
    open(path.as_ref(), OpenOptions::new().read(true), Links::Refused)
}

/// Opens a regular file of a model or a data folder for reading. It may be a link, as the files in the cache of
/// the Hugging Face Hub are.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    open(path.as_ref(), OpenOptions::new().read(true), Links::Followed)
}

/// Creates a file in one of wgpt's own folders, in place of one that exists. Another name of that one keeps its
/// content.
pub fn create_own(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    if has_other_name(path) {
        fs::remove_file(path)?;
    }
    let mut options = OpenOptions::new();
    open(path, options.write(true).create(true).truncate(true), Links::Refused)
}

/// Opens a file of wgpt's own folders for appending, and creates it if it does not exist. A file with another
/// name becomes a copy first, so that the other one keeps its content.
pub fn append_own(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    if has_other_name(path) {
        super::replace(path, &super::super::read_record(path)?)?;
    }
    let mut options = OpenOptions::new();
    // Windows locks a file only if it is open for more than appending.
    open(path, options.read(true).append(true).create(true), Links::Refused)
}

/// Opens a file that processes lock, and creates it if it does not exist. Nothing is written to it, so that it may
/// have other names.
pub fn open_lock(path: impl AsRef<Path>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    open(path.as_ref(), options.read(true).append(true).create(true), Links::Refused)
}

/// Returns true for a file with several names (hard links), which a backup or a downloaded archive may have made:
/// what is written to one is written to all.
#[cfg(unix)]
fn has_other_name(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.nlink() > 1)
}

#[cfg(not(unix))]
fn has_other_name(_path: &Path) -> bool {
    false
}

/// Checks that `path` is a regular file or a folder, and no link.
pub fn check_own(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() { Ok(()) } else { check(&found) }
}

/// Creates a folder in one of wgpt's own folders, which exists, if it does not have it yet.
pub fn own_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        // Another rank may have created it.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            check_own(path)?;
            if fs::metadata(path)?.is_dir() { Ok(()) } else { Err(error) }
        }
        created => created,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Refused,
    Followed,
}

fn open(path: &Path, options: &mut OpenOptions, links: Links) -> io::Result<File> {
    let found =
        if links == Links::Refused { fs::symlink_metadata(path) } else { fs::metadata(path) };
    match found {
        // A device may act when it is opened, so it is refused before.
        Ok(found) => check(&found)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let no_link = if links == Links::Refused { libc::O_NOFOLLOW } else { 0 };
        // A named pipe would be waited for.
        options.custom_flags(no_link | libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Refuses everything but a regular file. On Windows a junction counts as a link, too.
fn check(found: &Metadata) -> io::Result<()> {
    if found.is_symlink() {
        Err(io::Error::new(ErrorKind::InvalidInput, Refused::Link))
    } else if found.is_dir() {
        Err(ErrorKind::IsADirectory.into())
    } else if !found.is_file() {
        Err(io::Error::new(ErrorKind::InvalidInput, Refused::Special))
    } else {
        Ok(())
    }
}
