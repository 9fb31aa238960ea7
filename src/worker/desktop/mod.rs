//! The service on the desktop: a thread for each request, a process for each run.

mod answer;
mod awake;
mod battery;
mod commands;
mod export;
mod integrated;
mod jobs;
mod listing;
#[cfg_attr(not(any(target_os = "linux", windows)), path = "no_notify.rs")]
mod notify;
mod pipe;
mod proof;
mod rank;
mod request;
mod room;
mod run;
mod serve;
pub(crate) mod signals;
mod supervise;
mod training;
mod watch;

use std::io;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::Trainer;
use crate::protocol::{Reply, Request, RequestKind, StartRun};
use crate::runs::{self, Tail};
use answer::answer;
use pipe::{worker, worker_of_window};
use run::{FollowedRun, RunProcess, Wake};

pub(crate) use super::config_source::{flag_or_variable, read_text};
pub(crate) use super::data_requests::describe;
pub(crate) use commands::Control;
pub(crate) use export::{
    ollama_commands, write_adapter_folder, write_gguf, write_model_folder, write_ollama, write_page,
};
pub(crate) use listing::{list_devices, select};
pub(crate) use notify::notify;
#[cfg(windows)]
pub(crate) use pipe::detach;
pub(crate) use proof::{Proven, TestEnd, Tested, prove, test_kernels, time_limit};
pub(crate) use rank::{REPORT_TIME, RankProcess};
pub(crate) use request::measure;
use request::{ask, converse};
pub(crate) use serve::{WorkerOutput, read_command, serve};
pub(crate) use supervise::supervise;
pub(crate) use training::{RunOutput, SETTING_UP, host, print_set_up, products_line, train};
pub(crate) use watch::{Watched, watch};

/// Sends requests to the service and takes its replies.
pub(crate) struct Client {
    wake: Wake,
    sender: Sender<Reply>,
    receiver: Receiver<Reply>,
    /// The stdin of the worker that generates text, or has generated the last. The worker ends when it closes.
    sampling: Option<Arc<ChildStdin>>,
    /// The same of the worker that fetches something.
    fetching: Option<Arc<ChildStdin>>,
}

impl Client {
    /// A client that calls `wake` when [`replies`](Self::replies) or events of a trainer arrive.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (sender, receiver) = channel();
        Self { wake: Arc::new(wake), sender, receiver, sampling: None, fetching: None }
    }

    pub fn send(&mut self, request: Request) {
        let sender = self.sender.clone();
        let wake = self.wake.clone();
        let reply = move |reply| {
            // The window may have closed meanwhile.
            let _ = sender.send(reply);
            wake();
        };
        match request {
            Request::StopSample => self.sampling = None,
            Request::StopGet => self.fetching = None,
            Request::Sample(_) | Request::Get { .. } => {
                let job = request.job();
                match converse(worker_of_window(), request, reply.clone()) {
                    Ok(input) if job == RequestKind::Sample => self.sampling = Some(input),
                    Ok(input) => self.fetching = Some(input),
                    Err(failure) => reply(Reply::failed(job, failure)),
                }
            }
            // They take the memory of a whole model.
            Request::Export { .. } | Request::Report { .. } | Request::Measure { .. } => {
                std::thread::spawn(move || {
                    let job = request.job();
                    reply(ask(request).unwrap_or_else(|failure| Reply::failed(job, failure)));
                });
            }
            request => {
                std::thread::spawn(move || answer(request, &mut |given| reply(given)));
            }
        }
    }

    pub fn replies(&mut self) -> Vec<Reply> {
        self.receiver.try_iter().collect()
    }

    /// Starts a run in a separate worker, which stops when the window closes if `stop_on_close` is set.
    pub fn start(&mut self, start: StartRun, stop_on_close: bool) -> io::Result<Trainer> {
        let run = start.run.clone();
        let process =
            RunProcess::start(worker_of_window()?, start, stop_on_close, self.wake.clone())?;
        Ok(Trainer::new(run, true, process))
    }

    /// Follows a run from the end of its record on, if another process trains it.
    pub fn follow(&self, run: &Path, tail: Tail) -> Option<Trainer> {
        let follow = || Trainer::new(run.to_path_buf(), false, FollowedRun::new(run, tail));
        runs::is_training(run).then(follow)
    }
}

/// Starts a run like a window, in a worker that prints nothing and stops when the trainer is dropped. Calls
/// `wake` when events arrive.
pub(crate) fn start_silently(
    start: StartRun,
    wake: impl Fn() + Send + Sync + 'static,
) -> io::Result<Trainer> {
    let run = start.run.clone();
    let mut worker = worker()?;
    worker.stderr(Stdio::null());
    Ok(Trainer::new(run, true, RunProcess::start(worker, start, true, Arc::new(wake))?))
}
