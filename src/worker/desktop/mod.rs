//! The service on the desktop: a thread for each request, a process for each run.

mod process;
mod run_folder;
mod sampling;
mod supervisor;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::answer::answer;
use super::{Launch, Trainer};
use crate::protocol::{Job, Reply, Request, SampleRequest};
use crate::runs::{self, Tail};
use process::ChildProcess;
use run_folder::RunFolder;
use sampling::Sampling;

pub(crate) use supervisor::{Supervisor, TrainerProcess, detach};

/// Wakes the front end.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// Sends requests to the service and takes its replies.
pub(crate) struct Client {
    wake: Wake,
    sender: Sender<Reply>,
    receiver: Receiver<Reply>,
    /// The text that is being generated, or was last.
    sampling: Option<Sampling>,
}

impl Client {
    /// A client that calls `wake` when [`replies`](Self::replies) or events of a trainer arrive.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (sender, receiver) = channel();
        Self { wake: Arc::new(wake), sender, receiver, sampling: None }
    }

    /// Sends a request.
    pub fn send(&mut self, request: Request) {
        let (sender, wake) = (self.sender.clone(), self.wake.clone());
        let reply = move |reply| {
            // The window may have closed meanwhile.
            let _ = sender.send(reply);
            wake();
        };
        match request {
            Request::Sample(request) => self.sample(request, reply),
            Request::StopSample => self.sampling = None,
            request => {
                std::thread::spawn(move || answer(request, &mut |given| reply(given)));
            }
        }
    }

    fn sample(&mut self, request: SampleRequest, reply: impl Fn(Reply) + Send + Clone + 'static) {
        match Sampling::start(request, reply.clone()) {
            Ok(sampling) => self.sampling = Some(sampling),
            Err(error) => {
                let text = format!("`wgpt sample` did not start: {error}");
                reply(Reply::Failed { job: Job::Sample, text, hint: String::new() });
            }
        }
    }

    /// Returns the replies since the last call.
    pub fn replies(&mut self) -> Vec<Reply> {
        self.receiver.try_iter().collect()
    }

    /// Starts a run in a child process.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(&mut self, run: &Path, launch: Launch) -> io::Result<Trainer> {
        Ok(Trainer::own(run, ChildProcess::start(run, &launch, &self.wake)?))
    }

    /// Follows a run from the end of its record on, if another process trains it.
    pub fn follow(&self, run: &Path, tail: Tail) -> Option<Trainer> {
        let is_training = runs::is_training(run);
        is_training.then(|| Trainer::followed(run, RunFolder::new(run, tail)))
    }
}
