//! `wgpt worker`: takes messages on stdin and answers them on stdout. Each process does one job.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::Sender;

use serde::de::Error;

use super::commands::Control;
use super::jobs::serve_request;
use super::pipe::send_to_owner;
use super::signals;
use super::training::{RunOutput, host, print_set_up};
use crate::protocol::{
    Command, Event, Exit, Failure, FromWorker, MESSAGES_VERSION, Request, RunEnd, StartRun,
    StopReason, ToWorker,
};

/// The output of a worker: messages on stdout, text for people on stderr.
pub(crate) struct WorkerOutput {
    say: fn(&str),
    /// False for the ranks after the first, which report only their failures.
    is_first: bool,
}

impl WorkerOutput {
    /// Announces that this process takes messages.
    pub fn ready(say: fn(&str), is_first: bool) -> Self {
        send_to_owner(&FromWorker::Ready { version: MESSAGES_VERSION });
        Self { say, is_first }
    }
}

impl RunOutput for WorkerOutput {
    fn emit(&mut self, event: &Event) {
        if self.is_first {
            send_event(event);
        }
    }

    fn say(&self, text: &str) {
        if self.is_first {
            (self.say)(text);
        }
    }

    fn set_up(&mut self) -> Option<Sender<()>> {
        self.is_first.then(|| print_set_up(send_event))
    }

    fn selected(&self, uses_matrices: bool) {
        send_to_owner(&FromWorker::Selected { uses_matrices });
    }

    fn on_failure(&self) -> fn(&Failure) {
        |failure| send_to_owner(&FromWorker::Ended(RunEnd::Failed(failure.clone())))
    }

    fn ended(&self, reason: StopReason) {
        send_to_owner(&FromWorker::Ended(RunEnd::Stopped { reason }));
    }
}

fn send_event(event: &Event) {
    send_to_owner(&FromWorker::Event(Box::new(event.clone())));
}

/// Reads a line of a worker's stdin that is a command.
pub(crate) fn read_command(line: &str) -> serde_json::Result<Command> {
    match serde_json::from_str(line)? {
        ToWorker::Command(command) => Ok(command),
        _ => Err(serde_json::Error::custom("a run is training")),
    }
}

/// Does the job of the first message; returns the exit code. `say` prints to stderr, and `start_logging`
/// sets what the libraries log.
pub(crate) fn serve(say: fn(&str), start_logging: fn(u8)) -> ExitCode {
    let output = WorkerOutput::ready(say, true);
    let mut line = String::new();
    // A closed stdin is an empty line, which is no message.
    let _ = std::io::stdin().lock().read_line(&mut line);
    match serde_json::from_str(&line) {
        Ok(ToWorker::Train(start)) => {
            start_logging(start.verbose);
            train(*start, false, output)
        }
        Ok(ToWorker::Supervise(start)) => {
            start_logging(start.verbose);
            report_panics();
            train(*start, true, output)
        }
        Ok(ToWorker::Request(request)) => {
            let (verbose, ends_with_owner) = match request {
                Request::ListDevices { verbose, .. } => (verbose, true),
                Request::Sample(_)
                | Request::Get { .. }
                | Request::Measure { .. }
                | Request::WatchDevice { .. }
                | Request::TestKernels(_) => (0, true),
                _ => (0, false),
            };
            start_logging(verbose);
            if ends_with_owner {
                exit_with_owner();
            }
            serve_request(request, say);
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(2),
    }
}

/// Ends this process when its stdin closes: its owner is gone. A Ctrl-C reaches only the owner.
fn exit_with_owner() {
    std::thread::spawn(|| {
        // An error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        signals::exit(Exit::Failure as i32);
    });
}

/// Reports a panic that ends this process as an error too, for a window without a terminal.
fn report_panics() {
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        former(panic);
        if std::thread::current().name() == Some("main") {
            let text = panic.payload_as_str().unwrap_or("no message");
            // Further lines are a library's backtrace.
            let text = format!("wgpt panicked: {}", text.lines().next().unwrap_or_default());
            let hint = "this is a bug in wgpt: please report it with this message";
            let failure = Failure { exit: Exit::Panic, ..Failure::new(text, hint) };
            send_to_owner(&FromWorker::Ended(RunEnd::Failed(failure)));
        }
    }));
}

/// Trains a run, in this process or in another worker that this one supervises.
fn train(start: StartRun, supervised: bool, mut output: WorkerOutput) -> ExitCode {
    let code = Control::listen(false, output.say).and_then(|control| {
        // If the supervisor is killed, nothing is left to restart this run, or to stop it.
        control.read_stdin(!supervised, read_command, send_event);
        if supervised {
            control.follow_file(&start.run, send_event);
        }
        host(start, supervised, &control, output.say, &mut output)
    });
    ExitCode::from(code.unwrap_or_else(|failure| {
        output.on_failure()(&failure);
        failure.exit as u8
    }))
}
