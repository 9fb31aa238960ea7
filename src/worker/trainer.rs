//! The connection to a run that trains.

use std::io;
use std::path::{Path, PathBuf};

use crate::protocol::{Command, Event};

/// The end of a trainer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    /// It exited with this code.
    Code(i32),
    Killed,
    /// It is gone, and has not said why.
    Silent,
}

/// A connection to a trainer: commands in, events out.
pub(super) trait Connection {
    /// Passes a command on.
    fn send(&mut self, command: &Command) -> io::Result<()>;

    /// Returns the events since the last call.
    fn events(&mut self) -> Vec<Event>;

    /// Returns the end of the trainer once all its events were returned.
    fn ended(&mut self) -> Option<Ended>;
}

/// A run that trains, in a process of this program or in another.
pub(crate) struct Trainer {
    run: PathBuf,
    is_own: bool,
    is_set_up: bool,
    connection: Box<dyn Connection>,
}

impl Trainer {
    /// A run that this program has started.
    pub(super) fn own(run: &Path, connection: impl Connection + 'static) -> Self {
        let (run, connection) = (run.to_path_buf(), Box::new(connection));
        Self { run, is_own: true, is_set_up: false, connection }
    }

    /// A run of another process.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn followed(run: &Path, connection: impl Connection + 'static) -> Self {
        let (run, connection) = (run.to_path_buf(), Box::new(connection));
        Self { run, is_own: false, is_set_up: true, connection }
    }

    /// Returns the run folder.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Returns true if this program has started the run.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns true if the run has begun to train.
    pub fn is_set_up(&self) -> bool {
        self.is_set_up
    }

    /// Passes a command on.
    pub fn send(&mut self, command: &Command) -> io::Result<()> {
        self.connection.send(command)
    }

    /// Returns the events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let events = self.connection.events();
        self.is_set_up |= events.iter().any(|event| matches!(event, Event::Start { .. }));
        events
    }

    /// Returns the end of the trainer once all its events were returned.
    pub fn ended(&mut self) -> Option<Ended> {
        self.connection.ended()
    }
}
