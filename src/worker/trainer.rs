//! The connection to a run that trains.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::protocol::{Command, Event};

/// The start of a run.
#[derive(Clone, Debug)]
#[cfg_attr(
    target_arch = "wasm32",
    allow(dead_code, reason = "a page has one device, and its run ends with it")
)]
pub(crate) struct Launch {
    /// A new run, or one that continues.
    pub start: Start,
    /// The device as `--device` takes it.
    pub device: String,
    /// True if the run stops when the window closes.
    pub stop_on_close: bool,
}

/// A new run, or one that continues.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    /// A new run.
    New {
        /// Its settings as arguments of `wgpt train`.
        #[cfg_attr(target_arch = "wasm32", allow(dead_code, reason = "a worker takes `config`"))]
        flags: Vec<String>,
        /// The configuration that these mean.
        #[cfg_attr(
            not(target_arch = "wasm32"),
            allow(dead_code, reason = "a process takes `flags`")
        )]
        config: Box<Config>,
    },
    /// A run that continues from its newest checkpoint, with its own configuration.
    Resume,
}

/// The end of a trainer.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` if it was killed.
    pub code: Option<i32>,
    /// The last lines that it printed besides events.
    pub output: String,
}

/// A connection to a trainer: commands in, events out.
pub(super) trait Transport {
    /// Passes a command on.
    ///
    /// # Errors
    /// If the trainer no longer reads commands.
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
    transport: Box<dyn Transport>,
}

impl Trainer {
    /// A run that this program has started.
    pub(super) fn own(run: &Path, transport: impl Transport + 'static) -> Self {
        let (run, transport) = (run.to_path_buf(), Box::new(transport));
        Self { run, is_own: true, is_set_up: false, transport }
    }

    /// A run of another process.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn followed(run: &Path, transport: impl Transport + 'static) -> Self {
        let (run, transport) = (run.to_path_buf(), Box::new(transport));
        Self { run, is_own: false, is_set_up: true, transport }
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
    ///
    /// # Errors
    /// If the trainer no longer reads commands.
    pub fn send(&mut self, command: &Command) -> io::Result<()> {
        self.transport.send(command)
    }

    /// Returns the events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let events = self.transport.events();
        self.is_set_up |= events.iter().any(|event| matches!(event, Event::Start { .. }));
        events
    }

    /// Returns the end of the trainer once all its events were returned.
    pub fn ended(&mut self) -> Option<Ended> {
        self.transport.ended()
    }
}
