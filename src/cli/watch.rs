//! Ending a process whose device has failed.
//!
//! After out-of-memory or a lost device, whatever waits for the device may wait for ever, other
//! threads panic because of it, and only the end of the process surely gives the memory back. So the
//! process ends, with words and a code of its own.

use std::io::Write;
use std::time::Duration;

use super::CliError;
use crate::gpu::{DeviceError, Kind, OpenDevice, Watchdog};
use crate::protocol::{Cause, Event};
use crate::train::TrainError;

/// How often the device's state is looked at, and how long a panic waits for its cause.
const TURN: Duration = Duration::from_millis(20);
const TURNS: usize = 50;

/// From now on, ends this process with code 5 when `device` fails. With `json`, stdout gets the
/// error as an event.
pub(super) fn watch(device: &OpenDevice, json: bool) {
    let (watchdog, name) = (device.watchdog.clone(), device.info.name.clone());
    let former = std::panic::take_hook();
    let cause = watchdog.clone();
    std::panic::set_hook(Box::new(move |panic| {
        // The driver's threads may tell of the failure by a panic, or a moment after others did.
        let words = panic.payload_as_str().unwrap_or_default();
        if let Some(error) = DeviceError::from_message(&name, words) {
            cause.fail(error);
        }
        for _ in 0..TURNS {
            if cause.failure().is_some() {
                // What follows from the failure says nothing: the process is about to end.
                loop {
                    std::thread::park();
                }
            }
            std::thread::sleep(TURN);
        }
        former(panic);
    }));
    // The processor does not hang, and nobody would start this process again.
    let pulse = device.info.kind != Kind::Cpu;
    std::thread::spawn(move || end_on(&watchdog, json, pulse));
}

fn end_on(watchdog: &Watchdog, json: bool, pulse: bool) {
    let error = loop {
        match watchdog.failure() {
            Some(error) => break CliError::Train(TrainError::Device(error.clone())),
            None => {
                std::thread::sleep(TURN);
                if pulse {
                    watchdog.check();
                }
            }
        }
    };
    let (text, hint) = (error.to_string(), error.hint().to_string());
    tell!("error: {text}");
    tell!("  hint: {hint}");
    if json {
        let cause = match watchdog.failure() {
            Some(DeviceError::OutOfMemory { .. }) => Cause::OutOfMemory,
            _ => Cause::DeviceLost,
        };
        // Nobody may be there to read it, and the exit code is that of the failure all the same.
        let line = Event::Error { text, hint, cause: Some(cause) }.to_json();
        let _ = writeln!(std::io::stdout(), "{line}");
    }
    // Without the exit handlers of a driver that may wait for its device.
    signal_hook::low_level::exit(i32::from(error.exit_code()));
}
