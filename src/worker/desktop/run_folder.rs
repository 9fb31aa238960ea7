//! A run that another process trains: its run folder has the events, and takes commands.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::protocol::{Command, Event};
use crate::runs::{self, Tail};
use crate::worker::{Ended, trainer::Connection};

/// The time between two checks that the other process still trains.
const CHECK: Duration = Duration::from_millis(500);

/// The time without a trainer after which the run counts as ended: a supervisor takes a moment to
/// start the next one.
const GRACE: Duration = Duration::from_secs(3);

pub(super) struct RunFolder {
    run: PathBuf,
    tail: Tail,
    checked: Instant,
    /// The time of the first check that found no trainer.
    missing: Option<Instant>,
}

impl RunFolder {
    pub fn new(run: &Path, tail: Tail) -> Self {
        Self { run: run.to_path_buf(), tail, checked: Instant::now(), missing: None }
    }
}

impl Connection for RunFolder {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        runs::command(&self.run, command)
    }

    fn events(&mut self) -> Vec<Event> {
        self.tail.read()
    }

    fn ended(&mut self) -> Option<Ended> {
        if self.checked.elapsed() < CHECK {
            return None;
        }
        self.checked = Instant::now();
        if runs::is_training(&self.run) {
            self.missing = None;
            return None;
        }
        let missing = self.missing.get_or_insert_with(Instant::now).elapsed();
        (missing > GRACE).then_some(Ended::Silent)
    }
}
