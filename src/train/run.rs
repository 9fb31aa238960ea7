//! The run folder: who may write in it, and what is kept there besides checkpoints.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::{TrainError, checkpoint};
use crate::config::Config;
use crate::disk::{self, File, OpenOptions, TryLockError};
use crate::protocol::Event;

/// The resolved configuration.
pub const CONFIG_FILE: &str = "config.toml";
/// One event a line.
pub const EVENTS_FILE: &str = "events.jsonl";
/// Commands for the process that trains, one a line; only what is added while it runs counts.
pub const COMMANDS_FILE: &str = "commands.jsonl";
const LOG_FILE: &str = "log.txt";
/// Locked by the process that trains.
pub const LOCK_FILE: &str = "lock";
/// One folder for each checkpoint, named by its iteration.
pub const CHECKPOINTS_FOLDER: &str = "checkpoints";

/// A run folder that this process holds the lock of.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    records: Records,
    /// Held until the process ends, however it ends: the lock is the system's.
    _lock: File,
}

impl RunFolder {
    /// Takes a folder for a new run, or for one that continues.
    ///
    /// # Errors
    /// `RunExists` where a new run would write over another, `Locked` where a process trains in it.
    pub fn open(path: &Path, resume: bool) -> Result<Self, TrainError> {
        disk::create_dir_all(path.join(CHECKPOINTS_FOLDER))
            .map_err(TrainError::io("create", path))?;
        let lock_path = path.join(LOCK_FILE);
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(TrainError::io("open", &lock_path))?;
        disk::lock(&lock).map_err(|error| match error {
            TryLockError::WouldBlock => TrainError::Locked { path: path.to_path_buf() },
            TryLockError::Error(source) => TrainError::io("lock", &lock_path)(source),
        })?;
        // Without a checkpoint there is nothing to lose, and nothing to resume either.
        if !resume && checkpoint::exists(&path.join(CHECKPOINTS_FOLDER)) {
            return Err(TrainError::RunExists { path: path.to_path_buf() });
        }
        Ok(Self { path: path.to_path_buf(), records: Records::open(path)?, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its checkpoints lie.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS_FOLDER)
    }

    /// Keeps the resolved configuration.
    ///
    /// # Errors
    /// If it cannot be written; a former one is then still whole.
    pub fn write_config(&self, config: &Config) -> Result<(), TrainError> {
        let path = self.path.join(CONFIG_FILE);
        write_atomically(&path, config.to_toml().as_bytes())
    }

    /// Keeps an event, as JSON and as text.
    ///
    /// # Errors
    /// If it cannot be written, which a run survives.
    pub fn record(&mut self, event: &Event) -> Result<(), TrainError> {
        self.records.write(event).map_err(TrainError::io("write", &self.path.join(EVENTS_FILE)))
    }
}

/// What a run folder keeps of events.
#[derive(Debug)]
struct Records {
    events: File,
    log: File,
}

impl Records {
    fn open(folder: &Path) -> Result<Self, TrainError> {
        let append = |name: &str| {
            let path = folder.join(name);
            let file = OpenOptions::new().create(true).append(true).open(&path);
            file.map_err(TrainError::io("open", &path))
        };
        Ok(Self { events: append(EVENTS_FILE)?, log: append(LOG_FILE)? })
    }

    fn write(&mut self, event: &Event) -> std::io::Result<()> {
        writeln!(self.events, "{}", event.to_json())?;
        writeln!(self.log, "{event}")
    }
}

/// Keeps an event of a run whose process has ended, such as why another one begins.
///
/// # Errors
/// If it cannot be written.
pub fn record(run: &Path, event: &Event) -> Result<(), TrainError> {
    let written = Records::open(run)?.write(event);
    written.map_err(TrainError::io("write", &run.join(EVENTS_FILE)))
}

/// Replaces a file by another content: whatever happens, one of the two is there, whole.
///
/// # Errors
/// If the new content cannot be written.
pub(super) fn write_atomically(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    disk::replace(path, content).map_err(TrainError::io("write", path))
}
