//! The policy for a trainer that failed: restart it from the last checkpoint, wait for its device
//! first, or give up.

use std::mem::discriminant;
use std::time::Duration;

use crate::plan::{DeviceKind, Plan, smaller_or_offloaded};
use crate::protocol::{Cause, Command, Event, ReplanReason, RunError, Setting, Waiting};

/// Crashes in a row, with no new update in between, that end a run; and the failures in a row after which
/// a run may give up a device that is lost.
const MAX_FAILURES: u32 = 3;

/// The same for ranks that ran out of memory. Each rank has at most some twenty smaller plans, and ends the
/// run without one: this limit only ends a run in which smaller plans have no effect.
const MAX_OF_RANKS: u32 = 1000;

/// The time that a lost device has to make a new update: a driver reset takes seconds, a driver update, a
/// suspended machine or an external GPU minutes.
const LIMIT: Duration = Duration::from_secs(300);

/// Seconds to wait before each restart. The last one repeats.
const DELAYS: [u64; 6] = [1, 2, 5, 15, 30, 60];

/// The failure of a trainer, with what its events reported before.
#[derive(Clone, Debug, Default)]
pub struct TrainerFailure {
    /// The plan of its steps, if it got as far as planning.
    pub plan: Option<Plan>,
    /// The bytes of that plan.
    pub bytes: u64,
    pub iteration: u64,
    /// The kind of its device, once that was open.
    pub device: Option<DeviceKind>,
    /// True if it used cooperative matrices; `None` before it had listed the devices.
    pub uses_matrices: Option<bool>,
    /// How its process crashed, if it did: `signal 11`.
    pub crash: Option<String>,
    pub error: RunError,
}

impl TrainerFailure {
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Start { resumed_from, device, .. } => {
                self.device = Some(device.kind);
                self.iteration = resumed_from.unwrap_or(0);
            }
            Event::Plan(forecast) => {
                (self.plan, self.bytes) = (Some(forecast.plan.clone()), forecast.predicted_bytes);
            }
            Event::Step(step) => self.iteration = step.iter + 1,
            Event::Checkpoint(checkpoint) => self.iteration = self.iteration.max(checkpoint.iter),
            _ => {}
        }
    }
}

/// The commands that outlast a trainer: its successor gets them first.
#[derive(Clone, Debug, Default)]
pub struct AppliedCommands {
    settings: Vec<Setting>,
    paused: bool,
    /// True after a stop: the run is not restarted.
    pub is_stopping: bool,
}

impl AppliedCommands {
    pub fn apply(&mut self, command: &Command) {
        match command {
            Command::Pause => self.paused = true,
            Command::Resume => self.paused = false,
            Command::Stop => self.is_stopping = true,
            Command::Set(setting) => {
                self.settings.retain(|known| discriminant(known) != discriminant(setting));
                self.settings.push(*setting);
            }
            // The run has recorded a decay, and a standby ends by itself.
            Command::Finish { .. }
            | Command::Checkpoint
            | Command::Sample { .. }
            | Command::StandBy => {}
        }
    }

    /// Returns the commands that put a new trainer into the state of the former one.
    pub fn replay(&self) -> impl Iterator<Item = Command> {
        let settings = self.settings.iter().map(|setting| Command::Set(*setting));
        settings.chain(self.paused.then_some(Command::Pause))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Emit `events`, which report the failure and the wait, wait for `delay`, and start another trainer,
    /// which may use `plan` at most; `None` leaves the former limit. From then on trainers use no
    /// cooperative matrices if `avoids_matrices` is set.
    Restart { events: Vec<Event>, delay: Duration, plan: Option<Plan>, avoids_matrices: bool },
    /// End the run with [`Exit::DeviceFailed`](super::Exit::DeviceFailed).
    GiveUp(RunError),
    /// End a run that has never had its device, with [`Exit::NoDevice`](super::Exit::NoDevice).
    NoDevice(RunError),
}

/// The state of the policy over the life of a run.
///
/// A device that is lost, or that cannot be opened, is waited for until `LIMIT` has passed since its first
/// failure, with longer and longer pauses. While its driver is replaced, it may open and fail again at once all
/// that time. A trainer that crashes without such a report gets `MAX_FAILURES` attempts, all
/// but the first without cooperative matrices, because a driver may crash on them. Out of memory needs no
/// wait but a smaller plan, which a rank keeps for itself. An update that no trainer made before resets
/// all of it.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Updates made by any trainer.
    pub furthest: u64,
    /// Failures since then, except for those of a lost device.
    failures: u32,
    /// Pauses since then.
    waits: usize,
    /// The time of the first failure since then that was followed by a pause.
    since: Option<Duration>,
    /// True if the device has been lost since then.
    is_lost: bool,
    /// Failures since then of ranks that ran out of memory; `None` if the run has one process.
    of_ranks: Option<u32>,
    /// True once a trainer had its device open.
    opened: bool,
    /// How the last trainer ran out of memory, if that is why the next one got a smaller plan.
    out_of_memory: Option<String>,
}

impl Recovery {
    /// The state for a run in which each rank keeps its own plan.
    pub fn of_ranks() -> Self {
        Self { of_ranks: Some(0), ..Self::default() }
    }

    /// Takes the updates that a trainer has made. Returns true if no other had made them.
    pub fn reach(&mut self, iteration: u64) -> bool {
        let has_new_updates = iteration > self.furthest;
        if has_new_updates {
            *self = Self {
                furthest: iteration,
                opened: self.opened,
                of_ranks: self.of_ranks.map(|_| 0),
                ..Self::default()
            };
        }
        has_new_updates
    }

    /// Decides what follows a failure at the time `now`, counted from any fixed moment.
    pub fn decide(&mut self, failure: TrainerFailure, now: Duration) -> Decision {
        let has_new_updates = self.reach(failure.iteration);
        self.out_of_memory = None;
        let cause = failure.error.cause;
        self.opened |=
            failure.device.is_some() || cause.is_some_and(|cause| cause != Cause::Unavailable);
        match cause {
            Some(Cause::Unavailable) if !self.opened => Decision::NoDevice(failure.error),
            Some(Cause::OutOfMemory) => self.after_out_of_memory(failure),
            Some(Cause::Unavailable | Cause::DeviceLost) | None => {
                // Each rank has its own device, and reports nothing of it here.
                let may_avoid = !has_new_updates && self.of_ranks.is_none();
                let avoids_matrices =
                    may_avoid && failure.crash.is_some() && failure.uses_matrices == Some(true);
                self.wait(failure, now, avoids_matrices)
            }
        }
    }

    /// Returns the error of the device that ends the run if the trainer refused to run: not enough memory
    /// is free for its plan. `None` unless the run ran out of memory before: it was never possible. A rank
    /// that ran out of memory and has no smaller plan refuses the next.
    pub fn refused(&self, refusal: &RunError) -> Option<RunError> {
        let cause = Some(Cause::OutOfMemory);
        if refusal.cause == cause {
            return Some(refusal.clone());
        }
        let before = self.out_of_memory.as_ref()?;
        let text = format!("{before}, and a smaller plan was refused: {}", refusal.text);
        Some(RunError { text, cause, ..refusal.clone() })
    }

    /// Restarts at once with the next smaller plan. A failure before there was a plan may have been
    /// another program's memory.
    fn after_out_of_memory(&mut self, failure: TrainerFailure) -> Decision {
        let (failures, most) = match &mut self.of_ranks {
            Some(failures) => (failures, MAX_OF_RANKS),
            None => (&mut self.failures, MAX_FAILURES),
        };
        *failures += 1;
        let failures = *failures;
        // It would free nothing where the memory of the device is the machine's, and a browser has no
        // CPU backend that would update the weights.
        let is_shared = failure.device.is_some_and(DeviceKind::shares_memory);
        let can_offload = !is_shared && !cfg!(target_arch = "wasm32");
        let next = |plan| smaller_or_offloaded(plan, can_offload);
        let plan = match failure.plan.as_ref().map(next) {
            Some(Some(plan)) => Some(plan),
            Some(None) => {
                let text = format!("{}, and its steps cannot be split smaller", failure.error.text);
                return give_up(failure.error, text);
            }
            None if failures >= most => return give_up_after(failures, failure.error),
            None => None,
        };
        let event = replan(ReplanReason::OutOfMemory, &failure, plan.clone());
        self.out_of_memory = Some(failure.error.text);
        let delay = Duration::ZERO;
        Decision::Restart { events: vec![event], delay, plan, avoids_matrices: false }
    }

    /// Restarts after a pause, unless the device has had its time, or the trainer its attempts.
    fn wait(&mut self, failure: TrainerFailure, now: Duration, avoids_matrices: bool) -> Decision {
        let is_unavailable = failure.error.cause == Some(Cause::Unavailable);
        self.is_lost |= failure.error.cause.is_some();
        let elapsed = now.saturating_sub(*self.since.get_or_insert(now));
        let left = LIMIT.saturating_sub(elapsed).as_secs();
        let attempt = self.waits as u32 + 1;
        let attempts = if self.is_lost {
            if left == 0 && attempt >= MAX_FAILURES {
                let minutes = elapsed.as_secs().div_ceil(60);
                let text =
                    format!("{}; it did not recover within {minutes} minutes", failure.error.text);
                return give_up(failure.error, text);
            }
            attempts_in(left, self.waits).max(MAX_FAILURES - 1)
        } else {
            self.failures += 1;
            if self.failures >= MAX_FAILURES {
                return give_up_after(self.failures, failure.error);
            }
            MAX_FAILURES - 1
        };
        let mut events = Vec::new();
        let mut text = "restarting".to_string();
        if is_unavailable {
            text = format!("{}; trying again", failure.error.text);
        } else {
            events.push(replan(ReplanReason::DeviceLost, &failure, None));
        }
        if avoids_matrices {
            let text = "the trainer crashed while it used the device's cooperative matrices; the run \
                        continues without them, which is slower";
            events.push(Event::Warning { text: text.into() });
        }
        let seconds = if left == 0 { pause(self.waits) } else { pause(self.waits).min(left) };
        self.waits += 1;
        events.push(Event::Waiting(Waiting { text, attempt, attempts, seconds, free_bytes: None }));
        let delay = Duration::from_secs(seconds);
        Decision::Restart { events, delay, plan: None, avoids_matrices }
    }
}

/// Returns the seconds of the pause that follows that many others.
fn pause(waits: usize) -> u64 {
    DELAYS[waits.min(DELAYS.len() - 1)]
}

/// Returns the number of attempts if that many pauses are over, `left` seconds remain, and every attempt
/// fails at once.
fn attempts_in(mut left: u64, mut waits: usize) -> u32 {
    while left > 0 {
        left = left.saturating_sub(pause(waits));
        waits += 1;
    }
    waits as u32
}

fn give_up_after(failures: u32, error: RunError) -> Decision {
    let text = format!("{}; {failures} failures without a new update in between", error.text);
    give_up(error, text)
}

fn give_up(error: RunError, text: String) -> Decision {
    let cause = error.cause.or(Some(Cause::DeviceLost));
    Decision::GiveUp(RunError { text, cause, ..error })
}

fn replan(reason: ReplanReason, failure: &TrainerFailure, to: Option<Plan>) -> Event {
    let from = failure.plan.clone();
    Event::Replan { reason, text: failure.error.text.clone(), to: to.or(from.clone()), from }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const LOST: Option<Cause> = Some(Cause::DeviceLost);
    const OUT_OF_MEMORY: Option<Cause> = Some(Cause::OutOfMemory);

    fn failure(iteration: u64, cause: Option<Cause>) -> TrainerFailure {
        let plan = Plan::new(&Config::default(), 65);
        let plan = Plan { micro_batch: 4, accumulation: 1, grad_checkpoint: true, ..plan };
        let error = RunError { text: "it stopped".into(), cause, ..RunError::default() };
        let device = Some(DeviceKind::Discrete);
        TrainerFailure { plan: Some(plan), iteration, device, error, ..TrainerFailure::default() }
    }

    fn unavailable() -> TrainerFailure {
        TrainerFailure { plan: None, device: None, ..failure(0, Some(Cause::Unavailable)) }
    }

    /// Seconds until the restart; `None` where the policy gives up.
    fn delay(decision: &Decision) -> Option<u64> {
        match decision {
            Decision::Restart { delay, .. } => Some(delay.as_secs()),
            Decision::GiveUp(_) | Decision::NoDevice(_) => None,
        }
    }

    fn last_error(decision: Decision) -> RunError {
        match decision {
            Decision::GiveUp(error) => error,
            decision => panic!("{decision:?}"),
        }
    }

    const ZERO: Duration = Duration::ZERO;

    /// Lets each attempt fail in the way that `fail` gives it, `seconds` after it began, until the policy
    /// gives up. Returns the pauses and the last error.
    fn attempts(
        recovery: &mut Recovery,
        seconds: u64,
        mut fail: impl FnMut(usize) -> TrainerFailure,
    ) -> (Vec<u64>, RunError) {
        let mut pauses = Vec::new();
        let mut now = Duration::from_secs(1000);
        loop {
            match recovery.decide(fail(pauses.len()), now) {
                Decision::Restart { events, delay, .. } => {
                    let Some(Event::Waiting(waiting)) = events.last() else { panic!("{events:?}") };
                    assert_eq!(u64::from(waiting.attempt), pauses.len() as u64 + 1);
                    assert!(waiting.attempt <= waiting.attempts, "{waiting:?}");
                    pauses.push(delay.as_secs());
                    now += delay + Duration::from_secs(seconds);
                }
                decision => return (pauses, last_error(decision)),
            }
        }
    }

    #[test]
    fn a_run_that_makes_new_updates_is_always_restarted() {
        let mut recovery = Recovery::default();
        for iteration in 1..10 {
            let now = Duration::from_secs(1000 * iteration);
            let decision = recovery.decide(failure(iteration, LOST), now);
            assert_eq!(delay(&decision), Some(1), "{decision:?}");
        }
        assert_eq!(recovery.furthest, 9);
    }

    #[test]
    fn a_lost_device_has_five_minutes_in_which_it_may_open_and_fail() {
        let mut recovery = Recovery::default();
        let first = recovery.decide(failure(7, LOST), ZERO);
        let Decision::Restart { events, plan: None, avoids_matrices: false, .. } = first else {
            panic!("{first:?}")
        };
        assert!(matches!(&events[0], Event::Replan { reason: ReplanReason::DeviceLost, .. }));
        assert_eq!(events[1].to_string(), "restarting in 1 s (attempt 1 of 10)");

        let expected = [1, 2, 5, 15, 30, 60, 60, 60, 60, 7];
        let is_lost = |fails: usize| failure(7, if fails % 3 == 2 { None } else { LOST });
        let in_turn = |fails| if fails % 2 == 0 { is_lost(fails) } else { unavailable() };
        let opens = attempts(&mut Recovery::default(), 0, is_lost);
        let does_not = attempts(&mut Recovery::default(), 0, in_turn);
        for (pauses, last) in [opens, does_not] {
            assert_eq!(pauses, expected);
            assert!(last.text.ends_with("it did not recover within 5 minutes"), "{last:?}");
            assert!(last.cause.is_some());
        }
        // Attempts that last as long as the limit get three in all.
        let (pauses, last) = attempts(&mut Recovery::default(), 300, is_lost);
        assert_eq!(pauses, [1, 2]);
        assert!(last.text.ends_with("in 11 minutes"), "{last:?}");
    }

    #[test]
    fn a_new_update_gives_the_device_its_time_again() {
        let mut recovery = Recovery::default();
        let late = Duration::from_secs(200);
        assert_eq!(delay(&recovery.decide(failure(7, LOST), ZERO)), Some(1));
        assert_eq!(delay(&recovery.decide(unavailable(), late)), Some(2));
        assert_eq!(delay(&recovery.decide(failure(8, LOST), late * 2)), Some(1));
        assert_eq!(delay(&recovery.decide(failure(8, LOST), late * 3)), Some(2));
    }

    #[test]
    fn a_trainer_that_crashes_has_three_attempts() {
        let (pauses, last) = attempts(&mut Recovery::default(), 0, |_| failure(0, None));
        assert_eq!(pauses, [1, 2]);
        assert!(last.text.contains("3 failures"), "{last:?}");
        assert_eq!(last.cause, LOST);
    }

    #[test]
    fn a_crash_without_a_new_update_leaves_cooperative_matrices_out() {
        let crashed = |iteration, uses_matrices| TrainerFailure {
            uses_matrices,
            crash: Some("signal 11".into()),
            ..failure(iteration, None)
        };
        let avoids = |recovery: &mut Recovery, failure| match recovery.decide(failure, ZERO) {
            Decision::Restart { events, avoids_matrices, .. } => {
                let warns = events.iter().any(|event| matches!(event, Event::Warning { .. }));
                assert_eq!(warns, avoids_matrices, "{events:?}");
                avoids_matrices
            }
            decision => panic!("{decision:?}"),
        };
        for (failure, expected) in [
            (crashed(0, Some(true)), true),
            (crashed(0, Some(false)), false),
            (crashed(0, None), false),
            (crashed(5, Some(true)), false),
            // It was killed, or it said why it ended.
            (TrainerFailure { crash: None, ..crashed(0, Some(true)) }, false),
        ] {
            assert_eq!(avoids(&mut Recovery::default(), failure.clone()), expected, "{failure:?}");
        }
        let mut recovery = Recovery::default();
        assert!(!avoids(&mut recovery, crashed(5, Some(true))));
        assert!(avoids(&mut recovery, crashed(5, Some(true))));
        assert!(!avoids(&mut Recovery::of_ranks(), crashed(0, Some(true))));
    }

    #[test]
    fn a_device_that_was_never_open_is_refused_at_once() {
        let mut recovery = Recovery::default();
        let is_refused = |decision| matches!(decision, Decision::NoDevice(_));
        assert!(is_refused(recovery.decide(unavailable(), ZERO)));
        let killed = TrainerFailure { device: None, ..failure(0, None) };
        assert_eq!(delay(&recovery.decide(killed, ZERO)), Some(1));
        assert!(is_refused(recovery.decide(unavailable(), ZERO)));
    }

    #[test]
    fn out_of_memory_restarts_at_once_with_a_smaller_plan() {
        let mut recovery = Recovery::default();
        let decision = recovery.decide(failure(0, OUT_OF_MEMORY), ZERO);
        assert_eq!(delay(&decision), Some(0));
        let Decision::Restart { events, plan, .. } = decision else { unreachable!() };
        let [Event::Replan { reason, from, to, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((*reason, from.as_ref().unwrap().micro_batch), (ReplanReason::OutOfMemory, 4));
        assert_eq!((plan.as_ref().unwrap().micro_batch, to), (2, &plan));

        let smallest = |offload_optimizer| {
            let failed = failure(0, OUT_OF_MEMORY);
            let shrink = |plan| Plan { micro_batch: 1, loss_chunk: 32, offload_optimizer, ..plan };
            TrainerFailure { plan: failed.plan.map(shrink), ..failed }
        };
        // The optimizer's place is the last thing that changes.
        let Decision::Restart { plan, .. } = recovery.decide(smallest(false), ZERO) else {
            panic!("the optimizer fits in host memory")
        };
        assert!(plan.is_some_and(|plan| plan.offload_optimizer));
        // Where both are the same memory, that would free nothing.
        let device = Some(DeviceKind::Integrated);
        let unified = TrainerFailure { device, ..smallest(false) };
        for smallest in [smallest(true), unified] {
            let last = last_error(Recovery::default().decide(smallest, ZERO));
            assert!(last.text.ends_with("its steps cannot be split smaller"), "{last:?}");
        }
    }

    #[test]
    fn ranks_that_run_out_of_memory_are_restarted_until_one_has_no_smaller_plan() {
        let mut recovery = Recovery::of_ranks();
        let of_rank = |cause| TrainerFailure { plan: None, ..failure(0, cause) };
        for _ in 1..MAX_OF_RANKS {
            let decision = recovery.decide(of_rank(OUT_OF_MEMORY), ZERO);
            assert!(matches!(decision, Decision::Restart { plan: None, .. }), "{decision:?}");
        }
        // Other failures are counted by themselves.
        assert_eq!(delay(&recovery.decide(of_rank(LOST), ZERO)), Some(1));
        assert_eq!(delay(&recovery.decide(of_rank(LOST), ZERO)), Some(2));
        let refused = Recovery::of_ranks().refused(&of_rank(OUT_OF_MEMORY).error);
        assert_eq!(refused.unwrap().text, "it stopped");
        let last = last_error(recovery.decide(of_rank(OUT_OF_MEMORY), ZERO));
        assert!(last.text.contains("1000 failures"), "{last:?}");
    }

    #[test]
    fn a_smaller_plan_that_is_refused_ends_as_out_of_memory() {
        let refusal = RunError { text: "it does not fit".into(), ..RunError::default() };
        let mut recovery = Recovery::default();
        assert_eq!(recovery.refused(&refusal), None);
        recovery.decide(failure(0, OUT_OF_MEMORY), ZERO);
        let RunError { text, cause, .. } = recovery.refused(&refusal).unwrap();
        assert_eq!(text, "it stopped, and a smaller plan was refused: it does not fit");
        assert_eq!(cause, OUT_OF_MEMORY);
        recovery.decide(failure(1, LOST), ZERO);
        assert_eq!(recovery.refused(&refusal), None);
    }
}
