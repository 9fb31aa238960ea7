//! The page as a client of its worker.

use std::io;
use std::path::Path;

use super::connection::Connection;
use crate::protocol::{Command, Event, Job, Reply, Request, StartRun, ToWorker};
use crate::runs::Tail;
use crate::web::{download, error_text};
use crate::worker::{Ended, Trainer, trainer};

/// Sends requests to the service and takes its replies.
pub(crate) struct Client(Connection);

impl Client {
    /// A client that calls `wake` when [`replies`](Self::replies) or events of the run arrive.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Connection::new(wake))
    }

    pub fn send(&mut self, request: Request) {
        self.0.send(ToWorker::Request(request));
    }

    /// Returns the replies since the last call.
    pub fn replies(&mut self) -> Vec<Reply> {
        self.0.replies().into_iter().map(save_zip).collect()
    }

    /// Starts a run in the worker. It ends with the page in any case.
    ///
    /// # Errors
    /// Never: a worker that fails is replaced.
    pub fn start(&mut self, start: StartRun, _stop_on_close: bool) -> io::Result<Trainer> {
        let run = start.run.clone();
        self.0.start(start)?;
        Ok(Trainer::own(&run, WorkerRun(self.0.clone())))
    }

    /// Returns `None`: no other process has access to the storage of a page.
    pub fn follow(&self, _: &Path, _: Tail) -> Option<Trainer> {
        None
    }
}

/// Saves an exported zip among the browser's downloads.
fn save_zip(reply: Reply) -> Reply {
    let Reply::Exported { to, zip } = reply else { return reply };
    match download(&to.display().to_string(), &zip) {
        Ok(()) => Reply::Exported { to, zip: Vec::new() },
        Err(error) => {
            let text = format!("{}: {}", to.display(), error_text(&error));
            Reply::Failed { job: Job::Export, text, hint: String::new() }
        }
    }
}

/// The run that the worker trains.
struct WorkerRun(Connection);

impl trainer::Connection for WorkerRun {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        self.0.send_command(command);
        Ok(())
    }

    fn events(&mut self) -> Vec<Event> {
        self.0.events()
    }

    fn ended(&mut self) -> Option<Ended> {
        self.0.has_ended().then_some(Ended::Silent)
    }
}
