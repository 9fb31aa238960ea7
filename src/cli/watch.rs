//! Ends the process when its device fails.
//!
//! After out-of-memory or a lost device, a thread that waits for the device may wait forever, and
//! other threads panic. Only the end of the process reliably frees the memory of the device. So the
//! process exits, with an error message and an exit code.

use std::io::Write;
use std::time::Duration;

use super::{CliError, signals};
use crate::gpu::{DeviceError, DeviceKind, OpenDevice, Watchdog};
use crate::protocol::{Cause, Event, Exit};
use crate::ranks::PlanLimit;
use crate::runs::json_line;
use crate::train::TrainError;

/// The interval at which the device is checked.
const POLL: Duration = Duration::from_millis(20);

/// Checks for which a panic waits for its cause: a second.
const PANIC_POLLS: usize = 50;

/// The hint after a failure in a command that is not a run.
const NOTHING_TO_RESUME: &str =
    "other programs may be using the device: close them, or choose another one with --device";

/// The form in which a failure is reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FailureOutput {
    /// Lines on stderr.
    Text,
    /// Lines on stderr, and an event on stdout.
    TextAndEvent,
    /// An event on stdout, for a supervisor.
    Event,
}

impl FailureOutput {
    pub fn new(json: bool, supervised: bool) -> Self {
        match (json, supervised) {
            (_, true) => FailureOutput::Event,
            (true, false) => FailureOutput::TextAndEvent,
            (false, false) => FailureOutput::Text,
        }
    }
}

/// The work that ends when the device fails.
pub(super) enum Watched {
    /// A command that is not a run.
    Command,
    /// A run, which can be resumed.
    Run,
    /// One rank of a run.
    Rank {
        /// Its place in words.
        label: String,
        /// The limit of its next process after it ran out of memory.
        limit: PlanLimit,
    },
}

/// Ends this process with exit code 5 when `device` fails, from now on; with 3 if a rank runs out of
/// memory and has no smaller plan.
pub(super) fn watch(device: &OpenDevice, output: FailureOutput, watched: Watched) {
    let (watchdog, name) = (device.watchdog.clone(), device.info.name.clone());
    let former = std::panic::take_hook();
    let cause = watchdog.clone();
    std::panic::set_hook(Box::new(move |panic| {
        // Threads of the driver may report the failure by a panic, or shortly after others panic.
        let message = panic.payload_as_str().unwrap_or_default();
        if let Some(error) = DeviceError::from_message(&name, message) {
            cause.fail(error);
        }
        for _ in 0..PANIC_POLLS {
            if cause.failure().is_some() {
                // This panic only follows from the failure, and the process is about to exit.
                loop {
                    std::thread::park();
                }
            }
            std::thread::sleep(POLL);
        }
        former(panic);
    }));
    // The CPU does not hang, and nothing restarts its process.
    let checks_heartbeat = device.info.kind != DeviceKind::Cpu;
    std::thread::spawn(move || {
        let error = wait_for_failure(&watchdog, checks_heartbeat);
        let hint = match watched {
            Watched::Command => NOTHING_TO_RESUME.to_string(),
            Watched::Run | Watched::Rank { .. } => error.hint().unwrap_or_default(),
        };
        let (text, code) = match &watched {
            Watched::Rank { label, limit } => {
                let lowered = match error.cause() {
                    Some(Cause::OutOfMemory) => limit.lower(),
                    _ => Ok(()),
                };
                match lowered {
                    Ok(()) => (format!("{label}: {error}"), error.exit_code()),
                    Err(reason) => (format!("{label}: {error}, and {reason}"), Exit::DoesNotFit),
                }
            }
            Watched::Command | Watched::Run => (error.to_string(), error.exit_code()),
        };
        exit(&error, code, text, hint, output)
    });
}

fn wait_for_failure(watchdog: &Watchdog, checks_heartbeat: bool) -> CliError {
    loop {
        match watchdog.failure() {
            Some(error) => return CliError::Train(TrainError::Device(error.clone())),
            None => {
                std::thread::sleep(POLL);
                if checks_heartbeat {
                    watchdog.check();
                }
            }
        }
    }
}

fn exit(error: &CliError, code: Exit, text: String, hint: String, output: FailureOutput) {
    if output != FailureOutput::Event {
        message!("error: {text}");
        message!("  hint: {hint}");
    }
    if output != FailureOutput::Text {
        // The exit code is the same if nobody reads this.
        let line = json_line(&Event::Error { text, hint, cause: error.cause() });
        let _ = writeln!(std::io::stdout(), "{line}");
    }
    signals::exit(code as i32);
}
