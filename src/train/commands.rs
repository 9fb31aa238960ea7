//! The source of a run's commands.

use std::future::Future;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::mpsc::{Receiver, TryRecvError};
#[cfg(not(target_arch = "wasm32"))]
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::protocol::Command;

/// The state of a command source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Next {
    Command(Command),
    None,
    /// No command ever: the sender is gone.
    Closed,
}

/// A source of commands to a run.
pub trait Commands {
    /// Returns the next command without waiting for one.
    fn next(&mut self) -> Next;

    /// Lets other tasks of this thread run, between two steps.
    fn yield_now(&mut self) -> impl Future<Output = ()>;

    /// Waits for a moment, or for the next command, while the run is paused.
    fn idle(&mut self) -> impl Future<Output = ()>;
}

/// Commands of another thread.
#[cfg(not(target_arch = "wasm32"))]
impl Commands for &Receiver<Command> {
    fn next(&mut self) -> Next {
        match self.try_recv() {
            Ok(command) => Next::Command(command),
            Err(TryRecvError::Empty) => Next::None,
            Err(TryRecvError::Disconnected) => Next::Closed,
        }
    }

    async fn yield_now(&mut self) {}

    async fn idle(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}
