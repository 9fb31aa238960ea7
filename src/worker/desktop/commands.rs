//! Commands for a run: from signals, from stdin, and from a file in the run folder.

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::pipe::WorkerProcess;
use super::signals;
use crate::protocol::{Command, Event, Failure, Setting};
use crate::runs::{COMMANDS_FILE, Tail};
use crate::text::excerpt;

/// The interval at which the command file is polled.
const FILE_POLL: Duration = Duration::from_millis(250);

/// The time in which a launcher passes a stop on, with several signals.
const LAUNCHER_SIGNALS: Duration = Duration::from_secs(10);

/// Returns true if `signal`, a time after the first, belongs to the same stop. Otherwise the user wants the
/// process to end at once. mpirun sends SIGTERM after a SIGINT, Slurm another SIGTERM at the end of a job's
/// time. To end a process at once, a launcher kills it. When a terminal closes, the kernel and the shell each
/// send a signal. On Windows, a console and a session that end may each tell it, after a Ctrl-C too, and the
/// system itself ends whoever takes too long.
fn is_same_stop(by_launcher: bool, signal: i32, since_first: Duration) -> bool {
    signal == signals::HANGUP
        || cfg!(windows) && signal == signals::TERMINATE
        || by_launcher && (signal != signals::INTERRUPT || since_first < LAUNCHER_SIGNALS)
}

/// The commands to the run of this process, and the signals that stop it.
pub(crate) struct Control {
    sender: Sender<Command>,
    pub commands: Receiver<Command>,
    /// The process that trains, if this one supervises it.
    pub(super) process: WorkerProcess,
    /// The number of the first signal, 0 until it comes.
    signal: Arc<AtomicI32>,
}

impl Control {
    /// Listens for signals, which a person or a service sends, or the launcher that has started this process
    /// with others. The first one stops the run with a checkpoint, the second ends this process and its
    /// trainer at once, unless it belongs to the same stop. `say` announces the stop.
    pub fn listen(by_launcher: bool, say: fn(&str)) -> Result<Self, Failure> {
        let (sender, commands) = channel();
        let process = WorkerProcess::default();
        let signal = Arc::new(AtomicI32::new(0));
        let this = Self { sender, commands, process, signal };
        let sender = this.sender.clone();
        let process = this.process.clone();
        let first = this.signal.clone();
        let mut stopped: Option<Instant> = None;
        signals::listen(move |signal| {
            if let Some(stopped) = stopped {
                if is_same_stop(by_launcher, signal, stopped.elapsed()) {
                    return;
                }
                process.kill();
                signals::exit(128 + signal);
            }
            stopped = Some(Instant::now());
            first.store(signal, Ordering::SeqCst);
            let _ = sender.send(Command::Stop);
            say(if by_launcher {
                "stopping with a checkpoint"
            } else {
                "stopping with a checkpoint; press Ctrl-C again to stop at once"
            });
        })?;
        Ok(this)
    }

    /// Returns the exit code of this process after a stopped run. After a signal it is the code that a shell
    /// reports: 129, 130 or 143.
    pub fn exit_code(&self) -> u8 {
        let signal = self.signal.load(Ordering::SeqCst);
        if signal == 0 { 0 } else { 128 + signal as u8 }
    }

    /// Reads commands from the lines of stdin on a thread, until it closes. Then the run stops if
    /// `stop_on_close` is set, by the caller or by [`Setting::StopOnClose`]; else it resumes if it is
    /// paused, because the writer cannot resume it any more. `warn` takes a warning about each line that
    /// is no command.
    pub fn read_stdin(
        &self,
        mut stop_on_close: bool,
        read: fn(&str) -> serde_json::Result<Command>,
        warn: fn(&Event),
    ) {
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if line.trim().is_empty() {
                    continue;
                }
                match read(&line) {
                    Ok(Command::Set(Setting::StopOnClose(stop))) => stop_on_close = stop,
                    read => pass_on(read, &sender, warn),
                }
            }
            let _ = sender.send(if stop_on_close { Command::Stop } else { Command::Resume });
        });
    }

    /// Follows the file of commands to a run on a thread. Other processes append to it while the run
    /// trains, like a window that was opened later.
    pub fn follow_file(&self, run: &Path, warn: fn(&Event)) {
        let mut tail = Tail::of(run.join(COMMANDS_FILE), false);
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(FILE_POLL);
                for line in tail.read::<Value>() {
                    match serde_json::from_value(line) {
                        // It is about the writer's stdin, which is not connected to this process.
                        Ok(Command::Set(Setting::StopOnClose(_))) => {}
                        // Only who starts the run again may say so.
                        Ok(Command::StandBy) => {}
                        read => pass_on(read, &sender, warn),
                    }
                }
            }
        });
    }
}

/// Sends a command to the run, which may have ended.
fn pass_on(command: serde_json::Result<Command>, sender: &Sender<Command>, warn: fn(&Event)) {
    match command {
        Ok(command) => drop(sender.send(command)),
        Err(error) => {
            let text = format!("a command was ignored: {}", excerpt(error));
            warn(&Event::Warning { text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_sends_several_signals_for_one_stop() {
        use signals::{INTERRUPT, TERMINATE};
        let (soon, late) = (Duration::from_millis(30), Duration::from_secs(120));
        assert!(!is_same_stop(false, INTERRUPT, soon), "a second Ctrl-C ends at once");
        assert_eq!(is_same_stop(false, TERMINATE, soon), cfg!(windows));
        for signal in [INTERRUPT, TERMINATE] {
            assert!(is_same_stop(true, signal, soon));
        }
        assert!(is_same_stop(false, signals::HANGUP, soon));
        // Slurm's at the end of the time, for which the first was a warning.
        assert!(is_same_stop(true, TERMINATE, late));
        assert!(!is_same_stop(true, INTERRUPT, late));
    }
}
