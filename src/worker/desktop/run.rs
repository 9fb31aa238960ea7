//! Runs that train: in a worker that supervises another one, and in another program.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::pipe::{send, spawn};
use crate::protocol::{Command, Event, FromWorker, RunEnd, Setting, StartRun, ToWorker};
use crate::runs::{self, Tail};
use crate::worker::Ended;
use crate::worker::trainer::Connection;

/// The time between two checks that the other process still trains.
const CHECK: Duration = Duration::from_millis(500);

/// The time without a trainer after which the run counts as ended: a supervisor takes a moment to
/// start the next one.
const GRACE: Duration = Duration::from_secs(3);

/// Called when events have arrived.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

pub(super) struct RunProcess {
    child: Child,
    input: ChildStdin,
    events: Receiver<Event>,
}

impl RunProcess {
    /// Starts a run in `worker`, which stops when this process ends if `stop_on_close` is set. It never waits
    /// for this process, because a hidden window may take no events.
    pub fn start(
        worker: Process,
        start: StartRun,
        stop_on_close: bool,
        wake: Wake,
    ) -> io::Result<Self> {
        let first = ToWorker::Supervise(Box::new(start));
        let (child, mut input, messages) = spawn(worker, Some(&first))?;
        let command = Command::Set(Setting::StopOnClose(stop_on_close));
        send(&mut input, &ToWorker::Command(command))?;
        let (sender, events) = channel();
        std::thread::spawn(move || {
            for message in messages {
                let event = match message {
                    FromWorker::Event(event) => *event,
                    // A worker of another version, or one that could not begin.
                    FromWorker::Ended(RunEnd::Failed(failure)) => Event::Error(failure.into()),
                    _ => continue,
                };
                if sender.send(event).is_err() {
                    break;
                }
                wake();
            }
            // The receiver sees the end of the pipe only once the sender is gone.
            drop(sender);
            wake();
        });
        Ok(Self { child, input, events })
    }
}

impl Connection for RunProcess {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        send(&mut self.input, &ToWorker::Command(command.clone()))
    }

    fn receive(&mut self) -> (Vec<Event>, Option<Ended>) {
        let mut events = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(event) => events.push(event),
                Err(TryRecvError::Empty) => return (events, None),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        let status = self.child.try_wait().ok().flatten();
        // A process that was killed has no code, or on Windows one that wgpt does not use.
        let code = |status: ExitStatus| status.code().filter(|code| (0..256).contains(code));
        (events, status.map(|status| code(status).map_or(Ended::Killed, Ended::Code)))
    }
}

/// A run that another process trains: its run folder has the events, and takes commands.
pub(super) struct FollowedRun {
    run: PathBuf,
    tail: Tail,
    checked: Instant,
    /// The time of the first check that found no trainer.
    missing: Option<Instant>,
}

impl FollowedRun {
    pub fn new(run: &Path, tail: Tail) -> Self {
        Self { run: run.to_path_buf(), tail, checked: Instant::now(), missing: None }
    }
}

impl Connection for FollowedRun {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        runs::command(&self.run, command)
    }

    fn receive(&mut self) -> (Vec<Event>, Option<Ended>) {
        let events = self.tail.read();
        if self.checked.elapsed() < CHECK {
            return (events, None);
        }
        self.checked = Instant::now();
        if runs::is_training(&self.run) {
            self.missing = None;
            return (events, None);
        }
        let missing = self.missing.get_or_insert_with(Instant::now).elapsed();
        (events, (missing > GRACE).then_some(Ended::Silent))
    }
}
