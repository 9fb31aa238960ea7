//! Files of the operating system or, in a browser, the private files of the page's origin.
//!
//! Both have the names of `std::fs`, so the code for runs, checkpoints and data is the same on the desktop
//! and in a browser.

#[cfg(any(target_arch = "wasm32", test))]
#[cfg_attr(test, allow(dead_code, reason = "the tests use a part of what the browser build uses"))]
pub mod pool;

use std::io;
use std::path::{Path, PathBuf};

/// Returns an absolute path for `path`, without following links. A browser has no working folder:
/// a path is the same there.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

pub fn exists(path: &Path) -> bool {
    metadata(path).is_ok()
}

pub fn is_dir(path: &Path) -> bool {
    metadata(path).is_ok_and(|found| found.is_dir())
}

pub fn is_file(path: &Path) -> bool {
    metadata(path).is_ok_and(|found| found.is_file())
}

/// Returns true if a path exists, or an error if this user may not look.
pub fn try_exists(path: &Path) -> io::Result<bool> {
    match metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        found => Ok(found.is_ok()),
    }
}

/// Returns the first of these names that a folder has. A command that would write files of these names into a
/// folder that it has not made would replace what another program, or a person, has written.
pub fn first_in<'a>(folder: &Path, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names.into_iter().find(|name| exists(&folder.join(name)))
}

/// Returns true for a file or a folder that has nothing in it.
pub fn is_empty(path: &Path) -> bool {
    let has_no_entry = || read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    metadata(path).is_ok_and(|it| if it.is_dir() { has_no_entry() } else { it.len() == 0 })
}

/// The kinds of folders that commands write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    Run,
    Data,
    Model,
}

/// The names of the kinds, and files that tell a folder of each.
const KINDS: [(FolderKind, &str, &[&str]); 3] = [
    (FolderKind::Run, "a run", &["events.jsonl"]),
    (FolderKind::Data, "data", &["train.bin", "val.bin"]),
    (
        FolderKind::Model,
        "a model",
        &["config.json", "model.safetensors", "model.safetensors.index.json"],
    ),
];

/// Returns what is wrong with writing a folder of kind `own` here, if it has files of another kind. A folder with
/// files of both kinds, as earlier versions made, may be written.
pub fn other_kind(folder: &Path, own: FolderKind) -> Option<String> {
    let of = |is_own: bool| {
        let kinds = KINDS.into_iter().filter(move |(kind, ..)| (*kind == own) == is_own);
        kinds.filter_map(|(_, name, files)| Some((name, first_in(folder, files.iter().copied())?)))
    };
    let (kind, file) = of(false).next().filter(|_| of(true).next().is_none())?;
    Some(format!("{} is the folder of {kind}: it contains {file}", folder.display()))
}

pub const OTHER_KIND_HINT: &str = "give another folder: each has a run, data or a model";

/// Returns true for the few lines that stand for a large file where Git has no LFS.
pub fn is_lfs_pointer(start: &[u8]) -> bool {
    start.starts_with(b"version https://git-lfs.github.com/")
}

/// The problem and the advice for such a file.
pub const LFS_POINTER: &str = "this is a pointer of Git LFS, not the file itself";
pub const LFS_HINT: &str =
    "install Git LFS and run `git lfs pull` in this folder, or download the files from their page";

/// The most bytes of a file that is read as a whole. A sparse file of many gigabytes costs whoever makes it
/// nothing. The largest tokenizers have 35 MB.
const MAX_FILE: u64 = 64 << 20;

/// The same for the record of a run, which is thinned from 64 MiB on, and its tables, which are not.
const MAX_RECORD: u64 = 1 << 30;

/// Reads a file of wgpt's own folders, of at most 64 MiB, see [`open_own`].
pub fn read_own(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_all(open_own(path)?, MAX_FILE)
}

/// Reads the text of a file of wgpt's own folders, of at most 64 MiB, see [`open_own`].
pub fn read_own_text(path: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(read_own(path)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a record of wgpt's own folders, of at most 1 GiB, see [`open_own`].
pub fn read_record(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_all(open_own(path)?, MAX_RECORD)
}

/// Reads a file of a model or a data folder, of at most 64 MiB, see [`open_regular`].
pub fn read_regular(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_all(open_regular(path)?, MAX_FILE)
}

fn read_all(file: File, most: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > most {
        let text = format!(
            "it has {} MiB, but files of its kind have at most {}",
            length >> 20,
            most >> 20
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut bytes = Vec::new();
    // It may grow.
    io::Read::read_to_end(&mut io::Read::take(file, most), &mut bytes)?;
    Ok(bytes)
}

/// Replaces the content of a file by a value as JSON, in a folder that need not exist yet.
pub fn replace_json(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    create_dir_all(path.parent().unwrap_or(path))?;
    replace(path, &serde_json::to_vec_pretty(value)?)
}

/// Renames a file or folder that is complete and synced, so that its new name survives a power failure.
pub fn publish(from: &Path, to: &Path) -> io::Result<()> {
    rename(from, to)?;
    sync_folder(folder_of(to))
}

fn folder_of(path: &Path) -> &Path {
    // The folder of a name alone is an empty path.
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(not(target_arch = "wasm32"))]
pub use native::*;
#[cfg(target_arch = "wasm32")]
pub use pool::mounted::{append as append_own, append as open_lock, open_own as open_regular, *};

/// Records the calls that make files survive a power failure, so that tests can check their order.
#[cfg(test)]
pub mod recorder {
    use std::cell::RefCell;
    use std::path::PathBuf;

    /// A call of [`disk`](super).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Call {
        SyncFile(PathBuf),
        /// The old and the new path.
        Rename(PathBuf, PathBuf),
        SyncFolder(PathBuf),
    }

    thread_local! {
        static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn note(call: Call) {
        CALLS.with_borrow_mut(|calls| calls.push(call));
    }

    /// Returns the result of `action` and the calls that it made on this thread.
    pub fn record<R>(action: impl FnOnce() -> R) -> (R, Vec<Call>) {
        CALLS.take();
        let result = action();
        (result, CALLS.take())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::recorder::{Call, record};
    use super::*;

    #[test]
    fn a_replaced_file_is_synced_before_its_name_and_its_folder_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let ((), calls) = record(|| replace(&path, b"new").unwrap());
        let [Call::SyncFile(written), Call::Rename(from, to), Call::SyncFolder(synced)] =
            &calls[..]
        else {
            panic!("{calls:?}");
        };
        assert_eq!((written, to.as_path(), synced.as_path()), (from, &*path, folder.path()));
    }

    #[test]
    fn new_folders_are_synced_in_the_folders_that_they_are_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let ((), calls) = record(|| create_dir_all(&path).unwrap());
        assert_eq!(calls, [folder.path().join("a"), folder.path().into()].map(Call::SyncFolder));
        assert_eq!(record(|| create_dir_all(&path).unwrap()).1, [], "it exists");
    }

    /// A view may read a file that is replaced, and a killed process may have left another behind.
    #[test]
    fn files_are_replaced_while_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        replace(&path, b"old").unwrap();
        let mut reader = File::open(&path).unwrap();
        replace(&path, b"new").unwrap();
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!((seen.as_str(), read(&path).unwrap().as_slice()), ("old", &b"new"[..]));
        assert_eq!(read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        assert!(replace(&folder.path().join("no/folder"), b"").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_is_in_place_until_it_is_moved_or_another_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("a"), folder.path().join("b"));
        own_folder(&path).unwrap();
        own_folder(&path).unwrap();
        let held = HeldFolder::open(&path).unwrap();
        assert!(held.is_in_place());
        rename(&path, &moved).unwrap();
        assert!(!held.is_in_place());
        std::os::unix::fs::symlink(&moved, &path).unwrap();
        assert!(held.is_in_place(), "a link to the folder leads to it");
        assert_eq!(hint(&own_folder(&path).unwrap_err()), hint(&check_own(&path).unwrap_err()));
        remove_file(&path).unwrap();
        own_folder(&path).unwrap();
        assert!(!held.is_in_place());
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        // It takes no space.
        File::create(&path).unwrap().set_len(4 << 30).unwrap();
        for read in [read_own(&path), read_regular(&path), read_record(&path)] {
            let error = read.unwrap_err().to_string();
            assert!(error.starts_with("it has 4096 MiB"), "{error}");
        }
        assert!(read_own_text(&path).is_err());
    }

    /// A backup may have the files of a run as second names, and an archive names of files elsewhere.
    #[cfg(unix)]
    #[test]
    fn another_name_of_a_file_keeps_its_content() {
        use std::io::Write;

        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["log.txt", "other"].map(|name| folder.path().join(name));
        for write in [append_own, create_own] {
            std::fs::write(&other, "one\n").unwrap();
            std::fs::hard_link(&other, &path).unwrap();
            write(path.clone()).unwrap().write_all(b"two\n").unwrap();
            assert_eq!(read(&other).unwrap(), b"one\n");
            let text = read_own_text(&path).unwrap();
            assert!(["one\ntwo\n", "two\n"].contains(&&*text), "{text}");
            remove_file(&path).unwrap();
        }
    }

    #[test]
    fn what_does_not_exist_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let nothing = folder.path().join("nothing");
        let begun = std::time::Instant::now();
        assert!(rename(&nothing, folder.path().join("b")).is_err());
        assert!(remove_file(&nothing).is_err() && remove_dir_all(&nothing).is_err());
        assert!(begun.elapsed().as_secs() < 1);
    }
}
