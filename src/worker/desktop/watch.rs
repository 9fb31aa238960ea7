//! Ends the process when its device fails.
//!
//! After out-of-memory or a lost device, a thread that waits for the device may wait forever, other
//! threads panic, and only the end of the process reliably frees the memory of the device.

use std::time::Duration;

use super::signals;
use crate::gpu::{DeviceError, DeviceKind, OpenDevice};
use crate::protocol::{Cause, Exit, Failure};
use crate::ranks::PlanLimit;

/// The interval at which the device is checked.
const POLL: Duration = Duration::from_millis(20);

/// Checks for which a panic waits for its cause: a second.
const PANIC_POLLS: usize = 50;

/// The hint after a failure in a command that is not a run.
const NOTHING_TO_RESUME: &str =
    "other programs may be using the device: close them, or choose another one with --device";

/// The work that ends when the device fails.
pub(crate) enum Watched {
    /// A command that is not a run.
    Command,
    /// A run, which can be resumed.
    Run,
    /// A rank, with its label, and the limit of its next process after it ran out of memory.
    Rank { label: String, limit: PlanLimit },
}

/// From now on, if `device` fails, calls `report` and ends this process: with exit code 5, or with 3 if a
/// rank runs out of memory and has no smaller plan.
pub(crate) fn watch(
    device: &OpenDevice,
    watched: Watched,
    report: impl FnOnce(&Failure) + Send + 'static,
) {
    let watchdog = device.watchdog.clone();
    let name = device.info.name.clone();
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
                // The failure has caused this panic, and the process is about to exit.
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
        let error = loop {
            if let Some(error) = watchdog.failure() {
                break error.clone();
            }
            std::thread::sleep(POLL);
            if checks_heartbeat {
                watchdog.check();
            }
        };
        let mut failure = Failure::from(error);
        match watched {
            Watched::Run => {}
            Watched::Command => failure.hint = NOTHING_TO_RESUME.into(),
            Watched::Rank { label, limit } => {
                failure.text = format!("{label}: {}", failure.text);
                if failure.cause == Some(Cause::OutOfMemory)
                    && let Err(reason) = limit.lower()
                {
                    failure.text += &format!(", and {reason}");
                    failure.exit = Exit::DoesNotFit;
                }
            }
        }
        report(&failure);
        signals::exit(failure.exit as i32);
    });
}
