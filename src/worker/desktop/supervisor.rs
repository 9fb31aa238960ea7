//! Runs the trainer as a child process and restarts it when its device fails.
//!
//! After out-of-memory or a lost device, only the end of a process reliably frees the memory of the
//! device. So the process that the user controls opens no device: it passes commands in and events
//! out, and when the trainer fails it starts another from the last checkpoint, as
//! [`Recovery`] decides.
//!
//! If the supervisor itself is killed, or its console closes, the trainer's stdin closes: it writes a
//! checkpoint and exits. A job object of Windows would kill it before that.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::protocol::{
    AppliedCommands, Cause, Command, Decision, DeviceLine, Event, Exit, Recovery, StopReason,
    TrainerFailure,
};
use crate::runs::{EVENTS_FILE, has_checkpoint, record};

/// The interval at which commands are polled while the trainer is silent.
const POLL: Duration = Duration::from_millis(50);

/// Time that a trainer has to exit after it reported a failure of its device.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Capacity of the event channel. When it is full, the trainer blocks.
const EVENT_CAPACITY: usize = 1024;

/// The variable that lets Open MPI send a message over TCP at once, up to a size above that of every
/// message between ranks. Else both directions of a connection wait for each other: on a network of
/// 1 Gbit/s a sum takes 1.7 times as long.
const WHOLE_MESSAGES: (&str, &str) = ("OMPI_MCA_btl_tcp_eager_limit", "1114112");

/// The supervisor of a run.
pub(crate) struct Supervisor<'a> {
    /// The program to run: this one.
    pub program: PathBuf,
    /// The program that starts several of it and its arguments, as mpirun does; empty to run one.
    pub launcher: Vec<OsString>,
    /// The arguments after `train`, without those that the supervisor sets itself.
    pub args: Vec<OsString>,
    /// The device as `--device` takes it. Once a trainer has opened a device, its successors use no
    /// other: a run must not move to the CPU because its GPU is away for a moment.
    pub device: String,
    /// The run folder.
    pub run: PathBuf,
    /// True to continue from its newest checkpoint.
    pub resume: bool,
    /// The running trainer.
    pub trainer: TrainerProcess,
    /// Receives the events of all trainers, and of the supervisor.
    pub emit: &'a mut dyn FnMut(&Event),
    /// Prints a line of a trainer's stderr, where the trainer has another console than this process.
    pub say: fn(&str),
}

/// A handle of the trainer's process that another thread can kill.
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

/// The end of a trainer's process.
struct TrainerExit {
    /// The exit code; `None` if a signal killed it.
    code: Option<u8>,
    /// True if it reported an error.
    reported: bool,
    /// Its events, summed up; the error included.
    failure: TrainerFailure,
    /// The device that it opened.
    device: Option<DeviceLine>,
}

/// Options of the next trainer that depend on the former ones.
struct Restart {
    resume: bool,
    /// The plan to which an out-of-memory limited the run.
    plan: Vec<OsString>,
    /// The device that the run has used so far.
    device: Option<DeviceLine>,
}

impl Supervisor<'_> {
    /// Runs trainers until the run ends; returns the exit code of the process.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn run(mut self, commands: &Receiver<Command>) -> io::Result<u8> {
        let began = Instant::now();
        let has_launcher = !self.launcher.is_empty();
        let mut recovery = if has_launcher { Recovery::of_ranks() } else { Recovery::default() };
        let mut applied = AppliedCommands::default();
        let mut next = Restart { resume: self.resume, plan: Vec::new(), device: None };
        loop {
            let exit = self.run_trainer(&next, began.elapsed(), commands, &mut applied)?;
            next.device = exit.device.clone().or(next.device);
            if !exit.is_recoverable(has_launcher) {
                let is_refused = exit.code == Some(Exit::DoesNotFit as u8);
                let decision = is_refused.then(|| recovery.refused(&exit.failure)).flatten();
                if let Some(Decision::GiveUp { error, exit_code }) = decision {
                    self.emit_and_record(&error);
                    return Ok(exit_code as u8);
                }
                if exit.reported {
                    (self.emit)(&exit.failure.into_event());
                }
                return Ok(exit.code.unwrap_or(Exit::Failure as u8));
            }
            let mut failure = exit.into_failure();
            if has_launcher {
                // Of one rank; another may have failed. Each keeps its own limit.
                failure.plan = None;
            }
            if applied.is_stopping() {
                failure.cause.get_or_insert(Cause::DeviceLost);
                self.emit_and_record(&failure.into_event());
                return Ok(Exit::DeviceFailed as u8);
            }
            match recovery.decide(failure) {
                Decision::GiveUp { error, exit_code } => {
                    match exit_code {
                        // The run was never touched: its record stays as it is.
                        Exit::NoDevice => (self.emit)(&error),
                        _ => self.emit_and_record(&error),
                    }
                    return Ok(exit_code as u8);
                }
                Decision::Restart { events, delay, plan } => {
                    next.plan = plan.map_or(next.plan, |plan| plan_options(&plan));
                    events.iter().for_each(|event| self.emit_and_record(event));
                    if !wait(delay, commands, &mut applied) {
                        self.emit_and_record(&Event::Done {
                            iter: recovery.furthest(),
                            best_val_loss: None,
                            seconds: began.elapsed().as_secs_f64(),
                            reason: StopReason::Stopped,
                        });
                        return Ok(0);
                    }
                }
            }
            // Not before a trainer has opened the folder: one that holds another run is refused.
            next.resume = self.resume || has_checkpoint(&self.run);
        }
    }

    /// Emits an event of the supervisor and appends it to the run's record.
    fn emit_and_record(&mut self, event: &Event) {
        if self.run.join(EVENTS_FILE).exists() {
            // A log line that a full disk does not take must not end the run.
            let _ = record(&self.run, event);
        }
        (self.emit)(event);
    }

    /// Runs one trainer from start to exit.
    fn run_trainer(
        &mut self,
        options: &Restart,
        elapsed: Duration,
        commands: &Receiver<Command>,
        applied: &mut AppliedCommands,
    ) -> io::Result<TrainerExit> {
        let mut child = self.spawn(options, elapsed)?;
        let events = read_events(&mut child);
        let say = self.say;
        let errors = child.stderr.take();
        let errors = errors.map(|pipe| std::thread::spawn(move || read_lines(pipe, say)));
        let mut input = child.stdin.take();
        self.trainer.replace(Some(child));
        applied.replay().for_each(|command| send(&mut input, &command));
        let failure = TrainerFailure::default();
        let mut exit = TrainerExit { code: None, reported: false, failure, device: None };
        let mut failed = None;
        loop {
            while let Ok(command) = commands.try_recv() {
                applied.apply(&command);
                send(&mut input, &command);
            }
            match events.recv_timeout(POLL) {
                Ok(event) => exit.observe(event, self.emit),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if exit.failure.cause.is_some()
                && failed.get_or_insert_with(Instant::now).elapsed() > EXIT_TIMEOUT
            {
                // Its driver waits for a device that does not answer.
                self.trainer.kill();
            }
        }
        let child = self.trainer.replace(None);
        let status = child.expect("the process that was just started").wait()?;
        if let Some(errors) = errors {
            // Else this process could exit before their last line.
            let _ = errors.join();
        }
        // A process that was killed on Windows has an exit code, which may be larger than a byte.
        exit.code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(exit)
    }

    fn spawn(&self, options: &Restart, elapsed: Duration) -> io::Result<Child> {
        let mut process = match self.launcher.split_first() {
            Some((launcher, arguments)) => {
                let mut process = Process::new(launcher);
                if std::env::var_os(WHOLE_MESSAGES.0).is_none() {
                    process.env(WHOLE_MESSAGES.0, WHOLE_MESSAGES.1);
                }
                process.args(arguments).arg(&self.program);
                process
            }
            None => Process::new(&self.program),
        };
        process.args(["train", "--json", "--supervised"]).args(&self.args).args(&options.plan);
        process.arg(format!("--elapsed={}", elapsed.as_secs()));
        // That of rank 0 is not that of the others.
        let opened = options.device.as_ref().filter(|_| self.launcher.is_empty());
        let device = opened.map_or(&self.device, |device| &device.id);
        process.arg(format!("--device={device}"));
        if let Some(device) = opened {
            process.arg(format!("--device-name={}", device.name));
        }
        process.arg("--run").arg(&self.run);
        if options.resume {
            process.arg("--resume");
        }
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        if cfg!(windows) {
            // A console takes no output of a process that has another one.
            process.stderr(Stdio::piped());
        }
        detach(&mut process);
        process.spawn()
    }
}

/// Keeps the terminal's Ctrl-C and its end from a process: they are for this one. On Windows the process
/// has a console without a window, so that none appears if this process has none.
pub(crate) fn detach(process: &mut Process) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(process, 0);
    #[cfg(windows)]
    {
        const CREATE_NO_WINDOW: u32 = 0x0800_0000;
        std::os::windows::process::CommandExt::creation_flags(process, CREATE_NO_WINDOW);
    }
}

impl TrainerExit {
    /// Records an event and passes it on, except for an error: it may not be the end of the run.
    fn observe(&mut self, event: Event, emit: &mut dyn FnMut(&Event)) {
        self.failure.observe(&event);
        match event {
            Event::Error { .. } => return self.reported = true,
            Event::Start { ref device, .. } => self.device = Some(device.clone()),
            _ => {}
        }
        emit(&event);
    }

    /// True if another process may succeed: the device failed, or the process was killed or
    /// panicked. A launcher exits with 128 and the number of the signal that killed one of its
    /// processes.
    fn is_recoverable(&self, has_launcher: bool) -> bool {
        let Some(code) = self.code else { return true };
        if has_launcher && code >= 128 && self.device.is_some() {
            return true;
        }
        match Exit::of(code) {
            Some(Exit::DeviceFailed | Exit::Panic) => true,
            Some(Exit::NoDevice) => self.failure.cause == Some(Cause::Unavailable),
            // A killed process on Windows has code 1. wgpt exits with it only after it reported an
            // error.
            Some(Exit::Failure) => cfg!(windows) && !self.reported,
            _ => false,
        }
    }

    fn into_failure(self) -> TrainerFailure {
        if self.reported {
            return self.failure;
        }
        let text = match self.code {
            None | Some(1) => "the trainer process was killed".to_string(),
            Some(code @ 128..) => {
                format!(
                    "a rank was killed (exit code {code} of the launcher, which names it above)"
                )
            }
            Some(code) => format!("the trainer process crashed (exit code {code})"),
        };
        let hint = "the lines above may explain it; -v shows the messages of the driver".into();
        TrainerFailure { text, hint, ..self.failure }
    }
}

/// Waits while applying commands; returns false after a stop command.
fn wait(delay: Duration, commands: &Receiver<Command>, applied: &mut AppliedCommands) -> bool {
    let began = Instant::now();
    loop {
        commands.try_iter().for_each(|command| applied.apply(&command));
        if applied.is_stopping() {
            return false;
        }
        let left = delay.saturating_sub(began.elapsed());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(POLL));
    }
}

/// Returns the options that hold a trainer to a plan.
fn plan_options(plan: &Plan) -> Vec<OsString> {
    let mut options = vec![
        format!("--micro_batch={}", plan.micro_batch),
        format!("--loss_chunk={}", plan.loss_chunk),
    ];
    if plan.grad_checkpoint {
        options.push("--grad_checkpoint=true".into());
    }
    if plan.offload_optimizer {
        options.push("--offload_optimizer=true".into());
    }
    options.into_iter().map(OsString::from).collect()
}

fn send(input: &mut Option<ChildStdin>, command: &Command) {
    let Ok(line) = serde_json::to_string(command) else { return };
    let sent = input.as_mut().is_some_and(|input| writeln!(input, "{line}").is_ok());
    if !sent {
        *input = None;
    }
}

/// Passes on the lines of a pipe until it closes.
fn read_lines(pipe: impl Read, say: impl Fn(&str)) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        say(String::from_utf8_lossy(&line).trim_end_matches('\r'));
    }
}

/// Reads the trainer's events on a thread; the channel closes when the trainer exits.
fn read_events(child: &mut Child) -> Receiver<Event> {
    let (sender, receiver) = sync_channel(EVENT_CAPACITY);
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // A library may print to stdout, too.
                let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn exit(code: Option<u8>, reported: bool) -> TrainerExit {
        TrainerExit { code, reported, failure: TrainerFailure::default(), device: None }
    }

    #[test]
    fn a_killed_trainer_is_restarted_and_one_that_reported_an_error_is_not() {
        // A signal; a panic; on Windows, where a killed process has code 1, that too.
        for (code, is_recoverable) in [(None, true), (Some(101), true), (Some(1), cfg!(windows))] {
            assert_eq!(exit(code, false).is_recoverable(false), is_recoverable, "{code:?}");
        }
        for code in [1, 2, 3, 7] {
            assert!(!exit(Some(code), true).is_recoverable(false), "{code}");
        }
        let text = |code| exit(code, false).into_failure().text;
        assert_eq!(text(None), "the trainer process was killed");
        assert_eq!(text(Some(1)), text(None));
        assert_eq!(text(Some(101)), "the trainer process crashed (exit code 101)");
    }

    #[test]
    fn lines_are_passed_on_without_their_ends() {
        let said = RefCell::new(Vec::new());
        read_lines(&b"error: a\r\n  hint: \xff\nlast"[..], |line| {
            said.borrow_mut().push(line.to_string())
        });
        assert_eq!(said.into_inner(), ["error: a", "  hint: \u{fffd}", "last"]);
    }
}
