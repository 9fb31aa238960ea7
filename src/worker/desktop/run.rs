//! Runs that train: one of the window, in a worker that supervises another one, and one of another process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::Wake;
use super::pipe::{read_messages, send, spawn, worker_of_window};
use crate::protocol::{Command, Event, FromWorker, RunEnd, Setting, StartRun, ToWorker};
use crate::runs::{self, Tail};
use crate::worker::Ended;
use crate::worker::trainer::Connection;

/// The time between two checks that the other process still trains.
const CHECK: Duration = Duration::from_millis(500);

/// The time without a trainer after which the run counts as ended: a supervisor takes a moment to
/// start the next one.
const GRACE: Duration = Duration::from_secs(3);

pub(super) struct RunProcess {
    child: Child,
    input: ChildStdin,
    events: Receiver<Event>,
    /// True once all events were read and the pipe is closed.
    is_drained: bool,
}

impl RunProcess {
    /// Starts a worker that trains, and that stops when the window closes if `stop_on_close` is set. It
    /// never waits for the window, which may take no events for as long as it is hidden.
    pub fn start(start: StartRun, stop_on_close: bool, wake: Wake) -> io::Result<Self> {
        let first = ToWorker::Supervise(Box::new(start));
        let (child, mut input, output) = spawn(worker_of_window()?, Some(&first))?;
        let command = Command::Set(Setting::StopOnClose(stop_on_close));
        send(&mut input, &ToWorker::Command(command))?;
        let (sender, events) = channel();
        std::thread::spawn(move || {
            for message in read_messages(output) {
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
        Ok(Self { child, input, events, is_drained: false })
    }
}

impl Connection for RunProcess {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        send(&mut self.input, &ToWorker::Command(command.clone()))
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let end = loop {
            match self.events.try_recv() {
                Ok(event) => events.push(event),
                Err(end) => break end,
            }
        };
        self.is_drained = end == TryRecvError::Disconnected;
        events
    }

    fn ended(&mut self) -> Option<Ended> {
        if !self.is_drained {
            return None;
        }
        let status = self.child.try_wait().ok()??;
        // A process that was killed has no code, or on Windows one that wgpt does not use.
        Some(match status.code().filter(|code| (0..256).contains(code)) {
            Some(code) => Ended::Code(code),
            None => Ended::Killed,
        })
    }
}

/// A run that another process trains: its run folder has the events, and takes commands.
pub(super) struct RunFolder {
    run: PathBuf,
    tail: Tail,
    checked: Instant,
    /// The time of the first check that found no trainer.
    missing: Option<Instant>,
}

impl RunFolder {
    pub fn new(run: &Path, tail: Tail) -> Self {
        Self { run: run.to_path_buf(), tail, checked: Instant::now(), missing: None }
    }
}

impl Connection for RunFolder {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        runs::command(&self.run, command)
    }

    fn events(&mut self) -> Vec<Event> {
        self.tail.read()
    }

    fn ended(&mut self) -> Option<Ended> {
        if self.checked.elapsed() < CHECK {
            return None;
        }
        self.checked = Instant::now();
        if runs::is_training(&self.run) {
            self.missing = None;
            return None;
        }
        let missing = self.missing.get_or_insert_with(Instant::now).elapsed();
        (missing > GRACE).then_some(Ended::Silent)
    }
}
