//! Runs the worker of a run as a child process, and starts it again as the [`Supervisor`] decides.
//!
//! If the supervisor itself is killed, or its console closes, the worker's stdin closes: it writes a
//! checkpoint and exits. A job object of Windows would kill it before that.

use std::io;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::pipe::{Pipe, read_lines, spawn, worker};
use crate::protocol::{Command, Event, FromWorker, StartRun, ToWorker};
use crate::runs::{EVENTS_FILE, record};
use crate::worker::supervisor::{Supervisor, Transport};

/// The interval at which commands are polled while the worker is silent.
const POLL: Duration = Duration::from_millis(50);

/// Time that a worker has to exit after it reported an error: its driver may wait for a device that does
/// not answer.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle of the worker's process that another thread can kill.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrainerProcess(Arc<Mutex<Option<Child>>>);

impl TrainerProcess {
    /// Kills the process if one is running.
    pub fn kill(&self) {
        if let Some(child) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let _ = child.kill();
        }
    }

    fn replace(&self, child: Option<Child>) -> Option<Child> {
        std::mem::replace(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), child)
    }
}

/// The command that starts all ranks of a run; it takes the start from its arguments.
pub(crate) type Launcher<'a> = dyn Fn(&StartRun) -> io::Result<Process> + 'a;

/// A worker behind pipes, or several of which a launcher joins the pipes.
struct Workers<'a> {
    launcher: Option<&'a Launcher<'a>>,
    process: TrainerProcess,
    pipe: Option<Pipe>,
    errors: Option<JoinHandle<()>>,
    say: fn(&str),
}

impl Transport for Workers<'_> {
    fn start(&mut self, start: &StartRun) -> io::Result<()> {
        let mut process = self.launcher.map_or_else(worker, |launcher| launcher(start))?;
        if cfg!(windows) {
            // A console takes no output of a process that has another one.
            process.stderr(Stdio::piped());
        }
        let (mut child, mut pipe) = spawn(process)?;
        if let Some(errors) = child.stderr.take() {
            let say = self.say;
            self.errors = Some(std::thread::spawn(move || read_lines(errors, say)));
        }
        if self.launcher.is_none() {
            pipe.send_first(&ToWorker::Train(Box::new(start.clone())))?;
        }
        self.process.replace(Some(child));
        self.pipe = Some(pipe);
        Ok(())
    }

    fn send(&mut self, command: &Command) {
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.send(&ToWorker::Command(command.clone()));
        }
    }

    fn record(&mut self, run: &Path, event: &Event) {
        if run.join(EVENTS_FILE).exists() {
            let _ = record(run, event);
        }
    }
}

impl Workers<'_> {
    /// Waits for a message; `Err(None)` if none came in time, else the exit code of the worker.
    fn receive(&mut self) -> io::Result<Received> {
        let Some(pipe) = &self.pipe else {
            std::thread::sleep(POLL);
            return Ok(Received::Nothing);
        };
        match pipe.messages.recv_timeout(POLL) {
            Ok(message) => Ok(Received::Message(message)),
            Err(RecvTimeoutError::Timeout) => Ok(Received::Nothing),
            Err(RecvTimeoutError::Disconnected) => {
                self.pipe = None;
                let child = self.process.replace(None);
                let status = child.map(|mut child| child.wait()).transpose()?;
                if let Some(errors) = self.errors.take() {
                    // Else this process could exit before their last line.
                    let _ = errors.join();
                }
                // A process that was killed on Windows may have a code that is larger than a byte.
                let code = status.and_then(|status| status.code());
                Ok(Received::Ended(code.and_then(|code| u8::try_from(code).ok())))
            }
        }
    }
}

enum Received {
    Nothing,
    Message(FromWorker),
    Ended(Option<u8>),
}

/// Trains a run in a process that this one supervises, or in those that `launcher` starts; returns the
/// exit code of this process. `say` takes lines of the worker's stderr, where it has another console.
pub(crate) fn supervise(
    start: StartRun,
    launcher: Option<&Launcher<'_>>,
    process: TrainerProcess,
    commands: &Receiver<Command>,
    say: fn(&str),
    emit: &mut dyn FnMut(&Event),
) -> io::Result<u8> {
    let began = Instant::now();
    let workers = Workers { launcher, process: process.clone(), pipe: None, errors: None, say };
    let mut supervisor = Supervisor::start(workers, start, launcher.is_some())?;
    let mut failed: Option<Instant> = None;
    loop {
        for command in commands.try_iter() {
            supervisor.send(&command, began.elapsed(), emit);
        }
        if let Some(code) = supervisor.exit_code() {
            return Ok(code);
        }
        match supervisor.transport.receive()? {
            Received::Nothing => {}
            Received::Message(message) => supervisor.receive(message, emit),
            Received::Ended(status) => {
                failed = None;
                supervisor.worker_ended(status, began.elapsed(), emit);
            }
        }
        if supervisor.has_failed()
            && failed.get_or_insert_with(Instant::now).elapsed() > EXIT_TIMEOUT
        {
            process.kill();
        }
        supervisor.tick(began.elapsed())?;
    }
}
