//! The page's end of the line to the worker that trains.

use super::messages::{Ask, Reply};

/// A worker that is kept going: when its device fails, another takes its place, and the run goes on
/// from its last checkpoint.
pub struct Link {
    wake: Box<dyn Fn()>,
}

impl Link {
    /// Starts a worker. `wake` is called when there is something to [`take`](Self::take).
    pub fn new(wake: impl Fn() + 'static) -> Self {
        Self { wake: Box::new(wake) }
    }

    /// Asks the worker; it answers when it comes to it.
    pub fn ask(&mut self, ask: &Ask) {
        self.ask_with(ask, None);
    }

    /// Asks the worker, and gives it bytes: see [`Ask::Import`].
    pub fn ask_with(&mut self, _ask: &Ask, _bytes: Option<&[u8]>) {
        (self.wake)();
    }

    /// What the worker said since the last call, with the bytes of what has some.
    pub fn take(&mut self) -> Vec<(Reply, Option<Vec<u8>>)> {
        Vec::new()
    }
}
