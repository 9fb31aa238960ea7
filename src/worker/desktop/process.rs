//! A run in a child process: the command line's `train`, over its pipes.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use super::Wake;
use crate::config::VARIABLE_PREFIX;
use crate::protocol::{Command, Event};
use crate::worker::{Ended, Launch, Start, detach, trainer::Transport};

/// Lines of a trainer's output that an error message quotes.
const LAST_LINES: usize = 20;

/// The pipes of a trainer's process.
pub(super) struct ChildProcess {
    child: Child,
    input: Option<ChildStdin>,
    events: Receiver<Event>,
    /// True once all events were read and the pipe is closed.
    is_drained: bool,
    output: Receiver<String>,
}

impl ChildProcess {
    /// Starts `wgpt train`.
    pub fn start(run: &Path, launch: &Launch, wake: &Wake) -> io::Result<Self> {
        let mut process = Process::new(std::env::current_exe()?);
        process.arg("train").arg("--json").arg("--run").arg(run).args(arguments(launch));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        without_settings(&mut process);
        detach(&mut process);
        let mut child = process.spawn()?;
        let events = lines(child.stdout.take(), wake, |line| serde_json::from_str(&line).ok());
        let output = lines(child.stderr.take(), wake, Some);
        let input = child.stdin.take();
        Ok(Self { child, input, events, is_drained: false, output })
    }
}

impl Transport for ChildProcess {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        serde_json::to_writer(&mut *input, command)?;
        writeln!(input)
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(event) => events.push(event),
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
        let lines: Vec<String> = self.output.try_iter().collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        // A process that was killed has no code, or on Windows one that wgpt does not use.
        let code = status.code().filter(|code| (0..256).contains(code));
        Some(Ended { code, output: last.join("\n") })
    }
}

fn arguments(launch: &Launch) -> Vec<OsString> {
    let settings = match &launch.start {
        Start::New { flags, .. } => flags.clone(),
        Start::Resume => vec!["--resume".into()],
    };
    // Whatever ends the window closes the pipes.
    let stop = launch.stop_on_close.then(|| "--stop-on-close".to_string());
    let device = format!("--device={}", launch.device);
    settings.into_iter().chain([device]).chain(stop).map(OsString::from).collect()
}

/// Keeps `WGPT_*` variables from a process: the window has taken them over, and may have changed
/// them.
pub(super) fn without_settings(process: &mut Process) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with(VARIABLE_PREFIX)) {
            process.env_remove(name);
        }
    }
}

/// Reads the lines of a pipe on a thread.
fn lines<T: Send + 'static>(
    pipe: Option<impl Read + Send + 'static>,
    wake: &Wake,
    read: impl Fn(String) -> Option<T> + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = channel();
    let wake = wake.clone();
    std::thread::spawn(move || {
        for line in pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
            let Ok(line) = line else { break };
            if read(line).is_some_and(|value| sender.send(value).is_err()) {
                break;
            }
            wake();
        }
        // The receiver sees the end of the pipe only once the sender is gone.
        drop(sender);
        wake();
    });
    receiver
}
