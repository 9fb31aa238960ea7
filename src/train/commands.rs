//! The commands to a run.

use std::collections::VecDeque;
use std::future::Future;
use std::iter::from_fn;
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

/// The commands that arrived during an evaluation, then those of the source.
pub(super) struct CommandQueue<'a, C> {
    source: &'a mut C,
    waiting: VecDeque<Command>,
}

impl<'a, C: Commands> CommandQueue<'a, C> {
    pub fn new(source: &'a mut C) -> Self {
        Self { source, waiting: VecDeque::new() }
    }

    /// Takes the commands that have arrived. Returns true if one of those that wait is to end this process.
    pub fn wants_stop(&mut self) -> bool {
        self.waiting.extend(from_fn(|| self.source.next()));
        self.waiting.iter().any(|command| matches!(command, Command::Stop | Command::StandBy))
    }
}

impl<C: Commands> Commands for CommandQueue<'_, C> {
    fn next(&mut self) -> Option<Command> {
        self.waiting.pop_front().or_else(|| self.source.next())
    }

    async fn yield_now(&mut self) {
        self.source.yield_now().await;
    }

    async fn idle(&mut self) {
        self.source.idle().await;
    }
}
