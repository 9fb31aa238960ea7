use super::*;
use crate::config::{Config, DecayLength};
use crate::plan::{Backend, DeviceKind, DeviceLine};
use crate::protocol::{Failure, ReplanReason, RunSettings, Setting, Step};

#[derive(Default)]
struct Recorded {
    starts: Vec<StartRun>,
    sent: Vec<Command>,
    recorded: usize,
    held: usize,
    memory: Option<[u64; 2]>,
    events: Vec<Event>,
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

    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    fn hold(&mut self, _: &Path) {
        self.held += 1;
    }

    fn memory(&mut self, _: &str) -> Option<[u64; 2]> {
        self.memory
    }
}

const NOW: Duration = Duration::from_secs(7);

fn supervisor(has_ranks: bool) -> Supervisor<Recorded> {
    let start = StartRun::new("r".into(), RunSettings::Recorded);
    Supervisor::start(Recorded::default(), start, has_ranks).unwrap()
}

fn started() -> FromWorker {
    let (id, name) = ("vulkan:3".into(), "Box 3000".into());
    let device = DeviceLine { id, name, backend: Backend::Vulkan, kind: DeviceKind::Discrete };
    FromWorker::Event(Box::new(Event::Start {
        run: "r".into(),
        device,
        config: Box::new(Config::default()),
        params: 1,
        resumed_from: None,
        entropy_floor: None,
        products: None,
        ranks: Vec::new(),
    }))
}

fn failed(text: &str, exit: Exit, cause: Option<Cause>) -> FromWorker {
    let (text, hint) = (text.into(), String::new());
    FromWorker::Ended(RunEnd::Failed(Failure { text, hint, exit, cause, ..Failure::default() }))
}

fn lost() -> FromWorker {
    failed("it failed", Exit::DeviceFailed, Some(Cause::DeviceLost))
}

/// Runs a worker that says `messages` and exits with `status`; returns the events.
fn run(
    supervisor: &mut Supervisor<Recorded>,
    messages: Vec<FromWorker>,
    status: Option<u8>,
) -> Vec<Event> {
    end(supervisor, messages, status.map_or(ProcessEnd::Killed, ProcessEnd::Code))
}

/// The same with an end that has no exit code.
fn end(
    supervisor: &mut Supervisor<Recorded>,
    messages: Vec<FromWorker>,
    process: ProcessEnd,
) -> Vec<Event> {
    messages.into_iter().for_each(|message| supervisor.receive(message));
    supervisor.worker_ended(process, NOW);
    take(&mut supervisor.transport.events)
}

#[test]
fn the_next_worker_gets_the_commands_and_the_device_of_the_first() {
    let mut supervisor = supervisor(false);
    let interval = Command::Set(Setting::LogInterval(5.try_into().unwrap()));
    let budget = |gib: u64| Command::Set(Setting::VramBudget((gib << 30).try_into().unwrap()));
    for command in [budget(6), Command::Pause, interval.clone(), Command::Checkpoint, budget(5)] {
        supervisor.send(&command, NOW);
    }
    assert_eq!(supervisor.transport.sent.len(), 5);
    let events = run(&mut supervisor, vec![started(), lost()], Some(5));
    let [Event::Start { .. }, Event::Replan { reason, .. }, Event::Waiting(waiting)] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*reason, waiting.seconds), (ReplanReason::DeviceLost, 1));
    assert_eq!((supervisor.exit_code, supervisor.transport.recorded), (None, 2));
    // Not before the wait is over.
    let due = NOW + Duration::from_secs(1);
    supervisor.tick(NOW).unwrap();
    assert_eq!(supervisor.transport.starts.len(), 1);
    supervisor.tick(due).unwrap();
    let [first, second] = &supervisor.transport.starts[..] else { panic!("no second worker") };
    for (start, device, name, is_restart) in
        [(first, "auto", None, false), (second, "vulkan:3", Some("Box 3000"), true)]
    {
        assert_eq!((start.device.as_str(), start.device_name.as_deref()), (device, name));
        assert_eq!(start.is_restart, is_restart);
    }
    assert_eq!(second.elapsed, due);
    assert_eq!(supervisor.transport.sent, [interval.clone(), budget(5), Command::Pause]);
    supervisor.send(&Command::Resume, due);
    run(&mut supervisor, vec![lost()], Some(5));
    supervisor.tick(due * 2).unwrap();
    assert_eq!(supervisor.transport.sent, [interval, budget(5)]);
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
        assert_eq!((said.as_str(), supervisor.exit_code), (text, None));
        assert!(supervisor.restart_at.is_some());
    }
    let mut signalled = supervisor(false);
    assert!(run(&mut signalled, Vec::new(), Some(143)).is_empty());
    assert_eq!(signalled.exit_code, Some(143));
    for exit in [Exit::Failure, Exit::Usage, Exit::DoesNotFit, Exit::BadData] {
        let code = exit as u8;
        let mut supervisor = supervisor(false);
        let events = run(&mut supervisor, vec![failed("it failed", exit, None)], Some(code));
        assert!(matches!(&events[..], [Event::Error(_)]), "{events:?}");
        assert_eq!((supervisor.exit_code, supervisor.transport.recorded), (Some(code), 0));
    }
}

fn selected() -> FromWorker {
    FromWorker::Selected { uses_matrices: true }
}

#[test]
fn a_worker_that_crashes_gets_a_successor_without_cooperative_matrices() {
    let crashed = || ProcessEnd::Crashed("signal 11".into());
    let mut supervisor = supervisor(false);
    let events = end(&mut supervisor, vec![selected(), started()], crashed());
    let [_, Event::Replan { text, .. }, Event::Warning { text: warning }, _] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(text, "the trainer process crashed (signal 11)");
    assert!(warning.contains("without"), "{warning}");
    // It says so once, and all later workers keep to it.
    for attempt in 2..4 {
        supervisor.tick(NOW * attempt).unwrap();
        let events = end(&mut supervisor, vec![selected(), started(), lost()], crashed());
        assert!(!events.iter().any(|event| matches!(event, Event::Warning { .. })), "{events:?}");
    }
    let starts = supervisor.transport.starts.iter().map(|start| start.self_test.avoids_matrices);
    assert_eq!(starts.collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn a_driver_that_crashes_while_it_lists_is_a_device_that_is_not_there() {
    let crashed = || ProcessEnd::Crashed("signal 11".into());
    let mut never_open = supervisor(false);
    let events = end(&mut never_open, Vec::new(), crashed());
    let [Event::Error(error)] = &events[..] else { panic!("{events:?}") };
    assert!(error.text.ends_with("crashed while it listed its devices (signal 11)"), "{error:?}");
    assert_eq!(never_open.exit_code, Some(Exit::NoDevice as u8));
    // A run that had its device waits for it.
    let mut lost_before = supervisor(false);
    run(&mut lost_before, vec![selected(), started(), lost()], Some(5));
    lost_before.tick(NOW * 2).unwrap();
    let events = end(&mut lost_before, Vec::new(), crashed());
    assert!(matches!(&events[..], [Event::Waiting(_)]), "{events:?}");
}

#[test]
fn a_launcher_that_cannot_start_is_not_started_again() {
    for (code, text) in [(1, "has ended with exit code 1"), (0, "started no rank")] {
        let mut launcher = supervisor(true);
        let events = run(&mut launcher, Vec::new(), Some(code));
        assert!(events.len() == 1 && events[0].to_string().contains(text), "{events:?}");
        assert_eq!(launcher.exit_code, Some(1));
    }
    // A signal to one of the ranks has stopped them all.
    let mut launcher = supervisor(true);
    let stopped = FromWorker::Ended(RunEnd::Stopped { reason: StopReason::Stopped });
    run(&mut launcher, vec![started(), stopped], Some(0));
    assert_eq!(launcher.exit_code, Some(143));
    // A signal to all processes, before the ranks have begun and later.
    let stopped = FromWorker::Ended(RunEnd::Stopped { reason: StopReason::Stopped });
    let done =
        Event::Done { iter: 1, best_val_loss: None, seconds: 1.0, reason: StopReason::Stopped };
    let done = FromWorker::Event(Box::new(done));
    for messages in [Vec::new(), vec![started(), stopped], vec![started(), done]] {
        let mut launcher = supervisor(true);
        launcher.send(&Command::Stop, NOW);
        let events = run(&mut launcher, messages, Some(1));
        assert!(events.iter().all(|event| !matches!(event, Event::Error(_))), "{events:?}");
        assert_eq!(launcher.exit_code, Some(0));
    }
    // The launcher has ended before the last words of its ranks. A panic of theirs is no end by a signal.
    for (code, exit) in [(Some(1), 0), (None, 0), (Some(Exit::Panic as u8), 5)] {
        let mut launcher = supervisor(true);
        launcher.send(&Command::Stop, NOW);
        let events = run(&mut launcher, vec![started()], code);
        assert!(matches!(&events[1], Event::Warning { .. }) == (exit == 0), "{events:?}");
        assert_eq!(launcher.exit_code, Some(exit));
    }
    // A rank was killed before the run began. Only the launcher knows.
    for (code, exit, errors) in [(137, 1, 1), (143, 143, 0)] {
        let mut launcher = supervisor(true);
        let events = run(&mut launcher, Vec::new(), Some(code));
        assert!(events.iter().all(|event| event.to_string().contains("a rank was killed")));
        assert_eq!((launcher.exit_code, events.len()), (Some(exit), errors));
    }
    // A signal has killed one of its ranks. Each has its own device.
    let mut launcher = supervisor(true);
    let events = run(&mut launcher, vec![started()], Some(137));
    assert!(events[1].to_string().contains("a rank was killed"), "{events:?}");
    launcher.tick(NOW * 2).unwrap();
    assert_eq!(launcher.transport.starts[1].device, "auto");
    // A rank has no smaller plan.
    let refused = failed("it failed", Exit::DoesNotFit, Some(Cause::OutOfMemory));
    run(&mut launcher, vec![refused], Some(3));
    assert_eq!(launcher.exit_code, Some(Exit::DeviceFailed as u8));
}

#[test]
fn the_error_of_a_rank_is_not_replaced_by_those_of_ranks_that_miss_it() {
    let mut launcher = supervisor(true);
    let missed = failed("rank 1 is silent", Exit::DeviceFailed, Some(Cause::DeviceLost));
    let first = failed("it failed", Exit::BadData, None);
    let events = run(&mut launcher, vec![first, missed], Some(7));
    assert!(
        matches!(&events[..], [Event::Error(error)] if error.text == "it failed"),
        "{events:?}"
    );
    assert_eq!(launcher.exit_code, Some(7));
}

#[test]
fn a_stop_ends_a_wait_and_a_failure() {
    let mut waiting = supervisor(false);
    let mut resumed = started();
    if let FromWorker::Event(event) = &mut resumed
        && let Event::Start { resumed_from, .. } = &mut **event
    {
        *resumed_from = Some(7);
    }
    run(&mut waiting, vec![resumed, lost()], Some(5));
    waiting.send(&Command::Pause, NOW);
    waiting.send(&Command::Stop, NOW);
    let events = &waiting.transport.events;
    assert!(matches!(&events[..], [Event::Done { iter: 7, .. }]), "{events:?}");
    assert_eq!((waiting.exit_code, waiting.restart_at), (Some(0), None));

    let mut stopping = supervisor(false);
    stopping.send(&Command::Stop, NOW);
    let events = run(&mut stopping, vec![started(), lost()], Some(5));
    assert!(matches!(&events[..], [_, Event::Error(_)]), "{events:?}");
    assert_eq!(stopping.exit_code, Some(Exit::DeviceFailed as u8));

    let mut stopped = supervisor(false);
    let end = FromWorker::Ended(RunEnd::Stopped { reason: StopReason::Stopped });
    assert!(run(&mut stopped, vec![end], Some(0)).is_empty());
    assert_eq!(stopped.exit_code, Some(0));
}

#[test]
fn out_of_memory_limits_the_plan_of_all_later_workers() {
    let mut supervisor = supervisor(false);
    let plan = crate::plan::Plan::new(&Config::default(), 65);
    supervisor.failure.plan = Some(plan.clone());
    let out_of_memory = failed("it failed", Exit::DeviceFailed, Some(Cause::OutOfMemory));
    run(&mut supervisor, vec![out_of_memory], Some(5));
    supervisor.tick(NOW).unwrap();
    let limit = supervisor.transport.starts[1].max_plan.clone().unwrap();
    assert!(limit.micro_batch < plan.micro_batch);
    run(&mut supervisor, vec![started(), lost()], Some(5));
    supervisor.tick(NOW * 2).unwrap();
    assert_eq!(supervisor.transport.starts[2].max_plan, Some(limit));
}

fn closed() -> Waiting {
    Waiting {
        text: "outside the hours".into(),
        attempt: 0,
        attempts: 0,
        seconds: 60,
        free_bytes: None,
    }
}

/// Ends a worker that was to stand by.
fn ended(run: &mut Supervisor<Recorded>, now: Duration) {
    run.receive(FromWorker::Ended(RunEnd::Stopped { reason: StopReason::StandBy }));
    run.worker_ended(ProcessEnd::Code(0), now);
}

fn is_closed(event: Option<&Event>) -> bool {
    matches!(event, Some(Event::Waiting(wait)) if *wait == closed())
}

const HOUR: Duration = Duration::from_secs(3600);

/// Outside its hours a run has no worker, and the time does not count.
#[test]
fn a_run_stands_by_and_continues() {
    let mut run = supervisor(false);
    run.receive(started());
    run.stand_by(closed(), NOW);
    assert_eq!(run.transport.sent, [Command::StandBy]);
    ended(&mut run, NOW);
    assert!(is_closed(run.transport.events.last()));
    run.tick(NOW + HOUR).unwrap();
    let state = (run.transport.starts.len(), run.transport.held, run.exit_code);
    assert_eq!(state, (1, 1, None), "it waits");
    let later = [
        Command::Set(Setting::LearningRate(1e-4)),
        Command::Finish { decay: DecayLength::default() },
    ];
    later.iter().for_each(|command| run.send(command, NOW + HOUR));
    run.end_standby(NOW + HOUR);
    run.tick(2 * NOW + HOUR).unwrap();
    let [_, next] = &run.transport.starts[..] else { panic!("no second worker") };
    assert!(next.is_restart);
    assert_eq!(next.elapsed, 2 * NOW);
    assert_eq!(run.transport.sent, later);

    // Another night, which a person ends by day.
    run.receive(started());
    run.receive(FromWorker::Event(Box::new(Event::Step(Step { iter: 9, ..Step::default() }))));
    run.stand_by(closed(), 3 * NOW + HOUR);
    ended(&mut run, 3 * NOW + HOUR);
    run.send(&Command::Stop, 3 * NOW + 2 * HOUR);
    let Some(Event::Done { iter, seconds, reason, .. }) = run.transport.events.last() else {
        panic!("{:?}", run.transport.events.last())
    };
    assert_eq!((*iter, *seconds, *reason), (10, 21.0, StopReason::Stopped));
    assert_eq!(run.exit_code, Some(0));
}

/// The hours may end before the device fails or after it.
#[test]
fn a_device_that_fails_outside_the_hours_is_tried_again_within_them() {
    for is_first in [true, false] {
        let mut run = supervisor(false);
        run.receive(started());
        if is_first {
            run.stand_by(closed(), NOW);
        }
        run.receive(failed("lost", Exit::DeviceFailed, Some(Cause::DeviceLost)));
        run.worker_ended(ProcessEnd::Code(Exit::DeviceFailed as u8), NOW);
        if !is_first {
            run.stand_by(closed(), NOW);
        }
        assert!(is_closed(run.transport.events.last()));
        run.tick(NOW + HOUR).unwrap();
        assert_eq!(run.transport.starts.len(), 1);
        run.end_standby(NOW + HOUR);
        run.tick(NOW + HOUR).unwrap();
        let [_, next] = &run.transport.starts[..] else { panic!("no second worker") };
        assert_eq!(next.elapsed, NOW);
    }
}

/// The hours may begin again before the worker has ended, and a stop may come meanwhile.
#[test]
fn a_worker_that_ends_late_is_followed_at_once_or_not_at_all() {
    for is_stopped in [false, true] {
        let mut run = supervisor(false);
        run.receive(started());
        run.stand_by(closed(), NOW);
        if is_stopped {
            run.send(&Command::Stop, NOW);
        }
        run.end_standby(2 * NOW);
        ended(&mut run, 2 * NOW);
        run.tick(2 * NOW).unwrap();
        let found = (run.transport.starts.len(), run.exit_code);
        assert_eq!(found, if is_stopped { (1, Some(0)) } else { (2, None) });
        let done = |event: &&Event| matches!(event, Event::Done { .. });
        assert_eq!(run.transport.events.iter().filter(done).count(), usize::from(is_stopped));
    }
}

fn crowded() -> Waiting {
    let text = "other programs use 6.0 GiB".into();
    Waiting { text, free_bytes: Some(5 << 30), ..Waiting::default() }
}

fn waits(run: &Supervisor<Recorded>) -> Vec<Waiting> {
    let waits = run.transport.events.iter().filter_map(|event| match event {
        Event::Waiting(waiting) => Some(waiting.clone()),
        _ => None,
    });
    waits.collect()
}

#[test]
fn a_run_that_makes_way_waits_for_room_and_for_its_hours() {
    let mut run = supervisor(false);
    run.receive(started());
    run.receive(FromWorker::Event(Box::new(Event::Waiting(crowded()))));
    assert_eq!(run.needs(), None, "its process is there");
    ended(&mut run, NOW);
    // The worker has told and recorded it.
    assert_eq!((waits(&run), run.transport.recorded), (vec![crowded()], 0));
    assert_eq!(run.needs(), Some((5 << 30, "vulkan:3")));
    run.tick(HOUR).unwrap();
    assert_eq!((run.transport.starts.len(), run.transport.held), (1, 1));
    // The hours end and begin again, then there is room.
    run.stand_by(closed(), 2 * HOUR);
    run.end_standby(3 * HOUR);
    assert_eq!(waits(&run), [crowded(), closed(), crowded()]);
    run.tick(3 * HOUR).unwrap();
    assert_eq!(run.transport.starts.len(), 1);
    run.found_room(4 * HOUR);
    run.tick(4 * HOUR).unwrap();
    let [first, next] = &run.transport.starts[..] else { panic!("no second worker") };
    assert_eq!([first, next].map(|start| start.has_made_way), [false, true]);
    assert_eq!((next.is_restart, next.elapsed), (true, NOW));

    // Another program was faster.
    run.receive(failed("it does not fit", Exit::DoesNotFit, None));
    run.worker_ended(ProcessEnd::Code(Exit::DoesNotFit as u8), 4 * HOUR);
    assert_eq!((run.exit_code, waits(&run).len()), (None, 4));
    run.send(&Command::Stop, 5 * HOUR);
    assert_eq!(run.exit_code, Some(0));
    assert!(matches!(run.transport.events.last(), Some(Event::Done { .. })));
}

/// "Finish now" while a worker makes way: only the next one reads it.
#[test]
fn a_command_that_no_worker_has_carried_out_is_for_the_next() {
    let finish = Command::Finish { decay: DecayLength::default() };
    for is_done in [false, true] {
        let mut run = supervisor(false);
        run.receive(started());
        run.send(&finish, NOW);
        assert_eq!(run.transport.sent.len(), 1);
        if is_done {
            let finishing = Event::Finishing { iter: 5, config: Box::new(Config::default()) };
            run.receive(FromWorker::Event(Box::new(finishing)));
        }
        run.receive(FromWorker::Event(Box::new(Event::Waiting(crowded()))));
        ended(&mut run, NOW);
        run.found_room(HOUR);
        run.tick(HOUR).unwrap();
        assert_eq!(run.transport.sent.len(), usize::from(!is_done));
    }
}

#[test]
fn a_standby_has_its_latest_reason_and_ends_by_the_clock() {
    let mut run = supervisor(false);
    run.receive(started());
    run.stand_by(closed(), NOW);
    ended(&mut run, NOW);
    let battery = Waiting { text: "on battery power".into(), ..closed() };
    run.stand_by(battery.clone(), 2 * NOW);
    assert_eq!(waits(&run), [closed(), battery]);
    run.end_by_clock(HOUR);
    let last = run.transport.events.last();
    assert!(matches!(last, Some(Event::Done { reason: StopReason::MaxTime, .. })), "{last:?}");
    assert_eq!(run.exit_code, Some(0));
    // A worker ends by itself.
    let mut trains = supervisor(false);
    trains.end_by_clock(HOUR);
    assert_eq!(trains.exit_code, None);
}

/// Others may be faster than a run that makes way for them.
#[test]
fn a_run_whose_smallest_plan_fails_beside_others_waits_for_room() {
    const MIB: u64 = 1 << 20;
    for (memory, makes_way, updates, waits) in [
        (Some([4096, 20]), true, 5, true),
        (Some([4096, 2000]), true, 5, false),
        // The device never had as much.
        (Some([64, 20]), true, 5, false),
        (None, true, 5, false),
        (Some([4096, 20]), false, 5, false),
        (Some([4096, 20]), true, 0, false),
    ] {
        let memory = memory.map(|memory: [u64; 2]| memory.map(|mib| mib * MIB));
        let mut run = supervisor(false);
        run.start.makes_way = makes_way;
        run.transport.memory = memory;
        run.receive(started());
        if updates > 0 {
            let step = Step { iter: updates - 1, ..Step::default() };
            run.receive(FromWorker::Event(Box::new(Event::Step(step))));
        }
        let mut plan = crate::plan::Plan::new(&Config::default(), 65);
        (plan.micro_batch, plan.loss_chunk) = (1, 1);
        (plan.grad_checkpoint, plan.offload_optimizer) = (true, true);
        (run.failure.plan, run.failure.bytes) = (Some(plan), 2 * MIB);
        run.receive(failed("it failed", Exit::DeviceFailed, Some(Cause::OutOfMemory)));
        run.worker_ended(ProcessEnd::Code(Exit::DeviceFailed as u8), NOW);
        // With the context of Vulkan.
        let needs = waits.then_some((66 * MIB, "vulkan:3"));
        assert_eq!(run.needs(), needs, "{memory:?}, {makes_way}, {updates}");
        assert_eq!(run.exit_code.is_none(), waits);
    }
}
