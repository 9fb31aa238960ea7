//! The connection to a run that trains.

use std::io;
use std::path::PathBuf;

use crate::protocol::{Command, Event};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    Code(i32),
    Killed,
    /// It is gone, without a reason.
    Silent,
}

/// A connection to a trainer: commands in, events out.
pub(super) trait Connection {
    fn send(&mut self, command: &Command) -> io::Result<()>;

    /// Returns the events since the last call, and the end of the trainer after its last event.
    fn receive(&mut self) -> (Vec<Event>, Option<Ended>);
}

/// A run that trains, in a process of this program or in another.
pub(crate) struct Trainer {
    pub run: PathBuf,
    /// True if this program has started the run.
    pub is_own: bool,
    /// True once the run has begun to train.
    pub is_set_up: bool,
    connection: Box<dyn Connection>,
}

impl Trainer {
    pub(super) fn new(run: PathBuf, is_own: bool, connection: impl Connection + 'static) -> Self {
        Self { run, is_own, is_set_up: !is_own, connection: Box::new(connection) }
    }

    pub fn send(&mut self, command: &Command) -> io::Result<()> {
        self.connection.send(command)
    }

    /// Returns the events since the last call, and the end of the trainer after its last event.
    pub fn receive(&mut self) -> (Vec<Event>, Option<Ended>) {
        let (events, ended) = self.connection.receive();
        self.is_set_up |= events.iter().any(|event| matches!(event, Event::Start { .. }));
        (events, ended)
    }
}
