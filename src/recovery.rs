//! What to do when a trainer ends by a failure of its device: begin again from the last checkpoint,
//! after out-of-memory with less on the device at a time, or give up.

use std::collections::BTreeMap;

use crate::plan::{Plan, smaller};
use crate::protocol::{Cause, Command, Event, ReplanReason};

/// Failures one after the other, without an update between them that is new, that end a run.
const FAILURES: u32 = 3;

/// How a trainer ended that failed.
#[derive(Clone, Debug, Default)]
pub struct Failed {
    /// How its steps were cut, if it came so far.
    pub plan: Option<Plan>,
    /// Updates made, as far as it told.
    pub iteration: u64,
    /// What failed, and where.
    pub text: String,
    /// What to do about it.
    pub hint: String,
    /// What the device did, where that is known.
    pub cause: Option<Cause>,
}

impl Failed {
    /// Takes in what a trainer says.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Plan(forecast) => self.plan = Some(forecast.plan.clone()),
            Event::Step(step) => self.iteration = step.iter + 1,
            Event::Checkpoint { iter, .. } => self.iteration = self.iteration.max(*iter),
            _ => {}
        }
    }

    /// The end of a run, as it is told.
    pub fn event(self) -> Event {
        Event::Error { text: self.text, hint: self.hint, cause: self.cause }
    }
}

/// What commands have changed, for the next trainer to hear first.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    settings: BTreeMap<String, f64>,
    paused: bool,
    /// Whether the run is to end.
    pub stopping: bool,
}

impl Heard {
    /// Takes in what is asked of a trainer.
    pub fn take(&mut self, command: &Command) {
        match command {
            Command::Pause => self.paused = true,
            Command::Resume => self.paused = false,
            Command::Stop => self.stopping = true,
            Command::Set { key, value } => drop(self.settings.insert(key.clone(), *value)),
            Command::Checkpoint | Command::Sample { .. } => {}
        }
    }

    /// What the next one has to hear.
    pub fn again(&self) -> impl Iterator<Item = Command> {
        let set = |(key, value): (&String, &f64)| Command::Set { key: key.clone(), value: *value };
        self.settings.iter().map(set).chain(self.paused.then_some(Command::Pause))
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Begin again.
    Again {
        /// What is told of that.
        event: Event,
        /// How steps are to be cut at the most; `None` leaves that as it was.
        less: Option<Plan>,
    },
    /// The run is over.
    GiveUp {
        /// What is told of that.
        event: Event,
    },
}

/// What is remembered from one failure to the next.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Updates that any trainer made.
    furthest: u64,
    /// Failures without getting any further.
    failures: u32,
}

impl Recovery {
    /// Decides after a failure.
    pub fn after(&mut self, failed: Failed) -> Decision {
        self.failures = if failed.iteration > self.furthest { 1 } else { self.failures + 1 };
        self.furthest = self.furthest.max(failed.iteration);
        let out_of_memory = failed.cause == Some(Cause::OutOfMemory);
        let smaller = failed.plan.as_ref().filter(|_| out_of_memory).map(smaller);
        if self.failures >= FAILURES && !matches!(smaller, Some(Some(_))) || smaller == Some(None) {
            let times = self.failures;
            let text = format!("{}; {times} times without getting any further", failed.text);
            let cause = failed.cause.or(Some(Cause::DeviceLost));
            return Decision::GiveUp { event: Failed { text, cause, ..failed }.event() };
        }
        let less = smaller.flatten();
        let reason = match out_of_memory {
            true => ReplanReason::OutOfMemory,
            false => ReplanReason::DeviceLost,
        };
        let to = less.clone().or(failed.plan.clone());
        let event = Event::Replan { reason, text: failed.text, from: failed.plan, to };
        Decision::Again { event, less }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(iteration: u64, cause: Option<Cause>) -> Failed {
        let plan = Plan {
            micro_batch: 4,
            accumulation: 1,
            loss_chunk: 128,
            grad_checkpoint: true,
            eval_batch_size: 4,
        };
        let (text, hint) = ("it stopped".into(), String::new());
        Failed { plan: Some(plan), iteration, text, hint, cause }
    }

    #[test]
    fn what_was_asked_of_one_trainer_the_next_hears() {
        let set = |key: &str, value| Command::Set { key: key.into(), value };
        let mut heard = Heard::default();
        for command in [
            set("vram_budget", 6e9),
            Command::Pause,
            set("log_interval", 5.0),
            Command::Checkpoint,
            set("vram_budget", 5e9),
        ] {
            heard.take(&command);
        }
        let again: Vec<_> = heard.again().collect();
        assert_eq!(again, [set("log_interval", 5.0), set("vram_budget", 5e9), Command::Pause]);
        heard.take(&Command::Resume);
        assert_eq!(heard.again().count(), 2);
        assert!(!heard.stopping);
        heard.take(&Command::Stop);
        assert!(heard.stopping);
    }

    #[test]
    fn a_run_that_gets_further_goes_on() {
        let mut recovery = Recovery::default();
        for iteration in 1..10 {
            let decision = recovery.after(failed(iteration, Some(Cause::DeviceLost)));
            assert!(matches!(decision, Decision::Again { less: None, .. }), "{decision:?}");
        }
        // The ninth was the first of these.
        assert!(matches!(recovery.after(failed(9, None)), Decision::Again { .. }));
        let last = recovery.after(failed(9, None));
        let Decision::GiveUp { event: Event::Error { text, cause, .. } } = last else {
            panic!("{last:?}")
        };
        assert!(text.contains("3 times") && cause == Some(Cause::DeviceLost), "{text}");
    }

    #[test]
    fn out_of_memory_takes_less_each_time() {
        let decision = Recovery::default().after(failed(0, Some(Cause::OutOfMemory)));
        let Decision::Again { event: Event::Replan { reason, from, to, .. }, less } = decision
        else {
            panic!("{decision:?}")
        };
        assert_eq!((reason, from.unwrap().micro_batch), (ReplanReason::OutOfMemory, 4));
        assert_eq!((less.as_ref().unwrap().micro_batch, &to), (2, &less));
    }
}
