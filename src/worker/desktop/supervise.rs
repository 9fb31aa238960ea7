//! Runs the worker of a run as a child process, and starts it again as the [`Supervisor`] decides.
//!
//! If the supervisor itself is killed, or its console closes, the worker's stdin closes: it writes a
//! checkpoint and exits. A job object of Windows would kill it before that.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chrono::{DateTime, Local, TimeZone};

use super::awake::Awake;
use super::battery;
use super::commands::Control;
use super::pipe::{WorkerProcess, launched, read_lines, send, spawn, worker};
use super::room::{RoomWait, RoomWatch};
use crate::config::{Config, Hours, Priority};
use crate::disk::File;
use crate::protocol::{Command, Event, FromWorker, StartRun, ToWorker, Waiting};
use crate::runs::{self, EVENTS_FILE, record};
use crate::worker::supervisor::{ProcessEnd, Supervisor, Transport};

/// The interval at which commands are polled while the worker is silent.
const POLL: Duration = Duration::from_millis(50);

/// Time that a worker has to exit after it reported an error: its driver may wait for a device that does
/// not answer.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two looks at the clock.
const LOOK: Duration = Duration::from_secs(1);

/// The most messages in the queue. While it is full, the worker waits.
const CAPACITY: usize = 1024;

/// A worker behind pipes, or several workers with pipes that a launcher joins.
struct Workers<'a> {
    launcher: Option<&'a [OsString]>,
    process: WorkerProcess,
    /// The pipes, while a worker runs.
    pipes: Option<(ChildStdin, Receiver<FromWorker>)>,
    errors: Option<JoinHandle<()>>,
    /// The lock of a run without a worker that stands by.
    lock: Option<File>,
    say: fn(&str),
    emit: &'a mut dyn FnMut(&Event),
}

impl Transport for Workers<'_> {
    fn start(&mut self, start: &StartRun) -> io::Result<()> {
        let mut process = match self.launcher {
            Some(launcher) => launched(launcher, start)?,
            None => worker()?,
        };
        if cfg!(windows) {
            // A console takes no output of a process that has another one.
            process.stderr(Stdio::piped());
        }
        self.lock = None;
        let first = ToWorker::Train(Box::new(start.clone()));
        let first = self.launcher.is_none().then_some(&first);
        let (mut child, input, mut messages) = spawn(process, first)?;
        if let Some(errors) = child.stderr.take() {
            let say = self.say;
            self.errors = Some(std::thread::spawn(move || read_lines(errors, say)));
        }
        let (sender, receiver) = sync_channel(CAPACITY);
        std::thread::spawn(move || messages.all(|message| sender.send(message).is_ok()));
        self.process.set(child);
        self.pipes = Some((input, receiver));
        Ok(())
    }

    fn send(&mut self, command: &Command) {
        if let Some((input, _)) = &mut self.pipes {
            let _ = send(input, &ToWorker::Command(command.clone()));
        }
    }

    fn record(&mut self, run: &Path, event: &Event) {
        if run.join(EVENTS_FILE).exists() {
            let _ = record(run, event);
        }
    }

    fn emit(&mut self, event: Event) {
        (self.emit)(&event);
    }

    fn hold(&mut self, run: &Path) {
        self.lock = runs::locked(run).ok();
    }

    fn memory(&mut self, device: &str) -> Option<[u64; 2]> {
        RoomWatch::memory(device)
    }
}

impl Workers<'_> {
    /// Waits a moment for a message. The messages end with the worker.
    fn receive(&self) -> Result<FromWorker, RecvTimeoutError> {
        if let Some((_, messages)) = &self.pipes {
            return messages.recv_timeout(POLL);
        }
        std::thread::sleep(POLL);
        Err(RecvTimeoutError::Timeout)
    }

    /// Waits for the end of the worker.
    fn wait(&mut self) -> ProcessEnd {
        self.pipes = None;
        let end = self.process.wait();
        if let Some(errors) = self.errors.take() {
            // Otherwise this process could exit before their last line.
            let _ = errors.join();
        }
        end
    }
}

/// Returns the wait for the next hours of a run that is outside of them.
fn outside<Z: TimeZone>(hours: &Hours, now: &DateTime<Z>) -> Waiting
where
    Z::Offset: Display,
{
    let next = hours.next(now);
    let format = if next.date_naive() == now.date_naive() { "%H:%M" } else { "%H:%M on %A" };
    let wait = next.clone().signed_duration_since(now);
    let seconds = wait.num_seconds().max(1) as u64;
    let text = format!("outside the hours {hours}; the run continues at {}", next.format(format));
    Waiting { text, seconds, ..Waiting::default() }
}

/// Watches what a run of some hours, or in the background, waits for.
#[derive(Default)]
struct Obstacles {
    is_on_battery: bool,
    /// When the computer was last found on battery power.
    battery: Option<Instant>,
    looks: u64,
}

impl Obstacles {
    /// A battery is asked every ten looks: all of them take a moment.
    const BATTERY: u64 = 10;

    /// Returns why a run with this configuration is not to train now, and true if the battery is why.
    fn look(&mut self, config: &Config) -> (Option<Waiting>, bool) {
        let is_background = config.priority == Priority::Background;
        if is_background && self.looks.is_multiple_of(Self::BATTERY) {
            self.found(battery::in_use(), Instant::now());
        }
        self.looks += 1;
        let is_saved = self.saves(Instant::now(), config.quiet_time.unwrap_or_default());
        let now = Local::now();
        let outside = (!config.hours.contain(&now)).then(|| outside(&config.hours, &now));
        (outside.or_else(|| is_saved.then(on_battery)), is_saved)
    }

    fn found(&mut self, is_on_battery: bool, now: Instant) {
        self.is_on_battery = is_on_battery;
        if is_on_battery {
            self.battery = Some(now);
        }
    }

    /// Returns true on battery power, and until the computer has been plugged in for this long.
    fn saves(&self, now: Instant, quiet: Duration) -> bool {
        let since = self.battery.map(|at| now.saturating_duration_since(at));
        self.is_on_battery || since.is_some_and(|since| since < quiet)
    }
}

fn on_battery() -> Waiting {
    let text = "the computer is on battery power; the run continues when it is plugged in";
    Waiting { text: text.into(), ..Waiting::default() }
}

/// Trains a run in a process that this one supervises, or in several that `launcher`, a program with its
/// arguments, starts. Outside the hours of `config`, and while others come first, no worker runs. Returns the exit code
/// for this process. `say` takes lines of the worker's stderr, if it has another console.
pub(crate) fn supervise(
    mut start: StartRun,
    launcher: Option<&[OsString]>,
    config: &Config,
    control: &Control,
    say: fn(&str),
    emit: &mut dyn FnMut(&Event),
) -> io::Result<u8> {
    let began = Instant::now();
    let process = control.process.clone();
    let has_ranks = launcher.is_some();
    // A rank would wait for the others.
    start.makes_way = !has_ranks;
    let workers = Workers { launcher, process, pipes: None, errors: None, lock: None, say, emit };
    let mut supervisor = Supervisor::start(workers, start, has_ranks)?;
    let mut failed: Option<Instant> = None;
    let mut looked: Option<Instant> = None;
    let mut room = None;
    let mut obstacles = Obstacles::default();
    let mut awake = None;
    loop {
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            let (reason, is_saved) = obstacles.look(config);
            if config.keep_awake && !has_ranks && !is_saved {
                awake.get_or_insert_with(Awake::new);
            } else {
                awake = None;
            }
            match reason {
                Some(reason)
                    if supervisor.standby().is_none_or(|told| told.text != reason.text) =>
                {
                    supervisor.stand_by(reason, began.elapsed());
                }
                None if supervisor.standby().is_some() => supervisor.end_standby(began.elapsed()),
                _ => {}
            }
            if config.end_at.is_some_and(|end| end <= Local::now()) {
                supervisor.end_by_clock(began.elapsed());
            }
            match supervisor.needs() {
                None => room = None,
                Some(need) => {
                    if room.get_or_insert_with(RoomWait::default).is_over(need, config) {
                        room = None;
                        supervisor.found_room(began.elapsed());
                    }
                }
            }
        }
        for command in control.commands.try_iter() {
            supervisor.send(&command, began.elapsed());
        }
        if let Some(code) = supervisor.exit_code {
            return Ok(if code == 0 { control.exit_code() } else { code });
        }
        match supervisor.transport.receive() {
            Ok(message) => supervisor.receive(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                failed = None;
                let end = supervisor.transport.wait();
                if has_ranks {
                    // A signal to all processes ends a launcher at once; this one may not have taken it yet.
                    std::thread::sleep(POLL);
                }
                for command in control.commands.try_iter() {
                    supervisor.send(&command, began.elapsed());
                }
                supervisor.worker_ended(end, began.elapsed());
            }
        }
        if supervisor.has_failed()
            && failed.get_or_insert_with(Instant::now).elapsed() > EXIT_TIMEOUT
        {
            supervisor.transport.process.kill();
        }
        supervisor.tick(began.elapsed())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn battery_power_counts_until_the_computer_was_plugged_in_for_long_enough() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        for quiet in [0, 2, 120] {
            let mut obstacles = Obstacles::default();
            let saves = |obstacles: &Obstacles, second| {
                obstacles.saves(at(second), Duration::from_secs(quiet))
            };
            obstacles.found(false, at(0));
            assert!(!saves(&obstacles, 5));
            obstacles.found(true, at(10));
            // The next look at the battery is ten seconds later.
            assert!(saves(&obstacles, 10) && saves(&obstacles, 19), "{quiet} s");
            obstacles.found(false, at(20));
            assert_eq!(saves(&obstacles, 20), quiet == 120);
            assert!(!saves(&obstacles, 10 + quiet.max(10)));
        }
    }
}
