//! The run folder: its lock, its configuration and its record of events.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use web_time::SystemTime;

use super::has_checkpoints;
use super::scalars::{Continued, Logs, SCALARS_FILE};
use super::thinning::{MOST, thinned, thinned_log};
use crate::config::Config;
use crate::disk::{self, File, FolderKind, HeldFolder, TryLockError};
use crate::protocol::{Event, Exit, Failure};
use crate::ranks::RANKS_FOLDER;

pub const CONFIG_FILE: &str = "config.toml";
/// The events of the run, one JSON object a line.
pub const EVENTS_FILE: &str = "events.jsonl";
/// Commands to the process that trains, one JSON object a line. It reads what is appended while it
/// runs.
pub const COMMANDS_FILE: &str = "commands.jsonl";
/// The events as text.
const LOG_FILE: &str = "log.txt";
/// A file that the process that trains keeps locked.
pub const LOCK_FILE: &str = "lock";
/// The folder of the checkpoints, each in a folder named by its iteration.
pub const CHECKPOINTS_FOLDER: &str = "checkpoints";

/// A run folder that this process has locked, or in which a rank other than the first writes its log.
#[derive(Debug)]
pub struct RunFolder {
    pub path: PathBuf,
    /// `None` on ranks other than the first, which write only their log.
    events: Option<File>,
    log: File,
    /// The size of the events in bytes at which they are thinned.
    most: u64,
    /// Updates skipped according to the last step.
    skipped: u64,
    pub scalars: Logs,
    /// `None` on ranks other than the first.
    place: Option<HeldFolder>,
    /// The operating system releases the lock when the process ends, even if it is killed.
    lock: Option<File>,
}

impl RunFolder {
    /// Locks a folder for a new run, or for a resumed one, and creates what is missing. The error is
    /// `RunExists` if a new run would overwrite another, `Locked` if another process trains in it.
    pub fn open(path: &Path, resume: bool) -> Result<Self, Failure> {
        if !resume {
            check_vacant(path)?;
        }
        disk::create_dir_all(path).map_err(Failure::io("create", path))?;
        let lock = locked(path)?;
        // This syncs the lock file, too, which tells a run's folder, before any file that is not told from a
        // person's is written.
        own_folder(path, CHECKPOINTS_FOLDER)?;
        // A run without a checkpoint has nothing to lose.
        if !resume && has_checkpoints(path)? {
            let text = format!("{}: this folder already has a run", path.display());
            let hint = "continue it with --resume, or give another folder with --run";
            return Err(Failure::new(text, hint).with_exit(Exit::Usage));
        }
        let commands = path.join(COMMANDS_FILE);
        if disk::exists(&commands) {
            disk::open_own(&commands).map_err(Failure::io("open", &commands))?;
        }
        let place = HeldFolder::open(path).map_err(Failure::io("open", path))?;
        Ok(Self { place: Some(place), lock: Some(lock), ..Self::unlocked(path)? })
    }

    fn unlocked(path: &Path) -> Result<Self, Failure> {
        let events = append(&path.join(EVENTS_FILE))?;
        let log = append(&path.join(LOG_FILE))?;
        Ok(Self { events: Some(events), ..Self::with_log(path, log) })
    }

    fn with_log(path: &Path, log: File) -> Self {
        Self {
            path: path.to_path_buf(),
            events: None,
            log,
            most: MOST,
            skipped: 0,
            scalars: Logs::default(),
            place: None,
            lock: None,
        }
    }

    /// Opens the log of a rank other than the first, in the same folder or, on another machine, in a folder of
    /// the same name.
    pub fn of_rank(path: &Path, rank: usize) -> Result<Self, Failure> {
        disk::create_dir_all(path).map_err(Failure::io("create", path))?;
        let folder = own_folder(path, RANKS_FOLDER)?;
        Ok(Self::with_log(path, append(&folder.join(format!("{rank}.log")))?))
    }

    /// Checks that the lock file is still the one that this process has locked, and locks a new one in place of
    /// one that was removed.
    ///
    /// # Errors
    /// If another process has done that before, and trains the run, too.
    pub fn keep_lock(&mut self) -> Result<(), Failure> {
        if let Some(lock) = &self.lock
            && !disk::is_same(lock, &self.path.join(LOCK_FILE))
        {
            self.lock = Some(locked(&self.path)?);
        }
        Ok(())
    }

    /// Returns true if the folder was deleted or moved since it was locked.
    pub fn is_lost(&self) -> bool {
        self.place.as_ref().is_some_and(|place| !place.is_in_place())
    }

    /// Continues in a new folder next to the path of this one, which is lost. The record's files are still open,
    /// so the record is copied.
    pub fn rescue(&mut self, config: &mut Config) -> Result<(), Failure> {
        let path = disk::absolute(&self.path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let numbered = |number| path.with_file_name(format!("{name}-rescued-{number}"));
        let free = (1u32..).map(numbered).find(|path| !disk::exists(path));
        let mut rescued = Self::open(free.as_ref().unwrap_or(&path), false)?;
        let events = self.events.as_mut().zip(rescued.events.as_mut());
        for (from, to) in events.into_iter().chain([(&mut self.log, &mut rescued.log)]) {
            // The checkpoint matters more.
            let _ = from.rewind().and_then(|()| io::copy(from, to));
        }
        rescued.skipped = self.skipped;
        *self = rescued;
        config.out_dir = self.path.display().to_string();
        self.write_config(config)
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS_FOLDER)
    }

    /// Writes the resolved configuration. If this fails, a former one stays intact.
    pub fn write_config(&self, config: &Config) -> Result<(), Failure> {
        if self.events.is_none() {
            return Ok(());
        }
        let file = self.path.join(CONFIG_FILE);
        disk::replace(&file, config.to_toml().as_bytes()).map_err(Failure::io("write", &file))
    }

    /// Writes the configuration if a person has deleted it: without it, the run cannot be resumed.
    pub fn restore_config(&self, config: &Config) -> Result<(), Failure> {
        let exists = disk::exists(&self.path.join(CONFIG_FILE));
        if exists { Ok(()) } else { self.write_config(config) }
    }

    /// Opens the scalar logs. Returns a sentence for each that cannot be opened.
    pub fn open_scalars(&mut self, logs: &str, from: Continued) -> Vec<String> {
        if self.events.is_none() {
            return Vec::new();
        }
        let (scalars, failed) = Logs::open(&self.path, logs, from);
        self.scalars = scalars;
        failed
    }

    /// Syncs the record and the scalar logs to disk, so that the losses of a checkpoint's updates survive a power
    /// failure with it.
    pub fn sync(&self) {
        let files = self.events.iter().chain([&self.log]).chain(self.scalars.files());
        // The checkpoint matters more.
        files.for_each(|file| drop(file.sync_all()));
    }

    /// Appends an event to the record, as JSON and as text.
    pub fn record(&mut self, event: &Event) -> Result<(), Failure> {
        let path = self.path.join(EVENTS_FILE);
        let mut write = || {
            if let Some(events) = &mut self.events {
                write_line(events, &json_line(event))?;
                let length = events.stream_position()?;
                if length >= self.most {
                    self.thin(length)?;
                }
            }
            let line = match event {
                Event::Step(step) => {
                    let before = std::mem::replace(&mut self.skipped, step.skipped);
                    step.line(before)
                }
                event => event.labelled(),
            };
            write_line(&mut self.log, &line)
        };
        write().map_err(Failure::io("write", &path))
    }

    /// Thins the `length` bytes of events, and the log. Readers that follow the events start again.
    fn thin(&mut self, length: u64) -> io::Result<()> {
        // If this fails, it is not tried again at each event.
        self.most = length / 2 * 3;
        let rewrite = |name, thinned: fn(&[u8]) -> Vec<u8>| {
            let path = self.path.join(name);
            let record = thinned(&disk::read_record(&path)?);
            disk::replace(&path, &record)?;
            Ok::<_, io::Error>((disk::append_own(&path)?, record.len() as u64))
        };
        let (events, length) = rewrite(EVENTS_FILE, thinned)?;
        self.events = Some(events);
        self.most = MOST.max(length / 2 * 3);
        self.log = rewrite(LOG_FILE, thinned_log)?.0;
        Ok(())
    }
}

/// Locks a run for this process, by a file that it creates, until the returned value is dropped.
pub fn locked(run: &Path) -> Result<File, Failure> {
    let path = run.join(LOCK_FILE);
    let lock = disk::open_lock(&path).map_err(Failure::io("open", &path))?;
    disk::lock(&lock).map_err(|error| match error {
        TryLockError::WouldBlock => {
            let text = format!("{}: another process is training this run", run.display());
            let hint = "stop that process, or give another folder with --run";
            Failure::new(text, hint).with_exit(Exit::Usage)
        }
        TryLockError::Error(error) => {
            let hint = "nothing else keeps two processes from training one run: give a folder on a disk that \
                        has locks with --run";
            Failure::new(format!("cannot lock {}: {error}", path.display()), hint)
        }
    })?;
    Ok(lock)
}

/// Returns an error if a folder that is no run's has a file that a run would replace or append to.
fn check_vacant(path: &Path) -> Result<(), Failure> {
    // A folder with checkpoints is refused as a run.
    let is_run = disk::first_in(path, [LOCK_FILE, EVENTS_FILE]).is_some()
        || has_checkpoints(path).unwrap_or_default();
    if is_run {
        return Ok(());
    }
    if let Some(text) = disk::other_kind(path, FolderKind::Run) {
        return Err(Failure::usage(text, disk::OTHER_KIND_HINT));
    }
    let names = [CONFIG_FILE, LOG_FILE, COMMANDS_FILE, SCALARS_FILE, CHECKPOINTS_FOLDER];
    // A run that ended as it began, by a power failure, may have left some of them empty.
    let names = names.into_iter().filter(|name| !disk::is_empty(&path.join(name)));
    disk::first_in(path, names).map_or(Ok(()), |name| {
        let text = format!("{}: {name} is not a run's, and would be replaced", path.display());
        Err(Failure::usage(text, "give a new folder with --run, or leave it out"))
    })
}

fn append(path: &Path) -> Result<File, Failure> {
    disk::append_own(path).map_err(Failure::io("open", path))
}

/// Appends a line in one write, because a process may be killed between two writes. First ends a half line that
/// a killed process or a full disk has left.
fn write_line(file: &mut File, line: &str) -> io::Result<()> {
    let mut last = [b'\n'];
    // An empty file has no last byte.
    let _ = file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last));
    let end = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{end}{line}\n").as_bytes())
}

/// Creates a folder in a run folder, unless it exists, so that it survives a power failure.
fn own_folder(run: &Path, name: &str) -> Result<PathBuf, Failure> {
    let path = run.join(name);
    let created = disk::own_folder(&path).and_then(|()| disk::sync_folder(run));
    created.map_err(Failure::io("create", &path))?;
    Ok(path)
}

/// Returns an event that happens now as a JSON line, without the line break.
pub fn json_line(event: &Event) -> String {
    // A clock before 1970 has no better answer.
    event.to_json(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
}

/// Appends an event to the record of a run that no process has locked, like the reason for a
/// restart.
pub fn record(run: &Path, event: &Event) -> Result<(), Failure> {
    RunFolder::unlocked(run)?.record(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Progress, SavedCheckpoint, Step};
    use crate::runs::Tail;

    fn progress(tail: &mut Tail, mut progress: Progress) -> Progress {
        tail.read::<Event>().iter().for_each(|event| progress.apply(event));
        progress
    }

    #[test]
    fn the_record_of_a_long_run_stays_bounded_and_says_the_same() {
        const LIMIT: u64 = 20_000;
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::unlocked(folder.path()).unwrap();
        run.most = LIMIT;
        let mut all = Progress::default();
        let mut follower = Tail::open(folder.path(), true);
        let mut followed = Progress::default();
        let mut longest = 0;
        for iter in 0..5000 {
            let ms = 100.0 + (iter % 7) as f64;
            let loss = 5.0 - iter as f64 * 1e-3;
            let step = Step { iter, loss, tokens: 512, ms, ..Step::default() };
            let mut events = vec![Event::Step(step)];
            if iter % 500 == 499 {
                let path = format!("checkpoints/{iter}").into();
                events.push(Event::Checkpoint(SavedCheckpoint {
                    iter: iter + 1,
                    path,
                    best: true,
                }));
            }
            for event in events {
                all.apply(&event);
                run.record(&event).unwrap();
                // The usual limit is higher than this record.
                run.most = run.most.min(LIMIT);
                longest =
                    longest.max(std::fs::metadata(folder.path().join(EVENTS_FILE)).unwrap().len());
            }
            if iter % 300 == 0 {
                followed = progress(&mut follower, followed);
                let record = std::fs::read_to_string(folder.path().join(EVENTS_FILE)).unwrap();
                // A quarter of it is whole.
                let mut recent = iter.saturating_sub(9)..iter;
                assert!(recent.all(|iter| record.contains(&format!("\"iter\":{iter},"))), "{iter}");
            }
        }
        assert!(longest < LIMIT + 1000, "{longest}");
        let log = std::fs::read_to_string(folder.path().join(LOG_FILE)).unwrap();
        assert!(log.len() < LIMIT as usize && log.contains("iter 4999: ") && log.contains("saved"));
        let read = progress(&mut Tail::open(folder.path(), true), Progress::default());
        let followed = progress(&mut follower, followed);
        assert!(all.curves.loss.len() == 5000 && read.curves.loss.len() < 500);
        for read in [read, followed] {
            assert_eq!(read.last_step, all.last_step);
            assert_eq!(read.checkpoints, all.checkpoints);
            let ends = |progress: &Progress| {
                [&progress.curves.tokens, &progress.curves.seconds].map(|sum| sum.at(5000.0))
            };
            for (read, all) in ends(&read).into_iter().zip(ends(&all)) {
                // One who followed the file has read some steps before they were thinned.
                assert!((read - all).abs() < all * 1e-5, "{read} {all}");
            }
        }
    }

    /// A person may take the lock file for one that a killed process has left.
    #[cfg(unix)]
    #[test]
    fn two_processes_never_train_a_run_whose_lock_file_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let mut first = RunFolder::open(path, false).unwrap();
        first.keep_lock().unwrap();
        std::fs::remove_file(path.join(LOCK_FILE)).unwrap();
        first.keep_lock().unwrap();
        assert!(RunFolder::open(path, true).unwrap_err().text.contains("another process"));
        std::fs::remove_file(path.join(LOCK_FILE)).unwrap();
        let mut second = RunFolder::open(path, true).unwrap();
        assert!(first.keep_lock().unwrap_err().text.contains("another process"));
        second.keep_lock().unwrap();
    }

    #[test]
    fn a_new_run_replaces_nobodys_files() {
        for name in [CONFIG_FILE, LOG_FILE, COMMANDS_FILE, SCALARS_FILE, CHECKPOINTS_FOLDER] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            std::fs::write(path.join(name), "# my settings").unwrap();
            let error = RunFolder::open(path, false).unwrap_err();
            assert!(error.text.contains(name) && error.exit == Exit::Usage, "{error}");
            assert_eq!(std::fs::read_dir(path).unwrap().count(), 1, "nothing is written");
            // A run that failed before its first checkpoint is begun again.
            std::fs::remove_file(path.join(name)).unwrap();
            RunFolder::open(path, false).unwrap().write_config(&Config::default()).unwrap();
            RunFolder::open(path, false).unwrap();
        }
    }

    /// After a power failure, what was written last is empty or missing.
    #[test]
    fn a_run_that_has_only_begun_is_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let checkpoints = path.join(CHECKPOINTS_FOLDER);
        std::fs::create_dir(&checkpoints).unwrap();
        for name in [CONFIG_FILE, LOG_FILE, SCALARS_FILE] {
            std::fs::write(path.join(name), "").unwrap();
        }
        std::fs::write(checkpoints.join("mine"), "").unwrap();
        let error = RunFolder::open(path, false).unwrap_err();
        assert!(error.text.contains(CHECKPOINTS_FOLDER), "{error}");
        std::fs::remove_file(checkpoints.join("mine")).unwrap();
        RunFolder::open(path, false).unwrap();
    }

    #[test]
    fn half_a_line_of_a_killed_process_does_not_spoil_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        for name in [EVENTS_FILE, LOG_FILE] {
            std::fs::write(folder.path().join(name), "whole\nhal").unwrap();
        }
        let warning = Event::Warning { text: "new".into() };
        let mut run = RunFolder::unlocked(folder.path()).unwrap();
        run.record(&warning).unwrap();
        // A full disk cuts a line of the same process.
        run.events.as_mut().unwrap().write_all(b"{").unwrap();
        run.record(&warning).unwrap();
        let lines = |name| {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            text.lines().map(str::to_string).collect::<Vec<_>>()
        };
        assert_eq!(lines(LOG_FILE), ["whole", "hal", "warning: new", "warning: new"]);
        let events = lines(EVENTS_FILE);
        assert_eq!([&events[1], &events[3]], ["hal", "{"]);
        assert!(events.len() == 5 && events[2].ends_with('}') && events[4].ends_with('}'));
    }
}
