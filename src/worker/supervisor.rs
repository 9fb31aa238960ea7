//! Starts the worker of a run again when its device fails, as [`Recovery`] decides.
//!
//! After out-of-memory or a lost device, only the end of a process, or of a page's worker, reliably
//! frees the memory of the device. So whoever the user controls opens no device: commands go in, events
//! come out, and a worker that fails gets a successor, which continues from the last checkpoint.
//!
//! The supervisor has no clock and no process of its own, so that a program and a page share it: they
//! pass on what happens, and differ in their [`Transport`].

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::protocol::{
    AppliedCommands, Cause, Command, Decision, Event, Exit, FromWorker, Recovery, RunEnd, StartRun,
    StopReason, TrainerFailure,
};

/// The way to the worker of a run.
pub(super) trait Transport {
    /// Starts a worker in place of the former one, and has it train.
    fn start(&mut self, start: &StartRun) -> io::Result<()>;

    /// Passes a command on. A worker that is gone takes none: its end is reported in another way.
    fn send(&mut self, command: &Command);

    /// Appends an event of the supervisor to the record of a run, which no worker has open. A log line
    /// that a full disk does not take must not end the run.
    fn record(&mut self, run: &Path, event: &Event);
}

/// The supervisor of a run.
pub(super) struct Supervisor<T> {
    pub transport: T,
    start: StartRun,
    /// True if the worker is a launcher of several ranks, of which each keeps its own plan and device.
    has_ranks: bool,
    recovery: Recovery,
    commands: AppliedCommands,
    /// What the present worker has reported, for when it fails.
    failure: TrainerFailure,
    /// The end that the present worker has reported.
    end: Option<RunEnd>,
    /// When the next worker starts, while none runs.
    restart_at: Option<Duration>,
    exit_code: Option<u8>,
}

impl<T: Transport> Supervisor<T> {
    /// Starts the first worker of a run.
    pub fn start(mut transport: T, start: StartRun, has_ranks: bool) -> io::Result<Self> {
        transport.start(&start)?;
        let recovery = if has_ranks { Recovery::of_ranks() } else { Recovery::default() };
        Ok(Self {
            transport,
            start,
            has_ranks,
            recovery,
            commands: AppliedCommands::default(),
            failure: TrainerFailure::default(),
            end: None,
            restart_at: None,
            exit_code: None,
        })
    }

    /// Returns the exit code of a process that ends with this run, once it has ended.
    pub fn exit_code(&self) -> Option<u8> {
        self.exit_code
    }

    /// Returns the time of the restart, while the run waits for its device.
    #[cfg(any(target_arch = "wasm32", test))]
    pub fn restart_at(&self) -> Option<Duration> {
        self.restart_at
    }

    /// Passes a command on. A run that waits for its device only stops; its next worker gets the other
    /// commands. `now` counts from the start of the run, here as below.
    pub fn send(&mut self, command: &Command, now: Duration, emit: &mut dyn FnMut(&Event)) {
        self.commands.apply(command);
        if self.restart_at.is_none() {
            return self.transport.send(command);
        }
        if self.commands.is_stopping() {
            let done = Event::Done {
                iter: self.recovery.furthest(),
                best_val_loss: None,
                seconds: now.as_secs_f64(),
                reason: StopReason::Stopped,
            };
            self.report(&done, emit);
            self.finish(0);
        }
    }

    /// Takes a message of the worker.
    pub fn receive(&mut self, message: FromWorker, emit: &mut dyn FnMut(&Event)) {
        match message {
            FromWorker::Event(event) => {
                self.failure.observe(&event);
                if let Event::Start { device, .. } = &*event {
                    self.start.is_restart = true;
                    // The device of rank 0 is not that of the others.
                    if !self.has_ranks {
                        self.start.keep_device(device);
                    }
                }
                emit(&event);
            }
            // A rank that has failed by itself has the reason: the others then miss it.
            FromWorker::Ended(_)
                if self.has_ranks && self.has_failed() && self.failure.cause.is_none() => {}
            FromWorker::Ended(end) => {
                if let RunEnd::Failed(failure) = &end {
                    self.failure.observe(&failure.clone().into_event());
                }
                self.end = Some(end);
            }
            FromWorker::Ready { .. } | FromWorker::Reply(_) | FromWorker::Heartbeat => {}
        }
    }

    /// Returns true if the worker has reported an error: it is about to exit.
    pub fn has_failed(&self) -> bool {
        matches!(self.end, Some(RunEnd::Failed(_)))
    }

    /// Notes why the worker has failed, unless it has said so itself.
    #[cfg(target_arch = "wasm32")]
    pub fn note_failure(&mut self, text: String, hint: &str) {
        if self.failure.text.is_empty() {
            (self.failure.text, self.failure.hint) = (text, hint.into());
        }
    }

    /// Takes the end of the worker, with the exit code of its process; `None` if a signal killed it.
    pub fn worker_ended(
        &mut self,
        status: Option<u8>,
        now: Duration,
        emit: &mut dyn FnMut(&Event),
    ) {
        let end = self.end.take();
        let mut failure = std::mem::take(&mut self.failure);
        let code = match &end {
            // The launcher's code is that of the first rank that has failed.
            _ if self.has_ranks => status,
            Some(RunEnd::Stopped { .. }) => return self.finish(status.unwrap_or(0)),
            Some(RunEnd::Failed(failure)) => Some(failure.exit as u8),
            None => status,
        };
        let is_reported = matches!(end, Some(RunEnd::Failed(_)));
        if !self.is_recoverable(code, is_reported, &failure) {
            let refused =
                (code == Some(Exit::DoesNotFit as u8)).then(|| self.recovery.refused(&failure));
            if let Some(Some(Decision::GiveUp { error, exit_code })) = refused {
                self.report(&error, emit);
                return self.finish(exit_code as u8);
            }
            if is_reported {
                emit(&failure.into_event());
            }
            return self.finish(code.unwrap_or(1));
        }
        if failure.text.is_empty() {
            failure.text = crash(code, self.has_ranks);
            failure.hint =
                "the lines above may explain it; -v shows the messages of the driver".into();
        }
        if self.has_ranks {
            // Of one rank; another may have failed. Each keeps its own limit.
            failure.plan = None;
        }
        if self.commands.is_stopping() {
            failure.cause.get_or_insert(Cause::DeviceLost);
            self.report(&failure.into_event(), emit);
            return self.finish(Exit::DeviceFailed as u8);
        }
        match self.recovery.decide(failure) {
            Decision::GiveUp { error, exit_code } => {
                if exit_code == Exit::NoDevice {
                    // The run was never touched: its record stays as it is.
                    emit(&error);
                } else {
                    self.report(&error, emit);
                }
                self.finish(exit_code as u8);
            }
            Decision::Restart { events, delay, plan } => {
                events.iter().for_each(|event| self.report(event, emit));
                self.start.max_plan = plan.or(self.start.max_plan.take());
                self.restart_at = Some(now + delay);
            }
        }
    }

    /// Starts the next worker if its time has come.
    pub fn tick(&mut self, now: Duration) -> io::Result<()> {
        if self.restart_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        self.restart_at = None;
        self.start.elapsed = now;
        self.transport.start(&self.start)?;
        for command in self.commands.replay() {
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
        if code >= 128 && self.has_ranks && failure.opened {
            return true;
        }
        match Exit::of(code) {
            Some(Exit::DeviceFailed | Exit::Panic) => true,
            Some(Exit::NoDevice) => failure.cause == Some(Cause::Unavailable),
            // A second signal has ended it at once.
            _ if code >= 128 => false,
            // A worker reports its errors; a launcher says on stderr what it cannot do.
            _ => !is_reported && !self.has_ranks,
        }
    }

    /// Emits an event of the supervisor, and appends it to the run's record.
    fn report(&mut self, event: &Event, emit: &mut dyn FnMut(&Event)) {
        self.transport.record(&self.start.run, event);
        emit(event);
    }

    fn finish(&mut self, exit_code: u8) {
        (self.restart_at, self.exit_code) = (None, Some(exit_code));
    }
}

/// Says how a worker has ended that did not say so itself.
fn crash(code: Option<u8>, has_ranks: bool) -> String {
    match code {
        // A process that was killed on Windows has code 1.
        None | Some(1) => "the trainer process was killed".into(),
        Some(code @ 128..) if has_ranks => {
            format!("a rank was killed (exit code {code} of the launcher, which names it above)")
        }
        Some(code) => format!("the trainer process crashed (exit code {code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::plan::{Backend, DeviceKind, DeviceLine};
    use crate::protocol::{Failure, ReplanReason, RunSettings, Setting};

    /// Keeps what a supervisor does.
    #[derive(Default)]
    struct Recorded {
        starts: Vec<StartRun>,
        sent: Vec<Command>,
        recorded: usize,
    }

    impl Transport for Recorded {
        fn start(&mut self, start: &StartRun) -> io::Result<()> {
            self.starts.push(start.clone());
            self.sent.clear();
            Ok(())
        }

        fn send(&mut self, command: &Command) {
            self.sent.push(command.clone());
        }

        fn record(&mut self, _: &Path, _: &Event) {
            self.recorded += 1;
        }
    }

    const NOW: Duration = Duration::from_secs(7);

    fn supervisor(has_ranks: bool) -> Supervisor<Recorded> {
        let start = StartRun::new("r".into(), RunSettings::Recorded);
        Supervisor::start(Recorded::default(), start, has_ranks).unwrap()
    }

    fn started() -> FromWorker {
        let device = DeviceLine {
            id: "vulkan:3".into(),
            name: "Box 3000".into(),
            backend: Backend::Vulkan,
            kind: DeviceKind::Discrete,
        };
        FromWorker::Event(Box::new(Event::Start {
            run: "r".into(),
            device,
            config: Box::new(Config::default()),
            params: 1,
            resumed_from: None,
            entropy_floor: None,
            ranks: Vec::new(),
        }))
    }

    fn failed(exit: Exit, cause: Option<Cause>) -> FromWorker {
        let (text, hint) = ("it failed".into(), String::new());
        FromWorker::Ended(RunEnd::Failed(Failure { text, hint, exit, cause, is_common: false }))
    }

    /// Runs a worker that says `messages` and exits with `status`; returns the events.
    fn run(
        supervisor: &mut Supervisor<Recorded>,
        messages: Vec<FromWorker>,
        status: Option<u8>,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let mut emit = |event: &Event| events.push(event.clone());
        messages.into_iter().for_each(|message| supervisor.receive(message, &mut emit));
        supervisor.worker_ended(status, NOW, &mut emit);
        events
    }

    #[test]
    fn the_next_worker_gets_the_commands_and_the_device_of_the_first() {
        let mut supervisor = supervisor(false);
        let interval = Command::Set(Setting::LogInterval(5.try_into().unwrap()));
        for command in [Command::Pause, interval.clone(), Command::Checkpoint] {
            supervisor.send(&command, NOW, &mut |_| {});
        }
        assert_eq!(supervisor.transport.sent.len(), 3);
        let events = run(
            &mut supervisor,
            vec![started(), failed(Exit::DeviceFailed, Some(Cause::DeviceLost))],
            Some(5),
        );
        assert!(
            matches!(
                &events[..],
                [
                    Event::Start { .. },
                    Event::Replan { reason: ReplanReason::DeviceLost, .. },
                    Event::Waiting { seconds: 1, .. }
                ]
            ),
            "{events:?}"
        );
        assert_eq!((supervisor.exit_code(), supervisor.transport.recorded), (None, 2));
        // Not before the wait is over.
        let due = NOW + Duration::from_secs(1);
        supervisor.tick(NOW).unwrap();
        assert_eq!(supervisor.transport.starts.len(), 1);
        supervisor.tick(due).unwrap();
        let [first, second] = &supervisor.transport.starts[..] else { panic!("no second worker") };
        assert_eq!(
            (first.device.as_str(), &first.device_name, first.is_restart),
            ("auto", &None, false)
        );
        assert_eq!(
            (second.device.as_str(), second.device_name.as_deref(), second.is_restart),
            ("vulkan:3", Some("Box 3000"), true)
        );
        assert_eq!(second.elapsed, due);
        assert_eq!(supervisor.transport.sent, [interval, Command::Pause]);
    }

    #[test]
    fn a_killed_worker_is_started_again_and_one_that_reported_an_error_is_not() {
        for (code, text) in [
            (None, "the trainer process was killed"),
            (Some(1), "the trainer process was killed"),
            (Some(101), "the trainer process crashed (exit code 101)"),
        ] {
            let mut supervisor = supervisor(false);
            let events = run(&mut supervisor, Vec::new(), code);
            let [Event::Replan { text: said, .. }, ..] = &events[..] else { panic!("{events:?}") };
            assert_eq!((said.as_str(), supervisor.exit_code()), (text, None));
            assert!(supervisor.restart_at().is_some());
        }
        let mut signalled = supervisor(false);
        assert!(run(&mut signalled, Vec::new(), Some(143)).is_empty());
        assert_eq!(signalled.exit_code(), Some(143));
        for exit in [Exit::Failure, Exit::Usage, Exit::DoesNotFit, Exit::BadData] {
            let code = exit as u8;
            let mut supervisor = supervisor(false);
            let events = run(&mut supervisor, vec![failed(exit, None)], Some(code));
            assert!(matches!(&events[..], [Event::Error { .. }]), "{events:?}");
            assert_eq!((supervisor.exit_code(), supervisor.transport.recorded), (Some(code), 0));
        }
    }

    #[test]
    fn a_launcher_that_cannot_start_is_not_started_again() {
        let mut launcher = supervisor(true);
        assert!(run(&mut launcher, Vec::new(), Some(1)).is_empty());
        assert_eq!(launcher.exit_code(), Some(1));
        // A signal has killed one of its ranks. Each has its own device.
        let mut launcher = supervisor(true);
        let events = run(&mut launcher, vec![started()], Some(137));
        assert!(events[1].to_string().contains("a rank was killed"), "{events:?}");
        launcher.tick(NOW * 2).unwrap();
        assert_eq!(launcher.transport.starts[1].device, "auto");
        // A rank has no smaller plan.
        let refused = failed(Exit::DoesNotFit, Some(Cause::OutOfMemory));
        run(&mut launcher, vec![refused], Some(3));
        assert_eq!(launcher.exit_code(), Some(Exit::DeviceFailed as u8));
    }

    #[test]
    fn the_error_of_a_rank_is_not_replaced_by_those_of_ranks_that_miss_it() {
        let mut launcher = supervisor(true);
        let missed = Failure {
            text: "rank 1 does not answer".into(),
            exit: Exit::DeviceFailed,
            cause: Some(Cause::DeviceLost),
            ..Failure::default()
        };
        let missed = FromWorker::Ended(RunEnd::Failed(missed));
        let events = run(&mut launcher, vec![failed(Exit::BadData, None), missed], Some(7));
        assert!(
            matches!(&events[..], [Event::Error { text, .. }] if text == "it failed"),
            "{events:?}"
        );
        assert_eq!(launcher.exit_code(), Some(7));
    }

    #[test]
    fn a_stop_ends_a_wait_and_a_failure() {
        let mut waiting = supervisor(false);
        run(&mut waiting, vec![failed(Exit::DeviceFailed, Some(Cause::DeviceLost))], Some(5));
        let mut events = Vec::new();
        waiting.send(&Command::Pause, NOW, &mut |event| events.push(event.clone()));
        waiting.send(&Command::Stop, NOW, &mut |event| events.push(event.clone()));
        assert!(matches!(&events[..], [Event::Done { .. }]), "{events:?}");
        assert_eq!((waiting.exit_code(), waiting.restart_at()), (Some(0), None));

        let mut stopping = supervisor(false);
        stopping.send(&Command::Stop, NOW, &mut |_| {});
        let events = run(
            &mut stopping,
            vec![started(), failed(Exit::DeviceFailed, Some(Cause::DeviceLost))],
            Some(5),
        );
        assert!(matches!(&events[..], [_, Event::Error { .. }]), "{events:?}");
        assert_eq!(stopping.exit_code(), Some(Exit::DeviceFailed as u8));

        let mut stopped = supervisor(false);
        let end = FromWorker::Ended(RunEnd::Stopped { reason: StopReason::Stopped });
        assert!(run(&mut stopped, vec![end], Some(0)).is_empty());
        assert_eq!(stopped.exit_code(), Some(0));
    }

    #[test]
    fn out_of_memory_limits_the_plan_of_all_later_workers() {
        let mut supervisor = supervisor(false);
        let config = Config::default();
        let plan = crate::plan::Plan::new(&config, 65);
        supervisor.failure.plan = Some(plan.clone());
        run(&mut supervisor, vec![failed(Exit::DeviceFailed, Some(Cause::OutOfMemory))], Some(5));
        supervisor.tick(NOW).unwrap();
        let limit = supervisor.transport.starts[1].max_plan.clone().unwrap();
        assert!(limit.micro_batch < plan.micro_batch);
        run(
            &mut supervisor,
            vec![started(), failed(Exit::DeviceFailed, Some(Cause::DeviceLost))],
            Some(5),
        );
        supervisor.tick(NOW * 2).unwrap();
        assert_eq!(supervisor.transport.starts[2].max_plan, Some(limit));
    }
}
