//! Where a run's commands come from.

use std::future::Future;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::mpsc::{Receiver, TryRecvError};
#[cfg(not(target_arch = "wasm32"))]
use std::time::Duration;

use crate::protocol::Command;

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// A command.
    Command(Command),
    /// None yet.
    None,
    /// None ever: whoever gave them is gone.
    Never,
}

/// Whoever gives commands to a run.
pub trait Commands {
    /// The next command, without waiting for it.
    fn next(&mut self) -> Next;

    /// Between two steps: lets others do what they have to, where they share this thread.
    fn breathe(&mut self) -> impl Future<Output = ()>;

    /// During a pause: waits a moment, or until there may be a command.
    fn idle(&mut self) -> impl Future<Output = ()>;
}

/// From another thread.
#[cfg(not(target_arch = "wasm32"))]
impl Commands for &Receiver<Command> {
    fn next(&mut self) -> Next {
        match self.try_recv() {
            Ok(command) => Next::Command(command),
            Err(TryRecvError::Empty) => Next::None,
            Err(TryRecvError::Disconnected) => Next::Never,
        }
    }

    async fn breathe(&mut self) {}

    async fn idle(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}
