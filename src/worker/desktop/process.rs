//! A run of the window, in a worker that supervises another one.

use std::io;
use std::process::{Child, Stdio};
use std::sync::mpsc::TryRecvError;

use super::Wake;
use super::pipe::{Pipe, spawn_for_window, without_settings, worker};
use crate::protocol::{Command, Event, FromWorker, RunEnd, Setting, StartRun, ToWorker};
use crate::worker::Ended;
use crate::worker::trainer::Connection;

/// The worker of a run.
pub(super) struct RunProcess {
    child: Child,
    pipe: Pipe,
    /// True once all messages were read and the pipe is closed.
    is_drained: bool,
}

impl RunProcess {
    /// Starts a worker that trains, and that stops when the window closes if `stop_on_close` is set.
    pub fn start(start: StartRun, stop_on_close: bool, wake: &Wake) -> io::Result<Self> {
        let mut process = worker()?;
        without_settings(&mut process);
        // The window has no terminal that would show the messages of a driver, or one that does.
        process.stderr(Stdio::inherit());
        let wake = wake.clone();
        let (child, mut pipe) = spawn_for_window(process, move || wake())?;
        pipe.send(&ToWorker::Supervise(Box::new(start)))?;
        let command = Command::Set(Setting::StopOnClose(stop_on_close));
        pipe.send(&ToWorker::Command(command))?;
        Ok(Self { child, pipe, is_drained: false })
    }
}

impl Connection for RunProcess {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        self.pipe.send(&ToWorker::Command(command.clone()))
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            match self.pipe.messages.try_recv() {
                Ok(FromWorker::Event(event)) => events.push(*event),
                // A worker of another version, or one that could not begin.
                Ok(FromWorker::Ended(RunEnd::Failed(failure))) => events.push(failure.into_event()),
                Ok(_) => {}
                Err(TryRecvError::Empty) => return events,
                Err(TryRecvError::Disconnected) => {
                    self.is_drained = true;
                    return events;
                }
            }
        }
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
