//! What `wgpt get` is going to fetch, and the download itself.

use std::fmt;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use url::Url;

use super::address::shown;
use super::cache::RepoFolder;
use super::client::HubClient;
use super::error::{cannot, usage};
use super::fetch::{Remote, fetch, lock};
use super::hash::Hash;
use super::listing::{Listing, RepoFile};
use super::name::{Download, RepoKind, RepoName, is_safe_file_name};
use crate::disk;
use crate::protocol::Failure;
use crate::text::bytes;

/// The questions that `wgpt eval` answers, as their authors publish them, with their hash.
const HELLASWAG_URL: &str =
    "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl";
const HELLASWAG_SHA256: &str = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588";
/// Several times its size.
const HELLASWAG_MOST: u64 = 64 << 20;

/// The folder for files from elsewhere than the Hub.
const DATA_FOLDER: &str = "data";

/// The bytes that are fetched without asking.
pub const UNASKED: u64 = 1_000_000_000;

/// The free space that a disk should keep.
const RESERVE: u64 = 64 << 20;

/// Something that can be fetched, with its files and sizes.
pub struct Offer {
    client: HubClient,
    offered: Offered,
    /// `None` if unknown.
    pub licence: Option<String>,
}

enum Offered {
    Repo { name: RepoName, listing: Listing, files: Vec<RepoFile>, folder: RepoFolder },
    File { url: Url, path: PathBuf, hash: Option<Hash> },
}

/// A finished download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// A model, with its name and its folder in the cache.
    Model {
        name: RepoName,
        folder: PathBuf,
    },
    Texts {
        name: RepoName,
        folder: PathBuf,
    },
    /// A file by its URL, which nothing can verify.
    File(PathBuf),
    HellaSwag(PathBuf),
}

impl fmt::Display for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fetched::Model { name, folder } | Fetched::Texts { name, folder } => {
                write!(f, "{name} is in {}", folder.display())
            }
            Fetched::HellaSwag(path) => write!(f, "{}, verified", path.display()),
            Fetched::File(path) => {
                write!(f, "{}, not verified: nobody has published its hash", path.display())
            }
        }
    }
}

impl Offer {
    /// Looks up what can be fetched. Only this and [`fetch`](Self::fetch) open connections.
    pub fn of(download: Download) -> Result<Self, Failure> {
        let client = HubClient::new()?;
        let (url, hash, licence) = match download {
            Download::Hub(name) => return Self::of_repo(client, name),
            Download::HellaSwag => {
                let url = Url::parse(HELLASWAG_URL)
                    .map_err(|error| Failure::new(error.to_string(), ""))?;
                let hash = Hash::Sha256(HELLASWAG_SHA256.into());
                (url, Some(hash), Some("mit".into()))
            }
            Download::Url(url) => (url, None, None),
        };
        let path = Path::new(DATA_FOLDER).join(file_name(&url)?);
        Ok(Self { client, offered: Offered::File { url, path, hash }, licence })
    }

    fn of_repo(client: HubClient, name: RepoName) -> Result<Self, Failure> {
        let listing = Listing::request(&client, &name)?;
        let files = listing.choose(&name)?;
        // Under the typed name, by which other commands look for it.
        let folder = RepoFolder::of(listing.kind, &name.id)?;
        let licence = listing.licence.clone();
        Ok(Self { client, licence, offered: Offered::Repo { name, listing, files, folder } })
    }

    /// Describes it in a line: `hf:gpt2, a model: 5 files`.
    pub fn title(&self) -> String {
        match &self.offered {
            Offered::Repo { name, listing, files, .. } => {
                let kind = match listing.kind {
                    RepoKind::Model => "a model",
                    RepoKind::Dataset => "a data set",
                };
                let count = files.len();
                let gated = if listing.is_gated { ", behind conditions on its page" } else { "" };
                format!("{name}, {kind}{gated}: {count} file{}", if count == 1 { "" } else { "s" })
            }
            Offered::File { url, path, .. } => format!("{} -> {}", shown(url), path.display()),
        }
    }

    /// Returns the bytes of all files, if they are known.
    pub fn bytes(&self) -> Option<u64> {
        match &self.offered {
            Offered::Repo { files, .. } => Some(sum(files.iter().map(|file| file.size))),
            Offered::File { .. } => None,
        }
    }

    /// Returns the bytes that are not on the disk yet, if they are known.
    pub fn missing(&self) -> Option<u64> {
        let left = |file: &RepoFile, folder: &RepoFolder| {
            let blob = folder.blob(file.hash.hex());
            let have = length(&blob).or_else(|| length(&incomplete(&blob)));
            file.size.saturating_sub(have.unwrap_or(0))
        };
        match &self.offered {
            Offered::Repo { files, folder, .. } => {
                Some(sum(files.iter().map(|file| left(file, folder))))
            }
            Offered::File { .. } => None,
        }
    }

    /// Returns an error if the disk has no room for what is missing.
    pub fn check_room(&self) -> Result<(), Failure> {
        match &self.offered {
            Offered::Repo { folder, .. } => check_room(&folder.path, self.missing()),
            // Its size is not known yet.
            Offered::File { .. } => Ok(()),
        }
    }

    /// Fetches what is missing. Calls `progress` with the name of a file and the bytes of all files so far. `most`
    /// limits a file of unknown size.
    pub fn fetch(self, most: u64, progress: &mut dyn FnMut(&str, u64)) -> Result<Fetched, Failure> {
        let Self { client, offered, .. } = self;
        match offered {
            Offered::Repo { name, listing, files, folder } => {
                let mut done = 0;
                let mut path = folder.path.clone();
                for file in &files {
                    path = fetch_blob(&client, &listing, &folder, file, &mut |bytes| {
                        progress(&file.path, bytes.saturating_add(done));
                    })?;
                    done = file.size.saturating_add(done);
                }
                let names = files.into_iter().map(|file| file.path).collect();
                folder.finish(&listing.commit, name.part.as_deref(), names)?;
                path.pop();
                Ok(match listing.kind {
                    RepoKind::Model => Fetched::Model { name, folder: path },
                    RepoKind::Dataset => Fetched::Texts { name, folder: path },
                })
            }
            Offered::File { url, path, hash } => {
                let is_hellaswag = hash.is_some();
                let most = if is_hellaswag { HELLASWAG_MOST } else { most };
                fetch_file(&client, &url, &path, hash.as_ref(), most, progress)?;
                Ok(if is_hellaswag { Fetched::HellaSwag(path) } else { Fetched::File(path) })
            }
        }
    }
}

/// Adds sizes from a server, which may be absurd.
fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Returns an error if the disk of a folder has no room for these bytes.
fn check_room(folder: &Path, missing: Option<u64>) -> Result<(), Failure> {
    let folder = disk::absolute(folder);
    let existing = folder.ancestors().find(|folder| disk::is_dir(folder));
    let free = existing.and_then(disk::free_space).zip(missing);
    let Some((free, need)) =
        free.filter(|(free, need)| *need > 0 && *free < need.saturating_add(RESERVE))
    else {
        return Ok(());
    };
    let [have, need] = [free, need].map(bytes);
    let text = format!("the files take {need} more, but the disk has only {have} free");
    let hint = "free some space, or use another disk: files of the Hub go into the folder that HF_HOME names, \
                others into data/";
    Err(Failure::new(text, hint))
}

fn length(path: &Path) -> Option<u64> {
    disk::metadata(path).ok().filter(|found| found.is_file()).map(|found| found.len())
}

/// Returns the name of an unfinished blob in Hugging Face's tools.
fn incomplete(blob: &Path) -> PathBuf {
    blob.with_added_extension("incomplete")
}

/// Fetches a file of a repository, unless its blob exists, and links it into the snapshot.
fn fetch_blob(
    client: &HubClient,
    listing: &Listing,
    folder: &RepoFolder,
    file: &RepoFile,
    progress: &mut dyn FnMut(u64),
) -> Result<PathBuf, Failure> {
    let hash = file.hash.hex();
    let blob = folder.blob(hash);
    let is_here = || folder.has(&file.hash, file.size);
    if !is_here()? {
        let blobs = folder.path.join("blobs");
        disk::create_dir_all(&blobs).map_err(cannot("create", &blobs))?;
        let _lock = lock(&folder.lock(hash), &file.path)?;
        // Another process may have fetched it before we had the lock.
        if !is_here()? {
            let prefix = match listing.kind {
                RepoKind::Model => None,
                RepoKind::Dataset => Some(listing.kind.plural()),
            };
            let words = prefix.into_iter().chain(listing.id.split('/'));
            let words = words.chain(["resolve", &listing.commit]).chain(file.path.split('/'));
            let remote = Remote {
                url: &client.address(words),
                name: &file.path,
                size: Some(file.size),
                most: file.size,
                hash: Some(&file.hash),
                version: None,
            };
            let partial = incomplete(&blob);
            fetch(client, &remote, &partial, &mut |_, _| Ok(()), progress)?;
            disk::rename(&partial, &blob).map_err(cannot("write", &blob))?;
        }
    }
    progress(file.size);
    folder.add(&listing.commit, &file.path, hash)
}

/// Fetches a file by its URL, unless it exists. An unfinished file has a hidden name, so that nobody prepares it.
/// It is continued if the server still has the same version.
fn fetch_file(
    client: &HubClient,
    url: &Url,
    path: &Path,
    hash: Option<&Hash>,
    most: u64,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<(), Failure> {
    if disk::exists(path) {
        return match hash {
            Some(hash) if !hash.is_of(path)? => {
                let text = format!("{} already exists and is a different file", path.display());
                Err(Failure::bad_data(text, "move it elsewhere, or delete it, to fetch it again"))
            }
            _ => Ok(()),
        };
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let partial = path.with_file_name(format!(".{name}.incomplete"));
    let stamp_path = path.with_file_name(format!(".{name}.version"));
    let lock_path = path.with_file_name(format!(".{name}.lock"));
    let _lock = lock(&lock_path, &name)?;
    // The version belongs to one URL.
    let stamp = |version: &str| format!("{url}\n{version}");
    let version = disk::read_own_text(&stamp_path).ok();
    let version = version.and_then(|text| text.strip_prefix(&stamp("")).map(str::to_string));
    let remote = Remote { url, name: &name, size: None, most, hash, version };
    let mut begin = |version: Option<&str>, missing| {
        check_room(path, missing)?;
        match version {
            Some(version) => disk::replace(&stamp_path, stamp(version).as_bytes())
                .map_err(cannot("write", &stamp_path)),
            None => disk::remove_file(&stamp_path).or(Ok(())),
        }
    };
    fetch(client, &remote, &partial, &mut begin, &mut |bytes| progress(&name, bytes))?;
    disk::rename(&partial, path).map_err(cannot("write", path))?;
    for leftover in [stamp_path, lock_path] {
        let _ = disk::remove_file(leftover);
    }
    Ok(())
}

/// Returns the name of the file at a URL.
fn file_name(url: &Url) -> Result<String, Failure> {
    let last = url.path_segments().and_then(|mut words| words.next_back()).unwrap_or_default();
    let decoded = percent_decode_str(last).decode_utf8().unwrap_or(last.into());
    if is_safe_file_name(&decoded) && !decoded.starts_with('.') {
        return Ok(decoded.into_owned());
    }
    let text = format!("{}: the address does not end with the name of a file", shown(url));
    Err(usage(text, "give the address of a file, like https://example.org/book.txt"))
}
