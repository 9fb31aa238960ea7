//! Commands for a run: from signals, from stdin, and from a file in the run folder.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::pipe::WorkerProcess;
use super::signals;
use crate::protocol::{Command, Event, Failure, Setting};
use crate::runs::Tail;

/// The interval at which the command file is polled.
const FILE_POLL: Duration = Duration::from_millis(250);

/// The time in which a launcher passes a stop on, with several signals.
const LAUNCHER_SIGNALS: Duration = Duration::from_secs(10);

/// The signals that a process is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sent {
    /// By a person or a service.
    Directly,
    /// By the launcher that has started it with others: mpirun sends SIGTERM after a SIGINT, Slurm
    /// another SIGTERM at the end of a job's time. What a launcher ends at once, it kills.
    ByLauncher,
}

impl Sent {
    /// Returns true if `signal`, a time after the first, belongs to the same stop. Else the user wants
    /// an end at once.
    fn is_same_stop(self, signal: i32, since_first: Duration) -> bool {
        self == Sent::ByLauncher && (signal != signals::INTERRUPT || since_first < LAUNCHER_SIGNALS)
    }
}

/// Listens for signals. The first one stops the run with a checkpoint, the second ends this process
/// and its trainer at once, unless it belongs to the same stop. Returns the number of the first signal,
/// 0 until it comes. `say` announces the stop.
pub(crate) fn handle_signals(
    sender: Sender<Command>,
    trainer: WorkerProcess,
    sent: Sent,
    say: fn(&str),
) -> Result<Arc<AtomicI32>, Failure> {
    let first = Arc::new(AtomicI32::new(0));
    let seen = first.clone();
    let mut stopped: Option<Instant> = None;
    let handle = move |signal: i32| {
        if let Some(stopped) = stopped {
            if sent.is_same_stop(signal, stopped.elapsed()) {
                return;
            }
            trainer.kill();
            signals::exit(128 + signal);
        }
        stopped = Some(Instant::now());
        seen.store(signal, Ordering::SeqCst);
        let _ = sender.send(Command::Stop);
        say(match sent {
            Sent::Directly => "stopping with a checkpoint; press Ctrl-C again to stop at once",
            Sent::ByLauncher => "stopping with a checkpoint",
        });
    };
    signals::listen(handle)?;
    Ok(first)
}

/// Reads commands from the lines of stdin on a thread, until it closes. Then the run stops if
/// `stop_on_close` is set, by the caller or by [`Setting::StopOnClose`]; else it resumes if it is paused,
/// because the writer cannot resume it any more. `warn` takes a warning about each line that is no command.
pub(crate) fn read_stdin(
    sender: Sender<Command>,
    mut stop_on_close: bool,
    read: fn(&str) -> serde_json::Result<Command>,
    warn: fn(&Event),
) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line.trim().is_empty() {
                continue;
            }
            match read(&line) {
                Ok(Command::Set(Setting::StopOnClose(stop))) => stop_on_close = stop,
                Ok(command) => {
                    if sender.send(command).is_err() {
                        return;
                    }
                }
                Err(error) => warn(&ignored(&error)),
            }
        }
        let _ = sender.send(if stop_on_close { Command::Stop } else { Command::Resume });
    });
}

/// Follows a file of commands on a thread. Other processes append to it while the run trains, like
/// a window that was opened later.
pub(crate) fn follow_file(path: PathBuf, sender: Sender<Command>, warn: fn(&Event)) {
    let mut tail = Tail::<Value>::of(path, false);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(FILE_POLL);
            for line in tail.read() {
                match serde_json::from_value(line) {
                    // About the writer's stdin connection, which is not this one.
                    Ok(Command::Set(Setting::StopOnClose(_))) => {}
                    Ok(command) => {
                        if sender.send(command).is_err() {
                            return;
                        }
                    }
                    Err(error) => warn(&ignored(&error)),
                }
            }
        }
    });
}

fn ignored(error: &serde_json::Error) -> Event {
    Event::Warning { text: format!("a command was ignored: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_sends_several_signals_for_one_stop() {
        use signals::{INTERRUPT, TERMINATE};
        let (soon, late) = (Duration::from_millis(30), Duration::from_secs(120));
        for signal in [INTERRUPT, TERMINATE] {
            assert!(!Sent::Directly.is_same_stop(signal, soon), "a second Ctrl-C ends at once");
            assert!(Sent::ByLauncher.is_same_stop(signal, soon));
        }
        // Slurm's at the end of the time, for which the first was a warning.
        assert!(Sent::ByLauncher.is_same_stop(TERMINATE, late));
        assert!(!Sent::ByLauncher.is_same_stop(INTERRUPT, late));
    }
}
