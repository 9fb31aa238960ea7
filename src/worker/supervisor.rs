//! Starts the worker of a run again when its device fails, as [`Recovery`] decides.
//!
//! After out-of-memory or a lost device, only the end of a process, or of a page's worker, reliably
//! frees the memory of the device. So the process that the user controls opens no device: commands go
//! in, events come out, and a worker that fails gets a successor, which continues from the last
//! checkpoint.
//!
//! The supervisor has no clock and no process. So a program and a page share it: they report what
//! happens, and differ in their [`Transport`].

use std::fmt;
use std::io;
use std::mem::take;
use std::path::Path;
use std::time::Duration;

use crate::gpu::{DeviceChoice, DeviceError};
use crate::protocol::{
    AppliedCommands, Cause, Command, Decision, Event, Exit, Failure, FromWorker, Recovery, RunEnd,
    RunError, StartRun, StopReason, TrainerFailure, Waiting,
};

/// The connection to the worker of a run, and to the views of the run.
pub(super) trait Transport {
    /// Starts a worker in place of the former one, which trains.
    fn start(&mut self, start: &StartRun) -> io::Result<()>;

    /// Passes a command on. A worker that is gone ignores it: its end is reported in another way.
    fn send(&mut self, command: &Command);

    /// Appends an event of the supervisor to the record of a run, which no worker has open. A log line
    /// that a full disk does not take must not end the run.
    fn record(&mut self, run: &Path, event: &Event);

    fn emit(&mut self, event: Event);

    /// Keeps other processes from training a run that stands by, until the next worker starts.
    fn hold(&mut self, _run: &Path) {}

    /// Returns the total and the free bytes of the memory of a device that no worker has open, where known.
    fn memory(&mut self, _device: &str) -> Option<[u64; 2]> {
        None
    }
}

/// How the process of a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    Code(u8),
    /// An error in its own code, or in a driver's, ended it: `signal 11`.
    Crashed(String),
    /// Something else ended it, like a person or the system.
    Killed,
}

impl ProcessEnd {
    fn code(&self) -> Option<u8> {
        if let Self::Code(code) = self { Some(*code) } else { None }
    }
}

/// Continues a sentence about the process.
impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A process that was killed on Windows has code 1.
            Self::Killed | Self::Code(1) => f.write_str("was killed"),
            Self::Code(code) => write!(f, "crashed (exit code {code})"),
            Self::Crashed(how) => write!(f, "crashed ({how})"),
        }
    }
}

/// The exit code of a process that SIGTERM has stopped.
const TERMINATED: u8 = 143;

/// The exit codes after the signals that stop a run.
const STOPPED: [u8; 3] = [129, 130, TERMINATED];

/// Returns true for a launcher's code of a rank that a signal has ended, except for those that stop a run.
fn is_kill(code: u8) -> bool {
    code >= 128 && !STOPPED.contains(&code)
}

/// Returns true if a launcher that got the signal of a stop may have ended with `code`. Open MPI's ends with 1.
fn is_end_by_signal(code: u8) -> bool {
    code <= 1 || STOPPED.contains(&code)
}

pub(super) struct Supervisor<T> {
    pub transport: T,
    start: StartRun,
    /// True if the worker is a launcher of several ranks. Each rank keeps its own plan and device.
    has_ranks: bool,
    recovery: Recovery,
    commands: AppliedCommands,
    /// The reports of the present worker, in case it fails.
    failure: TrainerFailure,
    /// The end that the present worker has reported.
    end: Option<RunEnd>,
    /// True once a worker has said anything.
    is_heard: bool,
    /// When the next worker starts, while none runs: the run waits for its device, or stands by.
    pub restart_at: Option<Duration>,
    /// Why the run is to stand by, if it is: no worker starts then.
    standby: Option<Waiting>,
    /// What the last worker has made way for: no worker starts before there is room.
    way: Option<Waiting>,
    /// The last of those that is over.
    former_way: Option<Waiting>,
    /// The last reason of both that was told.
    told: Option<Waiting>,
    /// The updates that had been made when memory for the smallest plan was missing, because others had it.
    crowded_at: u64,
    /// Since when no worker runs for one of these reasons.
    standby_since: Option<Duration>,
    /// The time of all former standbys.
    stood_by: Duration,
    /// Commands that no worker has carried out, as far as they have said.
    later: Vec<Command>,
    /// The exit code of a process that ends with this run, once it has ended.
    pub exit_code: Option<u8>,
}

impl<T: Transport> Supervisor<T> {
    pub fn start(mut transport: T, start: StartRun, has_ranks: bool) -> io::Result<Self> {
        transport.start(&start)?;
        Ok(Self {
            transport,
            start,
            has_ranks,
            recovery: if has_ranks { Recovery::of_ranks() } else { Recovery::default() },
            commands: AppliedCommands::default(),
            failure: TrainerFailure::default(),
            end: None,
            is_heard: false,
            restart_at: None,
            standby: None,
            way: None,
            former_way: None,
            told: None,
            crowded_at: 0,
            standby_since: None,
            stood_by: Duration::ZERO,
            later: Vec::new(),
            exit_code: None,
        })
    }

    /// Returns why the run is to stand by, other than for room.
    pub fn standby(&self) -> Option<&Waiting> {
        self.standby.as_ref()
    }

    /// Ends a run without a worker whose last moment is over.
    pub fn end_by_clock(&mut self, now: Duration) {
        if self.standby_since.is_some() {
            self.end_waiting(StopReason::MaxTime, now);
        }
    }

    /// Returns the bytes that the run needs on its device while no worker runs, and that device.
    pub fn needs(&self) -> Option<(u64, &str)> {
        let rests = self.restart_at.is_some() && self.standby.is_none();
        let waiting = self.way.as_ref().filter(|_| rests)?;
        Some((waiting.free_bytes?, &self.start.device))
    }

    /// Lets the run stand by, without a worker.
    pub fn stand_by(&mut self, reason: Waiting, now: Duration) {
        let is_told = self.standby.replace(reason).is_some();
        if self.restart_at.is_none() && !is_told {
            self.transport.send(&Command::StandBy);
        }
        self.rest(now);
    }

    /// Lets the run continue after a standby. A worker that has not ended yet is followed at once.
    pub fn end_standby(&mut self, now: Duration) {
        self.standby = None;
        self.rest(now);
    }

    /// Lets the run continue: there is what it needs.
    pub fn found_room(&mut self, now: Duration) {
        self.former_way = self.way.take();
        self.rest(now);
    }

    /// Begins or ends the standby of a run without a worker, and tells why it stands by.
    fn rest(&mut self, now: Duration) {
        if self.restart_at.is_none() {
            return;
        }
        let Some(reason) = self.standby.clone().or_else(|| self.way.clone()) else {
            if let Some(since) = self.standby_since.take() {
                self.stood_by += now.saturating_sub(since);
            }
            return;
        };
        if self.standby_since.is_none() {
            self.standby_since = Some(now);
            self.transport.hold(&self.start.run);
        }
        if self.told.as_ref() != Some(&reason) {
            self.report(Event::Waiting(reason.clone()));
            self.told = Some(reason);
        }
    }

    /// Returns the time of the run without its standbys.
    fn without_standby(&self, now: Duration) -> Duration {
        let present = self.standby_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        now.saturating_sub(self.stood_by + present)
    }

    /// Passes a command on. A run that waits only stops; its next worker gets the other commands. `now` counts from
    /// the start of the run, here as below.
    pub fn send(&mut self, command: &Command, now: Duration) {
        self.commands.apply(command);
        if matches!(command, Command::Finish { .. }) {
            // A worker that is about to end reads no more.
            self.later.push(command.clone());
        }
        if self.restart_at.is_none() {
            self.transport.send(command);
        } else if self.commands.is_stopping {
            self.end_waiting(StopReason::Stopped, now);
        }
    }

    /// Ends a run without a worker.
    fn end_waiting(&mut self, reason: StopReason, now: Duration) {
        self.report(Event::Done {
            iter: self.recovery.furthest,
            best_val_loss: None,
            seconds: self.without_standby(now).as_secs_f64(),
            reason,
        });
        self.finish(0);
    }

    pub fn receive(&mut self, message: FromWorker) {
        self.is_heard = true;
        match message {
            FromWorker::Event(event) => {
                self.failure.observe(&event);
                // A signal may end the launcher before it has passed on the last message of the ranks.
                if let Event::Done { reason, .. } = &*event
                    && self.has_ranks
                {
                    self.end = Some(RunEnd::Stopped { reason: *reason });
                }
                if let Event::Start { device, .. } = &*event {
                    self.start.is_restart = true;
                    // A run must not move to the CPU because its GPU is away for a moment. The other ranks
                    // have other devices than rank 0.
                    if !self.has_ranks {
                        self.start.device.clone_from(&device.id);
                        self.start.device_name = Some(device.name.clone());
                    }
                }
                if let Event::Finishing { .. } = &*event {
                    self.later.clear();
                }
                if let Event::Waiting(waiting) = &*event {
                    self.way = Some(waiting.clone());
                    self.told = self.way.clone();
                    self.start.has_made_way = true;
                }
                self.transport.emit(*event);
            }
            // The rank that fails first has the reason; the others only miss it.
            FromWorker::Ended(_)
                if self.has_ranks && self.has_failed() && self.failure.error.cause.is_none() => {}
            FromWorker::Ended(end) => {
                if let RunEnd::Failed(failure) = &end {
                    self.failure.error = failure.clone().into();
                }
                self.end = Some(end);
            }
            FromWorker::Selected { uses_matrices } => {
                self.failure.uses_matrices = Some(uses_matrices);
            }
            FromWorker::Ready { .. } | FromWorker::Reply(_) | FromWorker::Heartbeat => {}
        }
    }

    /// Returns true if the worker has reported an error: it is about to exit.
    pub fn has_failed(&self) -> bool {
        matches!(self.end, Some(RunEnd::Failed(_)))
    }

    /// Takes the end of the worker and of its process.
    pub fn worker_ended(&mut self, process: ProcessEnd, now: Duration) {
        let end = self.end.take();
        let mut failure = take(&mut self.failure);
        if let Some(RunEnd::Stopped { reason: StopReason::StandBy }) = end {
            self.recovery.reach(failure.iteration);
            return self.begin_standby(now);
        }
        let is_reported = matches!(end, Some(RunEnd::Failed(_)));
        if self.has_ranks
            && let Some(code) = self.end_of_launcher(end.as_ref(), process.code())
        {
            return self.finish(code);
        }
        let code = match end {
            // The launcher exits with the code of the first rank that has failed.
            _ if self.has_ranks => process.code(),
            Some(RunEnd::Stopped { .. }) => return self.finish(process.code().unwrap_or(0)),
            Some(RunEnd::Failed(failure)) => Some(failure.exit as u8),
            None => process.code(),
        };
        if !self.is_recoverable(code, is_reported, &failure) {
            if code == Some(Exit::DoesNotFit as u8) && self.start.has_made_way {
                // Others were faster.
                self.way = self.former_way.clone();
                return self.begin_standby(now);
            }
            if code == Some(Exit::DoesNotFit as u8)
                && let Some(error) = self.recovery.refused(&failure.error)
            {
                return self.give_up(error);
            }
            if is_reported {
                self.transport.emit(Event::Error(failure.error));
            } else if self.has_ranks && code.is_some_and(is_kill) {
                self.explain(&mut failure, process);
                self.report(Event::Error(failure.error));
                return self.finish(Exit::Failure as u8);
            }
            return self.finish(code.unwrap_or(1));
        }
        if failure.error.text.is_empty() {
            self.explain(&mut failure, process);
        }
        if self.has_ranks {
            // One rank's plan; another may have failed. Each keeps its own limit.
            failure.plan = None;
        }
        if self.commands.is_stopping {
            failure.error.cause.get_or_insert(Cause::DeviceLost);
            return self.give_up(failure.error);
        }
        let bytes = failure.bytes;
        match self.recovery.decide(failure, self.without_standby(now)) {
            Decision::GiveUp(error) => match self.crowded(&error, bytes) {
                Some(waiting) => {
                    self.way = Some(waiting);
                    self.begin_standby(now);
                }
                None => self.give_up(error),
            },
            Decision::NoDevice(error) => {
                // The run was never touched, so nothing is recorded.
                self.transport.emit(Event::Error(error));
                self.finish(Exit::NoDevice as u8);
            }
            Decision::Restart { events, delay, plan, avoids_matrices } => {
                events.into_iter().for_each(|event| self.report(event));
                self.start.self_test.avoids_matrices |= avoids_matrices;
                self.start.max_plan = plan.or(self.start.max_plan.take());
                self.restart_at = Some(now + delay);
                self.rest(now);
            }
        }
    }

    /// Takes the end of a worker that was to stand by.
    fn begin_standby(&mut self, now: Duration) {
        self.restart_at = Some(now);
        self.start.is_restart = true;
        if self.commands.is_stopping {
            self.send(&Command::Stop, now);
        } else {
            self.rest(now);
        }
    }

    /// Returns what a run waits for whose smallest plan, with this many bytes, has failed for lack of memory, if others
    /// have it now: it has had enough before.
    fn crowded(&mut self, error: &RunError, bytes: u64) -> Option<Waiting> {
        let is_new = self.recovery.furthest > self.crowded_at;
        if error.cause != Some(Cause::OutOfMemory) || !self.start.makes_way || !is_new {
            return None;
        }
        let context = match self.start.device.parse() {
            Ok(DeviceChoice::Named(id)) => id.backend.context_bytes(),
            _ => 0,
        };
        let bytes = bytes + context;
        let [total, free] = self.transport.memory(&self.start.device)?;
        if free >= bytes || total < bytes {
            return None;
        }
        self.crowded_at = self.recovery.furthest;
        self.start.max_plan = None;
        self.start.has_made_way = true;
        let [free, needed] = [free, bytes].map(crate::text::bytes);
        let text = format!(
            "other programs leave {free} of the device's memory; the run continues when {needed} have been free \
             for a while"
        );
        Some(Waiting { text, free_bytes: Some(bytes), ..Waiting::default() })
    }

    /// Returns the exit code of a run on several ranks whose launcher has ended with `code`, if the ranks have been
    /// stopped or were never started.
    fn end_of_launcher(&mut self, end: Option<&RunEnd>, code: Option<u8>) -> Option<u8> {
        match end {
            // A signal to all processes has ended the launcher, too, which has a code of its own for that.
            Some(RunEnd::Stopped { .. }) if self.commands.is_stopping => Some(0),
            None if self.commands.is_stopping && !self.is_heard => Some(0),
            None if self.commands.is_stopping && code.is_none_or(is_end_by_signal) => {
                let text = "the launcher has ended before its ranks have said that they saved a \
                            checkpoint; --resume continues from the last one";
                self.transport.emit(Event::Warning { text: text.into() });
                Some(0)
            }
            Some(RunEnd::Stopped { reason: StopReason::Stopped }) if code == Some(0) => {
                // A signal to one of the ranks, which this process did not get.
                Some(TERMINATED)
            }
            None if !self.is_heard && code.is_some_and(|code| code < 128) => {
                let text = match code {
                    Some(0) => "the launcher has ended and started no rank".to_string(),
                    _ => format!("the launcher has ended with exit code {}", code.unwrap_or(1)),
                };
                let hint = "the lines above may explain it; --mpirun names a program that starts others as \
                            mpirun does";
                self.transport.emit(Event::Error(RunError {
                    text,
                    hint: hint.into(),
                    ..RunError::default()
                }));
                Some(code.filter(|code| *code != 0).unwrap_or(Exit::Failure as u8))
            }
            _ => None,
        }
    }

    /// Completes the failure of a worker that has not reported why it ended.
    fn explain(&self, failure: &mut TrainerFailure, process: ProcessEnd) {
        let error = &mut failure.error;
        error.hint = "the lines above may explain it; -v shows the messages of the driver".into();
        error.text = match &process {
            ProcessEnd::Code(code @ 128..) if self.has_ranks => {
                format!(
                    "a rank was killed (exit code {code} of the launcher, which names it above)"
                )
            }
            process => format!("the trainer process {process}"),
        };
        if let ProcessEnd::Crashed(how) = process {
            if failure.uses_matrices.is_none() && !self.has_ranks {
                let device = self.start.device.clone();
                let crashed = DeviceError::Crashed { device, how: how.clone() };
                *error = Failure::from(crashed).into();
            }
            failure.crash = Some(how);
        }
    }

    /// Starts the next worker if its time has come.
    pub fn tick(&mut self, now: Duration) -> io::Result<()> {
        if self.standby.is_some() || self.way.is_some() || self.restart_at.is_none_or(|at| now < at)
        {
            return Ok(());
        }
        self.restart_at = None;
        self.told = None;
        self.start.elapsed = self.without_standby(now);
        self.transport.start(&self.start)?;
        for command in self.commands.replay().chain(self.later.clone()) {
            self.transport.send(&command);
        }
        Ok(())
    }

    /// Returns true if another worker may succeed: the device failed, or the process was killed or
    /// panicked. A launcher exits with 128 and the number of the signal that killed one of its
    /// processes.
    fn is_recoverable(
        &self,
        code: Option<u8>,
        is_reported: bool,
        failure: &TrainerFailure,
    ) -> bool {
        let Some(code) = code else { return true };
        let is = |exit: Exit| code == exit as u8;
        if is(Exit::DeviceFailed) || is(Exit::Panic) {
            true
        } else if is(Exit::NoDevice) {
            failure.error.cause == Some(Cause::Unavailable)
        } else if code >= 128 {
            // A second signal has ended a worker at once.
            self.has_ranks && failure.device.is_some()
        } else {
            // A worker reports its errors; a launcher prints them to stderr.
            !is_reported && !self.has_ranks
        }
    }

    /// Emits an event of the supervisor, and appends it to the run's record.
    fn report(&mut self, event: Event) {
        self.transport.record(&self.start.run, &event);
        self.transport.emit(event);
    }

    fn give_up(&mut self, error: RunError) {
        self.report(Event::Error(error));
        self.finish(Exit::DeviceFailed as u8);
    }

    fn finish(&mut self, exit_code: u8) {
        self.restart_at = None;
        self.exit_code = Some(exit_code);
    }
}

#[cfg(test)]
mod tests;
