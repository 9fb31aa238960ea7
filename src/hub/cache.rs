//! The cache of Hugging Face's tools, in their layout, so that they and wgpt share files:
//! `models--ORG--NAME/{blobs,refs,snapshots}`, where a snapshot is a folder of links to blobs.
//!
//! For each part that it has fetched, wgpt adds a small file in the folder `wgpt` next to those, so that other
//! commands find the files of the part without a connection.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::error::{cannot, usage};
use super::hash::{Hash, is_hash};
use super::home::{home, variable};
use super::listing::choose;
use super::name::{RepoKind, RepoName, is_hub_name, is_safe_path};
use crate::disk;
use crate::protocol::Failure;

/// The folder of the records of fetched parts.
const RECORDS: &str = "wgpt";

/// How deep a snapshot is searched: data is rarely deeper than two folders.
const MAX_DEPTH: usize = 8;

/// The folder of a repository in the cache.
#[derive(Debug)]
pub(super) struct RepoFolder {
    pub path: PathBuf,
    locks: PathBuf,
}

/// The fetched files of a part.
#[derive(Debug, Deserialize, Serialize)]
struct Record {
    commit: String,
    /// Their paths in the repository.
    files: Vec<String>,
}

impl RepoFolder {
    pub fn of(kind: RepoKind, id: &str) -> Result<Self, Failure> {
        let root =
            variable("HF_HUB_CACHE").map(PathBuf::from).or_else(|| Some(home()?.join("hub")));
        let root = root.ok_or_else(|| {
            Failure::new("this user has no home folder for the cache", "set HF_HOME to a folder")
        })?;
        let name = format!("{}--{}", kind.plural(), id.replace('/', "--"));
        Ok(Self { locks: root.join(".locks").join(&name), path: root.join(name) })
    }

    pub fn blob(&self, hash: &str) -> PathBuf {
        self.path.join("blobs").join(hash)
    }

    /// Returns the file that a process locks while it fetches a blob.
    pub fn lock(&self, hash: &str) -> PathBuf {
        self.locks.join(format!("{hash}.lock"))
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// Returns true if the blob of a file is here. Its content is hashed once, and again after it has changed.
    pub fn has(&self, hash: &Hash, size: u64) -> Result<bool, Failure> {
        let blob = self.blob(hash.hex());
        let found = disk::metadata(&blob).ok().filter(|found| found.is_file());
        let Some(found) = found.filter(|found| found.len() == size) else { return Ok(false) };
        let written = found.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let state = format!("{size} {}", written.unwrap_or_default().as_nanos());
        let verified = self.locks.join(format!("{}.verified", hash.hex()));
        if disk::read_own(&verified).is_ok_and(|known| known == state.as_bytes()) {
            return Ok(true);
        }
        let is_right = hash.is_of(&blob)?;
        if is_right {
            // Without it, the blob is hashed again.
            let _ = disk::create_dir_all(&self.locks)
                .and_then(|()| disk::replace(&verified, state.as_bytes()));
        }
        Ok(is_right)
    }

    /// Adds a file to a snapshot; its blob exists. Returns its path.
    pub fn add(&self, commit: &str, file: &str, hash: &str) -> Result<PathBuf, Failure> {
        let link = self.snapshot(commit).join(file);
        // With the separators of this system, which Windows insists on in a link.
        let up: PathBuf = std::iter::repeat_n("..", 1 + file.split('/').count()).collect();
        let target = up.join("blobs").join(hash);
        if disk::leads_to(&link, &target) {
            return Ok(link);
        }
        let folder = link.parent().unwrap_or(&link);
        disk::create_dir_all(folder).map_err(cannot("create", folder))?;
        // A link to another blob, or to one that was deleted.
        let _ = disk::remove_file(&link);
        match disk::link_file(&target, &link) {
            // Another process was faster.
            Err(_) if disk::leads_to(&link, &target) => Ok(link),
            linked => linked.map(|()| link.clone()).map_err(cannot("create", &link)),
        }
    }

    /// Notes that these files of a part are complete.
    pub fn finish(
        &self,
        commit: &str,
        part: Option<&str>,
        files: Vec<String>,
    ) -> Result<(), Failure> {
        let main = self.path.join("refs").join("main");
        let refs = self.path.join("refs");
        let written =
            disk::create_dir_all(&refs).and_then(|()| disk::replace(&main, commit.as_bytes()));
        written.map_err(cannot("write", &main))?;
        let record = self.record(part);
        let written = disk::replace_json(&record, &Record { commit: commit.into(), files });
        written.map_err(cannot("write", &record))
    }

    fn record(&self, part: Option<&str>) -> PathBuf {
        let encoded = |part: &str| part.replace('%', "%25").replace('/', "%2F");
        let name = part.map_or_else(|| "all".into(), |part| format!("part-{}", encoded(part)));
        self.path.join(RECORDS).join(format!("{name}.json"))
    }

    /// Returns the snapshot and the files of a part, or all files that another program has fetched.
    fn find(&self, kind: RepoKind, name: &RepoName) -> Option<(PathBuf, Vec<String>)> {
        let part = name.part.as_deref();
        let record: Option<Record> = disk::read_own(self.record(part))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(Record { commit, files }) = record {
            let snapshot = self.snapshot(&commit);
            let is_here = |file: &String| is_safe_path(file) && disk::is_file(&snapshot.join(file));
            return (is_hash(&commit, 40) && files.iter().all(is_here))
                .then_some((snapshot, files));
        }
        // Parts that wgpt has begun to fetch may be incomplete.
        if disk::exists(&self.path.join(RECORDS)) {
            return None;
        }
        let commit = disk::read_regular(self.path.join("refs").join("main")).ok()?;
        let commit = String::from_utf8(commit).ok()?;
        let snapshot = Some(commit.trim()).filter(|commit| is_hash(commit, 40))?;
        let snapshot = self.snapshot(snapshot);
        let mut found = Vec::new();
        collect(&snapshot, "", MAX_DEPTH, &mut found);
        let chosen = choose(kind, name, &found, &[]).ok()?;
        Some((snapshot, chosen.iter().map(|&at| found[at].clone()).collect()))
    }
}

/// Collects the files below a folder, with their paths relative to it, sorted.
fn collect(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let mut names: Vec<_> = disk::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        let path = folder.join(&name);
        let relative = format!("{prefix}{name}");
        if disk::is_dir(&path) {
            collect(&path, &format!("{relative}/"), depth, found);
        } else {
            found.push(relative);
        }
    }
}

/// Returns the path of a model unchanged, but for a name like `hf:ORG/NAME` its folder in the cache. Opens no
/// connection.
pub fn local(path: &Path) -> Result<Cow<'_, Path>, Failure> {
    let Some(text) = path.to_str().filter(|_| is_hub_name(path)) else { return Ok(path.into()) };
    let name: RepoName = text.parse()?;
    let (snapshot, _) = cached(RepoKind::Model, &name)?;
    // The part of a model is a folder.
    Ok(name.part.map_or(snapshot.clone(), |part| snapshot.join(part)).into())
}

/// Returns the inputs of `wgpt prepare` unchanged, but for a name like `hf:ORG/NAME` its files in the cache.
/// Opens no connection.
pub fn texts(inputs: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for input in inputs {
        let Some(text) = input.to_str().filter(|_| is_hub_name(&input)) else {
            found.push(input);
            continue;
        };
        let (snapshot, files) = cached(RepoKind::Dataset, &text.parse()?)?;
        found.extend(files.into_iter().map(|file| snapshot.join(file)));
    }
    Ok(found)
}

fn cached(kind: RepoKind, name: &RepoName) -> Result<(PathBuf, Vec<String>), Failure> {
    let (what, other) = match kind {
        RepoKind::Model => ("model", "text"),
        RepoKind::Dataset => ("text", "model"),
    };
    if name.kind.is_some_and(|typed| typed != kind) {
        let text = format!("{name} is a {other}, but a {what} is needed here");
        return Err(usage(text, "give the name of another repository"));
    }
    let found = RepoFolder::of(kind, &name.id)?.find(kind, name);
    found.filter(|(_, files)| !files.is_empty()).ok_or_else(|| {
        let text = format!("{name} has not been fetched, or not all of it");
        Failure::bad_data(text, format!("fetch it with `wgpt get {name}`"))
    })
}
