//! The policy for a trainer that failed: restart it from the last checkpoint, wait for its device
//! first, or give up.
//!
//! Pure, without a clock or a process, so that the supervisor of a process and the page that
//! supervises a worker share it.

use std::mem::discriminant;
use std::time::Duration;

use crate::plan::{Plan, smaller_or_offloaded};
use crate::protocol::{Cause, Command, Event, Exit, ReplanReason, Setting};

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
    /// Updates made, as far as its events report.
    pub iteration: u64,
    /// True if it had its device open.
    pub opened: bool,
    /// True if the memory of its device is the machine's: offloading the optimizer would free none.
    pub shares_memory: bool,
    /// The message: what failed, and where.
    pub text: String,
    /// A hint at the next step.
    pub hint: String,
    /// The failure of the device, if it was one.
    pub cause: Option<Cause>,
}

impl TrainerFailure {
    /// Records an event of the trainer.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Start { resumed_from, device, .. } => {
                self.opened = true;
                self.shares_memory = device.kind.shares_memory();
                self.iteration = resumed_from.unwrap_or(0);
            }
            Event::Plan(forecast) => self.plan = Some(forecast.plan.clone()),
            Event::Step(step) => self.iteration = step.iter + 1,
            Event::Checkpoint { iter, .. } => self.iteration = self.iteration.max(*iter),
            Event::Error { text, hint, cause } => {
                (self.text, self.hint, self.cause) = (text.clone(), hint.clone(), *cause);
            }
            _ => {}
        }
    }

    /// Returns the error event that ends the run with this failure.
    pub fn into_event(self) -> Event {
        Event::Error { text: self.text, hint: self.hint, cause: self.cause }
    }
}

/// The commands that outlast a trainer: its successor is sent them first.
#[derive(Clone, Debug, Default)]
pub struct AppliedCommands {
    /// One value of each setting.
    settings: Vec<Setting>,
    paused: bool,
    stopping: bool,
}

impl AppliedCommands {
    /// Records a command to a trainer.
    pub fn apply(&mut self, command: &Command) {
        match command {
            Command::Pause => self.paused = true,
            Command::Resume => self.paused = false,
            Command::Stop => self.stopping = true,
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

    /// Returns true after a stop command: the run is not restarted.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }
}

/// The decision after a failure.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Emit `events`, wait for `delay`, and start another trainer.
    Restart {
        /// Events that report the failure and the wait.
        events: Vec<Event>,
        /// Time to wait; zero after out-of-memory.
        delay: Duration,
        /// The largest plan that the next trainer may use; `None` leaves the former limit.
        plan: Option<Plan>,
    },
    /// End the run.
    GiveUp {
        error: Event,
        /// The exit code of the process.
        exit_code: Exit,
    },
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
    furthest: u64,
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

    /// Decides what follows a failure.
    pub fn decide(&mut self, failure: TrainerFailure) -> Decision {
        if failure.iteration > self.furthest {
            (self.furthest, self.failures, self.waits) = (failure.iteration, 0, 0);
            self.of_ranks = self.of_ranks.map(|_| 0);
        }
        self.out_of_memory = None;
        let of_device = matches!(failure.cause, Some(Cause::OutOfMemory | Cause::DeviceLost));
        self.opened |= failure.opened || of_device;
        if failure.cause == Some(Cause::Unavailable) {
            if !self.opened {
                let error = failure.into_event();
                return Decision::GiveUp { error, exit_code: Exit::NoDevice };
            }
            let text = format!("{}; trying again", failure.text);
            return self.wait(failure, text, Vec::new());
        }
        if failure.cause == Some(Cause::OutOfMemory) {
            return self.after_out_of_memory(failure);
        }
        self.failures += 1;
        if self.failures >= MAX_FAILURES {
            return give_up_after(self.failures, failure);
        }
        let replan = replan(ReplanReason::DeviceLost, &failure, failure.plan.clone());
        self.wait(failure, "restarting".into(), vec![replan])
    }

    /// Decides what follows if the trainer refused to run: not enough memory is free for its plan. That
    /// gives up a run which ran out of memory before; `None` for any other, which was never possible.
    /// A rank that ran out of memory and has no smaller plan refuses the next.
    pub fn refused(&self, refusal: &TrainerFailure) -> Option<Decision> {
        if refusal.cause == Some(Cause::OutOfMemory) {
            return Some(give_up(refusal.clone(), refusal.text.clone()));
        }
        let before = self.out_of_memory.as_ref()?;
        let text = format!("{before}, and a smaller plan was refused: {}", refusal.text);
        let failure = TrainerFailure { cause: Some(Cause::OutOfMemory), ..refusal.clone() };
        Some(give_up(failure, text))
    }

    /// Returns the number of updates that any trainer made.
    pub fn furthest(&self) -> u64 {
        self.furthest
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
        // A browser has no CPU backend that would update the weights.
        let can_offload = !failure.shares_memory && !cfg!(target_arch = "wasm32");
        let next = |plan| smaller_or_offloaded(plan, can_offload);
        let plan = match failure.plan.as_ref().map(next) {
            Some(Some(plan)) => Some(plan),
            Some(None) => {
                let text = format!("{}, and its steps cannot be split smaller", failure.text);
                return give_up(failure, text);
            }
            None if failures >= most => return give_up_after(failures, failure),
            None => None,
        };
        let event = replan(ReplanReason::OutOfMemory, &failure, plan.clone());
        self.out_of_memory = Some(failure.text);
        Decision::Restart { events: vec![event], delay: Duration::ZERO, plan }
    }

    fn wait(&mut self, failure: TrainerFailure, text: String, mut events: Vec<Event>) -> Decision {
        let Some(&seconds) = DELAYS.get(self.waits) else {
            let minutes = DELAYS.iter().sum::<u64>().div_ceil(60);
            let text = format!("{}; it did not return within {minutes} minutes", failure.text);
            return give_up(failure, text);
        };
        self.waits += 1;
        let (attempt, attempts) = (self.waits as u32, DELAYS.len() as u32);
        events.push(Event::Waiting { text, attempt, attempts, seconds });
        Decision::Restart { events, delay: Duration::from_secs(seconds), plan: None }
    }
}

fn give_up_after(failures: u32, failure: TrainerFailure) -> Decision {
    let text = format!("{}; {failures} failures without a new update in between", failure.text);
    give_up(failure, text)
}

fn give_up(failure: TrainerFailure, text: String) -> Decision {
    let cause = failure.cause.or(Some(Cause::DeviceLost));
    let error = TrainerFailure { text, cause, ..failure }.into_event();
    Decision::GiveUp { error, exit_code: Exit::DeviceFailed }
}

fn replan(reason: ReplanReason, failure: &TrainerFailure, to: Option<Plan>) -> Event {
    let from = failure.plan.clone();
    Event::Replan { reason, text: failure.text.clone(), to: to.or(from.clone()), from }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(iteration: u64, cause: Option<Cause>) -> TrainerFailure {
        let plan = Plan {
            micro_batch: 4,
            accumulation: 1,
            loss_chunk: 128,
            grad_checkpoint: true,
            offload_optimizer: false,
            eval_batch_size: 4,
        };
        let (text, hint) = ("it stopped".into(), String::new());
        let (opened, shares_memory) = (true, false);
        TrainerFailure { plan: Some(plan), iteration, opened, shares_memory, text, hint, cause }
    }

    fn unavailable() -> TrainerFailure {
        TrainerFailure {
            text: "could not open it".into(),
            cause: Some(Cause::Unavailable),
            ..TrainerFailure::default()
        }
    }

    /// Seconds until the restart; `None` where the policy gives up.
    fn delay(decision: &Decision) -> Option<u64> {
        match decision {
            Decision::Restart { delay, .. } => Some(delay.as_secs()),
            Decision::GiveUp { .. } => None,
        }
    }

    #[test]
    fn a_restarted_trainer_gets_the_settings_and_the_pause_of_the_former_one() {
        let budget = |gib: u64| Command::Set(Setting::VramBudget((gib << 30).try_into().unwrap()));
        let log_interval = Command::Set(Setting::LogInterval(5.try_into().unwrap()));
        let mut applied = AppliedCommands::default();
        for command in
            [budget(6), Command::Pause, log_interval.clone(), Command::Checkpoint, budget(5)]
        {
            applied.apply(&command);
        }
        let replayed: Vec<_> = applied.replay().collect();
        assert_eq!(replayed, [log_interval, budget(5), Command::Pause]);
        applied.apply(&Command::Resume);
        assert_eq!(applied.replay().count(), 2);
        assert!(!applied.is_stopping());
        applied.apply(&Command::Stop);
        assert!(applied.is_stopping());
    }

    #[test]
    fn a_run_that_makes_new_updates_is_always_restarted() {
        let mut recovery = Recovery::default();
        for iteration in 1..10 {
            let decision = recovery.decide(failure(iteration, Some(Cause::DeviceLost)));
            assert_eq!(delay(&decision), Some(1), "{decision:?}");
        }
        // The ninth was the first of three.
        assert_eq!(delay(&recovery.decide(failure(9, None))), Some(2));
        let last = recovery.decide(failure(9, None));
        let Decision::GiveUp { error: Event::Error { text, cause, .. }, exit_code } = last else {
            panic!("{last:?}")
        };
        assert!(text.contains("3 failures"), "{text}");
        assert_eq!((cause, exit_code), (Some(Cause::DeviceLost), Exit::DeviceFailed));
    }

    #[test]
    fn a_lost_device_is_waited_for_five_minutes() {
        let mut recovery = Recovery::default();
        let first = recovery.decide(failure(7, Some(Cause::DeviceLost)));
        let Decision::Restart { events, delay: wait, plan: None } = first else {
            panic!("{first:?}")
        };
        assert!(matches!(&events[0], Event::Replan { reason: ReplanReason::DeviceLost, .. }));
        assert_eq!(events[1].to_string(), "restarting in 1 s (attempt 1 of 9)");
        let mut waited = wait.as_secs();
        let mut attempts = 1;
        let last = loop {
            match recovery.decide(unavailable()) {
                Decision::Restart { events, delay, .. } => {
                    assert_eq!(events.len(), 1);
                    attempts += 1;
                    waited += delay.as_secs();
                }
                decision => break decision,
            }
        };
        assert_eq!((attempts, waited), (9, 293));
        let Decision::GiveUp { error: Event::Error { text, .. }, exit_code: Exit::DeviceFailed } =
            last
        else {
            panic!("{last:?}")
        };
        assert!(text.contains("5 minutes"), "{text}");
    }

    #[test]
    fn opening_a_device_in_vain_is_no_failed_attempt_to_train() {
        let mut recovery = Recovery::default();
        recovery.decide(failure(7, Some(Cause::DeviceLost)));
        for seconds in [2, 5, 15, 30] {
            assert_eq!(delay(&recovery.decide(unavailable())), Some(seconds));
        }
        assert_eq!(delay(&recovery.decide(failure(7, Some(Cause::DeviceLost)))), Some(60));
        // A new update starts over.
        assert_eq!(delay(&recovery.decide(failure(8, Some(Cause::DeviceLost)))), Some(1));
        assert_eq!(delay(&recovery.decide(unavailable())), Some(2));
    }

    #[test]
    fn a_device_that_was_never_open_is_refused_at_once() {
        let decision = Recovery::default().decide(unavailable());
        assert!(
            matches!(decision, Decision::GiveUp { exit_code: Exit::NoDevice, .. }),
            "{decision:?}"
        );
        let mut recovery = Recovery::default();
        let killed = TrainerFailure { opened: false, ..failure(0, None) };
        assert_eq!(delay(&recovery.decide(killed)), Some(1));
        let decision = recovery.decide(unavailable());
        assert!(
            matches!(decision, Decision::GiveUp { exit_code: Exit::NoDevice, .. }),
            "{decision:?}"
        );
    }

    #[test]
    fn out_of_memory_restarts_at_once_with_a_smaller_plan() {
        let mut recovery = Recovery::default();
        let decision = recovery.decide(failure(0, Some(Cause::OutOfMemory)));
        assert_eq!(delay(&decision), Some(0));
        let Decision::Restart { events, plan, .. } = decision else { unreachable!() };
        let [Event::Replan { reason, from, to, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((*reason, from.as_ref().unwrap().micro_batch), (ReplanReason::OutOfMemory, 4));
        assert_eq!((plan.as_ref().unwrap().micro_batch, to), (2, &plan));

        let smallest = |offload_optimizer| {
            let failed = failure(0, Some(Cause::OutOfMemory));
            let shrink = |plan| Plan { micro_batch: 1, loss_chunk: 32, offload_optimizer, ..plan };
            TrainerFailure { plan: failed.plan.map(shrink), ..failed }
        };
        // The optimizer's place is the last thing that changes.
        let Decision::Restart { plan, .. } = recovery.decide(smallest(false)) else {
            panic!("the optimizer fits in host memory")
        };
        assert!(plan.is_some_and(|plan| plan.offload_optimizer));
        // Where both are the same memory, that would free nothing.
        let unified = TrainerFailure { shares_memory: true, ..smallest(false) };
        for smallest in [smallest(true), unified] {
            let last = Recovery::default().decide(smallest);
            let Decision::GiveUp {
                error: Event::Error { text, .. },
                exit_code: Exit::DeviceFailed,
            } = last
            else {
                panic!("{last:?}")
            };
            assert!(text.ends_with("its steps cannot be split smaller"), "{text}");
        }
    }

    #[test]
    fn ranks_that_run_out_of_memory_are_restarted_until_one_has_no_smaller_plan() {
        let mut recovery = Recovery::of_ranks();
        let of_rank = || TrainerFailure { plan: None, ..failure(0, Some(Cause::OutOfMemory)) };
        for _ in 1..MAX_OF_RANKS {
            let decision = recovery.decide(of_rank());
            assert!(matches!(decision, Decision::Restart { plan: None, .. }), "{decision:?}");
        }
        // Other failures are counted by themselves.
        let lost = TrainerFailure { plan: None, ..failure(0, Some(Cause::DeviceLost)) };
        assert_eq!(delay(&recovery.decide(lost.clone())), Some(1));
        assert_eq!(delay(&recovery.decide(lost)), Some(2));
        let ends = |decision: Option<Decision>| match decision {
            Some(Decision::GiveUp {
                error: Event::Error { text, .. },
                exit_code: Exit::DeviceFailed,
            }) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(ends(Recovery::of_ranks().refused(&of_rank())), "it stopped");
        assert!(ends(Some(recovery.decide(of_rank()))).contains("1000 failures"));
    }

    #[test]
    fn a_smaller_plan_that_is_refused_ends_as_out_of_memory() {
        let refusal =
            TrainerFailure { text: "it does not fit".into(), ..TrainerFailure::default() };
        let mut recovery = Recovery::default();
        assert_eq!(recovery.refused(&refusal), None);
        recovery.decide(failure(0, Some(Cause::OutOfMemory)));
        let last = recovery.refused(&refusal);
        let Some(Decision::GiveUp { error: Event::Error { text, cause, .. }, exit_code }) = last
        else {
            panic!("{last:?}")
        };
        assert_eq!(text, "it stopped, and a smaller plan was refused: it does not fit");
        assert_eq!((cause, exit_code), (Some(Cause::OutOfMemory), Exit::DeviceFailed));
        recovery.decide(failure(1, Some(Cause::DeviceLost)));
        assert_eq!(recovery.refused(&refusal), None);
    }
}
