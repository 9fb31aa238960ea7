//! The policy for a trainer that failed: restart it from the last checkpoint, wait for its device
//! first, or give up.

use std::mem::discriminant;
use std::time::Duration;

use crate::plan::{DeviceKind, Plan, smaller_or_offloaded};
use crate::protocol::{Cause, Command, Event, ReplanReason, RunError, Setting, Waiting};

/// Failures in a row, with no new update in between, that end a run.
const MAX_FAILURES: u32 = 3;

/// The same of ranks that ran out of memory. Each has at most some twenty smaller plans, and one without ends
/// the run: this only ends a run in which they have no effect.
const MAX_OF_RANKS: u32 = 1000;

/// Seconds to wait before each restart, about five minutes in all: a driver reset takes seconds, a
/// driver update, a suspended machine or an external GPU minutes.
const DELAYS: [u64; 9] = [1, 2, 5, 15, 30, 60, 60, 60, 60];

/// The failure of a trainer, with what its events said before.
#[derive(Clone, Debug, Default)]
pub struct TrainerFailure {
    /// The plan of its steps, if it got as far as planning.
    pub plan: Option<Plan>,
    pub iteration: u64,
    /// The kind of its device, once that was open.
    pub device: Option<DeviceKind>,
    pub error: RunError,
}

impl TrainerFailure {
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Start { resumed_from, device, .. } => {
                self.device = Some(device.kind);
                self.iteration = resumed_from.unwrap_or(0);
            }
            Event::Plan(forecast) => self.plan = Some(forecast.plan.clone()),
            Event::Step(step) => self.iteration = step.iter + 1,
            Event::Checkpoint(checkpoint) => self.iteration = self.iteration.max(checkpoint.iter),
            _ => {}
        }
    }
}

/// The commands that outlast a trainer: its successor is sent them first.
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
            Command::Checkpoint | Command::Sample { .. } => {}
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
    /// which may use `plan` at most; `None` leaves the former limit.
    Restart { events: Vec<Event>, delay: Duration, plan: Option<Plan> },
    /// End the run with [`Exit::DeviceFailed`](super::Exit::DeviceFailed).
    GiveUp(RunError),
    /// End a run that has never had its device, with [`Exit::NoDevice`](super::Exit::NoDevice).
    NoDevice(RunError),
}

/// The state of the policy over the life of a run.
///
/// A device that is lost gets `MAX_FAILURES` attempts to train, each after a longer wait. One
/// that cannot be opened has not trained: it is waited for until all `DELAYS` have passed. Out of
/// memory needs no wait but a smaller plan, which a rank keeps for itself. An update that no trainer
/// made before resets all of it.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Updates made by any trainer.
    pub furthest: u64,
    /// Failures since then of trainers that had a device.
    failures: u32,
    waits: usize,
    /// Failures since then of ranks that ran out of memory; `None` if the run has one process.
    of_ranks: Option<u32>,
    /// True once a trainer had its device open.
    opened: bool,
    /// How the last trainer ran out of memory, if that is why the next one got a smaller plan.
    out_of_memory: Option<String>,
}

impl Recovery {
    /// The state for a run whose ranks keep their own plans.
    pub fn of_ranks() -> Self {
        Self { of_ranks: Some(0), ..Self::default() }
    }

    pub fn decide(&mut self, failure: TrainerFailure) -> Decision {
        if failure.iteration > self.furthest {
            (self.furthest, self.failures, self.waits) = (failure.iteration, 0, 0);
            self.of_ranks = self.of_ranks.map(|_| 0);
        }
        self.out_of_memory = None;
        let cause = failure.error.cause;
        self.opened |=
            failure.device.is_some() || cause.is_some_and(|cause| cause != Cause::Unavailable);
        match cause {
            Some(Cause::Unavailable) if !self.opened => Decision::NoDevice(failure.error),
            Some(Cause::Unavailable) => {
                let text = format!("{}; trying again", failure.error.text);
                self.wait(failure.error, text, Vec::new())
            }
            Some(Cause::OutOfMemory) => self.after_out_of_memory(failure),
            Some(Cause::DeviceLost) | None => {
                self.failures += 1;
                if self.failures >= MAX_FAILURES {
                    return give_up_after(self.failures, failure.error);
                }
                let replan = replan(ReplanReason::DeviceLost, &failure, None);
                self.wait(failure.error, "restarting".into(), vec![replan])
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
        Decision::Restart { events: vec![event], delay: Duration::ZERO, plan }
    }

    fn wait(&mut self, error: RunError, text: String, mut events: Vec<Event>) -> Decision {
        let Some(&seconds) = DELAYS.get(self.waits) else {
            let minutes = DELAYS.iter().sum::<u64>().div_ceil(60);
            let text = format!("{}; it did not return within {minutes} minutes", error.text);
            return give_up(error, text);
        };
        self.waits += 1;
        let (attempt, attempts) = (self.waits as u32, DELAYS.len() as u32);
        events.push(Event::Waiting(Waiting { text, attempt, attempts, seconds }));
        Decision::Restart { events, delay: Duration::from_secs(seconds), plan: None }
    }
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
        TrainerFailure { plan: Some(plan), iteration, device, error }
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

    #[test]
    fn a_run_that_makes_new_updates_is_always_restarted() {
        let mut recovery = Recovery::default();
        for iteration in 1..10 {
            let decision = recovery.decide(failure(iteration, LOST));
            assert_eq!(delay(&decision), Some(1), "{decision:?}");
        }
        // The ninth was the first of three.
        assert_eq!(delay(&recovery.decide(failure(9, None))), Some(2));
        let RunError { text, cause, .. } = last_error(recovery.decide(failure(9, None)));
        assert!(text.contains("3 failures"), "{text}");
        assert_eq!(cause, LOST);
    }

    #[test]
    fn a_lost_device_is_waited_for_five_minutes() {
        let mut recovery = Recovery::default();
        let first = recovery.decide(failure(7, LOST));
        let Decision::Restart { events, delay: wait, plan: None } = first else {
            panic!("{first:?}")
        };
        assert!(matches!(&events[0], Event::Replan { reason: ReplanReason::DeviceLost, .. }));
        assert_eq!(events[1].to_string(), "restarting in 1 s (attempt 1 of 9)");
        let (mut attempts, mut waited) = (1, wait.as_secs());
        let last = loop {
            match recovery.decide(unavailable()) {
                Decision::Restart { events, delay, .. } => {
                    assert_eq!(events.len(), 1);
                    attempts += 1;
                    waited += delay.as_secs();
                }
                decision => break last_error(decision),
            }
        };
        assert_eq!((attempts, waited), (9, 293));
        assert!(last.text.contains("5 minutes"), "{last:?}");
    }

    #[test]
    fn opening_a_device_in_vain_is_no_failed_attempt_to_train() {
        let mut recovery = Recovery::default();
        recovery.decide(failure(7, LOST));
        for seconds in [2, 5, 15, 30] {
            assert_eq!(delay(&recovery.decide(unavailable())), Some(seconds));
        }
        assert_eq!(delay(&recovery.decide(failure(7, LOST))), Some(60));
        // A new update starts over.
        assert_eq!(delay(&recovery.decide(failure(8, LOST))), Some(1));
        assert_eq!(delay(&recovery.decide(unavailable())), Some(2));
    }

    #[test]
    fn a_device_that_was_never_open_is_refused_at_once() {
        let mut recovery = Recovery::default();
        let is_refused = |decision| matches!(decision, Decision::NoDevice(_));
        assert!(is_refused(recovery.decide(unavailable())));
        let killed = TrainerFailure { device: None, ..failure(0, None) };
        assert_eq!(delay(&recovery.decide(killed)), Some(1));
        assert!(is_refused(recovery.decide(unavailable())));
    }

    #[test]
    fn out_of_memory_restarts_at_once_with_a_smaller_plan() {
        let mut recovery = Recovery::default();
        let decision = recovery.decide(failure(0, OUT_OF_MEMORY));
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
        let Decision::Restart { plan, .. } = recovery.decide(smallest(false)) else {
            panic!("the optimizer fits in host memory")
        };
        assert!(plan.is_some_and(|plan| plan.offload_optimizer));
        // Where both are the same memory, that would free nothing.
        let device = Some(DeviceKind::Integrated);
        let unified = TrainerFailure { device, ..smallest(false) };
        for smallest in [smallest(true), unified] {
            let last = last_error(Recovery::default().decide(smallest));
            assert!(last.text.ends_with("its steps cannot be split smaller"), "{last:?}");
        }
    }

    #[test]
    fn ranks_that_run_out_of_memory_are_restarted_until_one_has_no_smaller_plan() {
        let mut recovery = Recovery::of_ranks();
        let of_rank = |cause| TrainerFailure { plan: None, ..failure(0, cause) };
        for _ in 1..MAX_OF_RANKS {
            let decision = recovery.decide(of_rank(OUT_OF_MEMORY));
            assert!(matches!(decision, Decision::Restart { plan: None, .. }), "{decision:?}");
        }
        // Other failures are counted by themselves.
        assert_eq!(delay(&recovery.decide(of_rank(LOST))), Some(1));
        assert_eq!(delay(&recovery.decide(of_rank(LOST))), Some(2));
        let refused = Recovery::of_ranks().refused(&of_rank(OUT_OF_MEMORY).error);
        assert_eq!(refused.unwrap().text, "it stopped");
        let last = last_error(recovery.decide(of_rank(OUT_OF_MEMORY)));
        assert!(last.text.contains("1000 failures"), "{last:?}");
    }

    #[test]
    fn a_smaller_plan_that_is_refused_ends_as_out_of_memory() {
        let refusal = RunError { text: "it does not fit".into(), ..RunError::default() };
        let mut recovery = Recovery::default();
        assert_eq!(recovery.refused(&refusal), None);
        recovery.decide(failure(0, OUT_OF_MEMORY));
        let RunError { text, cause, .. } = recovery.refused(&refusal).unwrap();
        assert_eq!(text, "it stopped, and a smaller plan was refused: it does not fit");
        assert_eq!(cause, OUT_OF_MEMORY);
        recovery.decide(failure(1, LOST));
        assert_eq!(recovery.refused(&refusal), None);
    }
}
