//! The page as a client of its worker.

use std::io;
use std::path::Path;

use super::connection::Connection;
use crate::protocol::{Command, Event, Job, Reply, Request, StartRun, ToWorker};
use crate::runs::Tail;
use crate::web::{download, error_text};
use crate::worker::{Ended, Launch, Start, Trainer, trainer::Transport};

/// Sends requests to the service and takes its replies.
pub(crate) struct Client(Connection);

impl Client {
    /// A client that calls `wake` when [`replies`](Self::replies) or events of the run arrive.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Connection::new(wake))
    }

    /// Sends a request.
    pub fn send(&mut self, request: Request) {
        self.0.send(ToWorker::Request(request));
    }

    /// Returns the replies since the last call.
    pub fn replies(&mut self) -> Vec<Reply> {
        self.0.replies().into_iter().map(save_zip).collect()
    }

    /// Starts a run in the worker.
    ///
    /// # Errors
    /// Never: a worker that fails is replaced.
    pub fn start(&mut self, run: &Path, launch: Launch) -> io::Result<Trainer> {
        let (config, resume) = match launch.start {
            Start::New { config, .. } => (Some(config), false),
            Start::Resume => (None, true),
        };
        self.0.start(StartRun { run: run.to_path_buf(), config, resume, max_plan: None });
        Ok(Trainer::own(run, WorkerRun(self.0.clone())))
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

impl Transport for WorkerRun {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        self.0.send_command(command.clone());
        Ok(())
    }

    fn events(&mut self) -> Vec<Event> {
        self.0.events()
    }

    fn ended(&mut self) -> Option<Ended> {
        let output = "the run ended and has not said why".to_string();
        self.0.has_ended().then_some(Ended { code: Some(0), output })
    }
}
