//! Fetches one file: continues where an earlier attempt ended, limits its size, and verifies it.

use std::io::{self, Read, Write};
use std::path::Path;

use ureq::http::{HeaderMap, StatusCode, header};
use url::Url;

use super::client::{HubClient, Trouble};
use super::error::{cannot, untrue, usage};
use super::hash::Hash;
use crate::disk::{self, File, TryLockError};
use crate::protocol::{Exit, Failure};
use crate::text::bytes;

const BLOCK: usize = 128 << 10;

/// The bytes between two syncs of a file without a hash. After a power failure, the bytes since the last sync may
/// read as zeros, which nothing would notice.
const SYNCED: u64 = 4 << 20;

/// An attempt that brings this many bytes does not count as failed.
const PROGRESS: u64 = 256 << 10;

/// A file on a server, and what is known about it.
pub(super) struct Remote<'a> {
    pub url: &'a Url,
    /// Its name in messages.
    pub name: &'a str,
    pub size: Option<u64>,
    /// The size limit of a file of unknown size.
    pub most: u64,
    pub hash: Option<&'a Hash>,
    /// The version of the file that the bytes on the disk are from, for a file without a hash.
    pub version: Option<String>,
}

/// Receives the version of the file and the bytes that follow, if the server reports them.
pub(super) type Begin<'a> = dyn FnMut(Option<&str>, Option<u64>) -> Result<(), Failure> + 'a;

/// Locks a file for as long as the value lives. It is an error if another process fetches the same thing.
pub(super) fn lock(path: &Path, name: &str) -> Result<File, Failure> {
    let folder = path.parent().unwrap_or(path);
    disk::create_dir_all(folder).map_err(cannot("create", folder))?;
    let file = disk::open_lock(path).map_err(cannot("open", path))?;
    match disk::lock(&file) {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::new(
            format!("{name}: another process is fetching this file"),
            "wait until it is done, then run the command again",
        )),
        Err(TryLockError::Error(error)) => Err(cannot("lock", path)(error)),
    }
}

/// Fetches a file into `partial`, after the bytes that it already has, and verifies it. Calls `progress` with the
/// bytes so far, and `begin` with each answer of the server before anything is written. Deletes a file that is
/// wrong.
pub(super) fn fetch(
    client: &HubClient,
    remote: &Remote<'_>,
    partial: &Path,
    begin: &mut Begin<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let mut file = disk::append_own(partial).map_err(cannot("open", partial))?;
    if remote.hash.is_none() {
        let safe = file.metadata().and_then(|found| file.set_len(synced_part(found.len())));
        safe.map_err(cannot("read", partial))?;
    }
    let mut version = remote.version.clone();
    let mut attempt = || fetch_rest(client, remote, &mut file, &mut version, begin, progress);
    let fetched = client.patiently(&mut attempt).map_err(|trouble| match trouble {
        Trouble::Denied => Failure::bad_data(
            format!("{}: the server refuses access to this file", remote.name),
            "accept the conditions on its page at huggingface.co, and set HF_TOKEN to a token of \
             your account",
        ),
        Trouble::NotFound => Failure::bad_data(
            format!("{}: the server does not have this file", remote.name),
            "check the name or the address",
        ),
        Trouble::Passing { reason, .. } => Failure::new(reason, ""),
        Trouble::Final(error) => error,
    });
    let synced = fetched.and_then(|()| file.sync_all().map_err(cannot("write", partial)));
    drop(file);
    let verified = synced.and_then(|()| verify(remote, partial));
    if verified.as_ref().is_err_and(|error| error.exit == Exit::BadData) {
        let _ = disk::remove_file(partial);
    }
    verified
}

/// Returns how many bytes of an unfinished file are certainly on the disk. A file that is a block longer than a
/// multiple of `SYNCED` was written to after the sync there.
fn synced_part(length: u64) -> u64 {
    length.saturating_sub(BLOCK as u64) / SYNCED * SYNCED
}

fn verify(remote: &Remote<'_>, partial: &Path) -> Result<(), Failure> {
    let Some(hash) = remote.hash else { return Ok(()) };
    if hash.is_of(partial)? {
        return Ok(());
    }
    let reason = format!("its hash is not {}, so it was deleted", hash.hex());
    Err(untrue(remote.name, reason))
}

/// Makes one attempt to fetch what is missing.
fn fetch_rest(
    client: &HubClient,
    remote: &Remote<'_>,
    file: &mut File,
    version: &mut Option<String>,
    begin: &mut Begin<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Trouble> {
    let name = remote.name;
    let on_disk = |action| {
        move |error| {
            Failure::new(
                format!("cannot {action} {name}: {error}"),
                "check the free space of the disk",
            )
        }
    };
    let mut have = file.metadata().map_err(on_disk("read"))?.len();
    progress(have);
    if remote.size == Some(have) {
        return Ok(());
    }
    // Without a hash or a version, the bytes on the disk may be of another file.
    let is_unknown = remote.hash.is_none() && version.is_none();
    if is_unknown || remote.size.is_some_and(|size| have > size) {
        file.set_len(0).map_err(on_disk("write"))?;
        have = 0;
    }
    // With a hash the version does not matter. It differs between the servers of one file.
    let known = version.as_deref().filter(|_| remote.hash.is_none());
    let answer = client.open(remote.url, have, known)?;
    let status = answer.status();
    let begins_at = content_range(answer.headers());
    // The server has less than we have, sends all of it, or another part.
    if have > 0 && (status != StatusCode::PARTIAL_CONTENT || begins_at != Some(have)) {
        file.set_len(0).map_err(on_disk("write"))?;
        have = 0;
        if status != StatusCode::OK {
            return Err(Trouble::passing(format!(
                "{name}: the server cannot resume this download"
            )));
        }
    }
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Err(untrue(name, "the server has no bytes of this file").into());
    }
    let length = answer.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = length
        .and_then(|digits| digits.parse::<u64>().ok())
        .and_then(|more| have.checked_add(more));
    let total = remote.size.or(announced);
    if let (Some(size), Some(announced)) = (remote.size, announced)
        && size != announced
    {
        let reason = format!("the server has {announced} bytes, and the repository lists {size}");
        return Err(untrue(name, reason).into());
    }
    *version = version_of(answer.headers());
    let missing = total.map(|total| total.saturating_sub(have));
    begin(version.as_deref(), missing)?;
    if total.is_some_and(|total| total > remote.most) {
        return Err(too_long(remote, total).into());
    }
    let most = total.unwrap_or(remote.most);
    let mut body = answer.into_body().into_reader();
    let mut block = vec![0; BLOCK];
    let began = have;
    loop {
        let passing = |reason: String, have: u64| Trouble::Passing {
            reason,
            wait: None,
            has_progress: have >= began + PROGRESS,
        };
        let read = match body.read(&mut block) {
            Ok(0) if total.is_some_and(|total| have < total) => {
                return Err(passing(format!("{name}: the connection ended early"), have));
            }
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(passing(format!("{name}: the connection broke: {error}"), have));
            }
        };
        if have + read as u64 > most {
            return Err(too_long(remote, total).into());
        }
        file.write_all(&block[..read]).map_err(on_disk("write"))?;
        let had = have;
        have += read as u64;
        if remote.hash.is_none() && had / SYNCED < have / SYNCED {
            file.sync_data().map_err(on_disk("write"))?;
        }
        progress(have);
    }
}

fn too_long(remote: &Remote<'_>, total: Option<u64>) -> Failure {
    let name = remote.name;
    let known = remote.size.or(total).filter(|size| *size <= remote.most);
    if known.is_some() || remote.hash.is_some() {
        let size = known.unwrap_or(remote.most);
        return untrue(name, format!("the server sends more than {size} bytes"));
    }
    let size = bytes(total.unwrap_or(remote.most));
    let text = format!("{name}: the file has {size} or more, which needs your consent");
    usage(text, "add --yes to fetch it")
}

/// Returns the version of a file, which tells the server whether it can continue it. Equal weak ETags do not mean
/// equal bytes.
fn version_of(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_string);
    let etag = text(header::ETAG).filter(|etag| !etag.starts_with("W/"));
    etag.or_else(|| text(header::LAST_MODIFIED))
}

/// Returns the offset at which a part of a file begins.
fn content_range(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    text.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}
