//! The source of a run's commands.

use std::future::Future;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::protocol::Command;

/// A source of commands to a run.
pub trait Commands {
    /// Returns the next command without waiting for one.
    fn next(&mut self) -> Option<Command>;

    /// Lets other tasks of this thread run, between two steps.
    fn yield_now(&mut self) -> impl Future<Output = ()>;

    /// Waits for a moment, or for the next command, while the run is paused.
    fn idle(&mut self) -> impl Future<Output = ()>;
}

/// Commands of another thread. Before it ends, it resumes the run, so that a paused run never waits in vain.
impl Commands for &Receiver<Command> {
    fn next(&mut self) -> Option<Command> {
        self.try_recv().ok()
    }

    async fn yield_now(&mut self) {}

    async fn idle(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}
