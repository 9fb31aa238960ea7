//! The runs on the disk: a list with their states, their configurations, and their records.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use web_time::SystemTime;

use super::checkpoint::{STATE_FILE, newest_first};
use super::{
    CHECKPOINTS_FOLDER, COMMANDS_FILE, CONFIG_FILE, EVENTS_FILE, LOCK_FILE, has_checkpoint,
};
use crate::config::{Config, Layer, resolve};
use crate::disk::{self, TryLockError};
use crate::protocol::{
    About, Command, Event, Progress, ReplanReason, RunPhase, RunState, RunSummary, StopReason, Tail,
};

/// The bytes at either end of a record that a summary reads: some hundred lines.
const END_BYTES: u64 = 64 << 10;

/// More bytes than any event or command has.
const LONGEST_LINE: u64 = 16 << 20;

/// The time that a restart may take before the run counts as crashed.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

const ABOUT_FILE: &str = "about.toml";

impl RunSummary {
    /// Returns the time since its last change; 0 if the clock was set back.
    pub fn age(&self) -> Duration {
        since(self.modified).unwrap_or_default()
    }
}

/// Lists the runs directly in `folder`, and `folder` itself if it is a run, the newest first. Reads only the
/// beginnings and ends of their records.
pub fn list(folder: &Path) -> io::Result<Vec<RunSummary>> {
    let entries = match disk::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
        entries => entries.into_iter().flatten().flatten(),
    };
    let mut found: Vec<RunSummary> = std::iter::once(folder.to_path_buf())
        .chain(entries.map(|entry| entry.path()))
        .filter(|path| is_run(path))
        .map(summary)
        .collect();
    found.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| a.name.cmp(&b.name)));
    Ok(found)
}

pub fn is_run(path: &Path) -> bool {
    [CONFIG_FILE, EVENTS_FILE].iter().any(|name| disk::is_file(&path.join(name)))
}

/// Returns true if a process trains in a run folder, or a supervisor is about to start one.
pub fn is_training(run: &Path) -> bool {
    is_locked(run) || summary(run.to_path_buf()).state == RunState::Running
}

/// Reads the record of a run; also returns a reader of the events after it.
pub fn follow(run: &Path) -> io::Result<(Progress, Tail)> {
    let mut progress = Progress::default();
    let mut tail = Tail::open(run, true);
    tail.read_each(&mut |event: Event| progress.apply(&event))?;
    Ok((progress, tail))
}

/// Sends a command to the process that trains in a run folder.
pub fn command(run: &Path, command: &Command) -> io::Result<()> {
    let mut file = disk::append_own(run.join(COMMANDS_FILE))?;
    let mut line = serde_json::to_vec(command)?;
    line.push(b'\n');
    // In one write: a reader that follows the file must not see half a command.
    file.write_all(&line)
}

/// Reads the resolved configuration of a run, if this version can.
pub fn config(run: &Path) -> Option<Config> {
    let text = disk::read_own_text(run.join(CONFIG_FILE)).ok()?;
    let layer = Layer::toml(CONFIG_FILE, &text).ok()?;
    Some(resolve(vec![layer]).ok()?.config)
}

pub fn describe(run: &Path, about: &About) -> io::Result<()> {
    let text = toml::to_string(about).map_err(io::Error::other)?;
    disk::replace(&run.join(ABOUT_FILE), text.as_bytes())
}

/// Reads the display name and the note of a run, if it has any that can be read.
fn about(run: &Path) -> About {
    let text = disk::read_own_text(run.join(ABOUT_FILE)).ok();
    text.and_then(|text| toml::from_str(&text).ok()).unwrap_or_default()
}

/// Returns the settings that differ, as key and both values, without `out_dir`.
pub fn difference(a: &Config, b: &Config) -> Vec<(&'static str, String, String)> {
    let pairs = a.values().into_iter().zip(b.values());
    let pairs = pairs.map(|((name, a), (_, b))| (name, a, b));
    pairs.filter(|(name, a, b)| *name != "out_dir" && a != b).collect()
}

impl Tail {
    /// Opens the record of a run, at its first event or at its end.
    pub fn open(run: &Path, from_start: bool) -> Self {
        Self::of(run.join(EVENTS_FILE), from_start)
    }

    /// Opens a file at its first line or at its end. The file need not exist.
    pub fn of(path: PathBuf, from_start: bool) -> Self {
        let mut tail = Self { path, offset: 0, before: Vec::new() };
        if !from_start && let Ok((start, bytes)) = last_bytes(&tail.path) {
            let lines = complete_lines(&bytes);
            tail.offset = start + lines.len() as u64;
            let last = lines.split_inclusive(|&byte| byte == b'\n').next_back();
            tail.before = last.unwrap_or_default().to_vec();
        }
        tail
    }

    /// Reads the complete lines that were written since the last call, and skips those that do not
    /// parse as `T`. A file that was replaced is read from its start; one that cannot be read is
    /// empty.
    pub fn read<T: DeserializeOwned>(&mut self) -> Vec<T> {
        let mut found = Vec::new();
        // The next call tries again.
        let _ = self.read_each(&mut |value| found.push(value));
        found
    }

    fn read_each<T: DeserializeOwned>(&mut self, each: &mut dyn FnMut(T)) -> io::Result<()> {
        let mut file = BufReader::new(disk::open_own(&self.path)?);
        if !self.continues(&mut file)? {
            file.rewind()?;
            (self.offset, self.before) = (0, Vec::new());
        }
        let mut line = Vec::new();
        loop {
            line.clear();
            file.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
            if line.len() as u64 == LONGEST_LINE {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "one of its lines never ends",
                ));
            }
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            self.offset += line.len() as u64;
            if let Ok(value) = serde_json::from_slice(&line) {
                each(value);
            }
            std::mem::swap(&mut self.before, &mut line);
        }
    }

    /// Returns true if the last line is unchanged; positions `file` after it.
    fn continues(&self, file: &mut (impl Read + Seek)) -> io::Result<bool> {
        let mut found = vec![0; self.before.len()];
        file.seek(SeekFrom::Start(self.offset - found.len() as u64))?;
        match file.read_exact(&mut found) {
            Ok(()) => Ok(found == self.before),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Summarizes a run from the ends of its record.
pub fn summary(path: PathBuf) -> RunSummary {
    let record = path.join(EVENTS_FILE);
    let (ends, failed) = match ends(&record) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            (Default::default(), Some(format!("cannot read {}: {error}", record.display())))
        }
        ends => (ends.unwrap_or_default(), None),
    };
    let (progress, last) = ends;
    let saved = saved(&path).unwrap_or_default();
    let modified = [EVENTS_FILE, CONFIG_FILE, "."]
        .iter()
        .find_map(|name| disk::metadata(path.join(name)).ok()?.modified().ok())
        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
        .unwrap_or_default();
    let Progress { iteration, max_iters, val_loss, best_val_loss, .. } = progress;
    // The record's ends need not contain an evaluation; the newest checkpoint covers them all.
    let best = [best_val_loss, saved.best_val_loss];
    RunSummary {
        name: name(&path),
        about: about(&path),
        state: match failed {
            Some(text) => RunState::Failed { text },
            None => state(&path, progress.state, last, modified),
        },
        iteration: if iteration == 0 { saved.iteration } else { iteration },
        // A resumed run may have a larger `max_iters` in its configuration.
        max_iters: config(&path)
            .map(|config| config.max_iters.get())
            .or(Some(max_iters))
            .filter(|&updates| updates > 0),
        loss: progress.loss,
        val_loss: val_loss.or(saved.val_loss),
        best_val_loss: best.into_iter().flatten().min_by(f64::total_cmp),
        device: progress.device,
        modified,
        has_checkpoint: has_checkpoint(&path),
        path,
    }
}

/// Reads the ends of a record; also returns the last event.
fn ends(record: &Path) -> io::Result<(Progress, Option<Event>)> {
    let mut head = Vec::new();
    disk::open_own(record)?.take(END_BYTES).read_to_end(&mut head)?;
    let start = events(&head).find(|event| matches!(event, Event::Start { .. }));
    let (_, tail) = last_bytes(record)?;
    let mut progress = Progress::default();
    let mut last = None;
    for event in start.into_iter().chain(events(&tail)) {
        progress.apply(&event);
        last = Some(event);
    }
    Ok((progress, last))
}

fn state(run: &Path, progress: RunPhase, last: Option<Event>, modified: Duration) -> RunState {
    if is_locked(run) {
        return if progress == RunPhase::Paused { RunState::Paused } else { RunState::Running };
    }
    let restart = match &last {
        Some(Event::Replan { reason, .. }) if *reason != ReplanReason::Budget => RESTART_TIMEOUT,
        Some(Event::Waiting(waiting)) if waiting.attempts > 0 => {
            RESTART_TIMEOUT + Duration::from_secs(waiting.seconds)
        }
        _ => Duration::ZERO,
    };
    match last {
        None => RunState::Empty,
        Some(Event::Done { reason: StopReason::Finished | StopReason::EvalOnly, .. }) => {
            RunState::Finished
        }
        Some(Event::Done { .. }) => RunState::Stopped,
        Some(Event::Error(error)) => RunState::Failed { text: error.text },
        Some(_) if since(modified).is_some_and(|age| age < restart) => RunState::Running,
        Some(_) => RunState::Crashed,
    }
}

/// Returns the time since `moment`, counted from 1970; `None` if the clock was set back.
fn since(moment: Duration) -> Option<Duration> {
    (SystemTime::UNIX_EPOCH + moment).elapsed().ok()
}

fn is_locked(run: &Path) -> bool {
    let Ok(lock) = disk::open_own(run.join(LOCK_FILE)) else { return false };
    // Shared: two processes that check at the same time must not take each other for a trainer.
    let taken = lock.try_lock_shared();
    let _ = lock.unlock();
    matches!(taken, Err(TryLockError::WouldBlock))
}

#[derive(Default, Deserialize)]
struct SavedLosses {
    iteration: u64,
    val_loss: Option<f64>,
    best_val_loss: Option<f64>,
}

fn saved(run: &Path) -> Option<SavedLosses> {
    let newest = newest_first(&run.join(CHECKPOINTS_FOLDER)).ok()?.next()?;
    serde_json::from_slice(&disk::read_own(newest.join(STATE_FILE)).ok()?).ok()
}

/// Returns the name of a folder, also of `.`.
fn name(path: &Path) -> String {
    let absolute = disk::absolute(path);
    let name = path.file_name().or(absolute.file_name()).unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Reads the last [`END_BYTES`] bytes of a file; also returns their offset.
fn last_bytes(path: &Path) -> io::Result<(u64, Vec<u8>)> {
    let mut file = disk::open_own(path)?;
    let start = file.metadata()?.len().saturating_sub(END_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(END_BYTES).read_to_end(&mut bytes)?;
    Ok((start, bytes))
}

/// Cuts off an incomplete last line.
fn complete_lines(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    &bytes[..end]
}

/// Parses the events of a record. Skips lines that are no events, like the rest of a torn line.
fn events(bytes: &[u8]) -> impl Iterator<Item = Event> {
    let lines = complete_lines(bytes).split(|&byte| byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok())
}

#[cfg(test)]
mod tests;
