//! The memory of a run: measured at step boundaries, and kept within the budget.

use std::collections::BTreeMap;

use super::Session;
use super::saving::MAX_CHECKPOINT_AGE_AT_RISK;
use crate::config::Budget;
use crate::gpu::{self, DeviceMonitor, OpenDevice};
use crate::plan::{self, Class, DeviceHealth, Forecast, PlanError, Throttle};
use crate::protocol::{Event, Failure, ReplanReason};
use crate::runs::known_speed;
use crate::text::bytes;

/// A run whose updates take so many times as long as its fastest ones waits for something.
const MUCH_SLOWER: f64 = 2.0;

/// The log lines in a row with a throttled clock after which the user is told.
const THROTTLED_LINES: u32 = 3;

/// A monitor of the device: its memory, in bytes, and its health.
pub(super) struct MemoryMonitor {
    /// The most that the pools have held.
    pub peak: u64,
    /// The bytes of the run in host memory, where that is the memory of the device too.
    on_host: u64,
    /// The bytes that other programs use, where known.
    pub others: Option<u64>,
    /// The bytes that the run holds beyond what the system grants it.
    excess: u64,
    pub health: Option<DeviceHealth>,
    system: DeviceMonitor,
    /// Step boundaries in a row at which the pools held more than the budget, under the current
    /// plan.
    crossings: u32,
    pace: PagedPace,
    /// Log lines in a row with a clock that is too low for a reason that the user can change.
    throttled: u32,
}

/// Notices that the driver moves memory of the run to the machine's instead of refusing it, as on Windows.
#[derive(Default)]
struct PagedPace {
    /// The shortest time of an update, in seconds.
    best: Option<f64>,
    /// False for the first time under a plan, which compiles kernels.
    is_settled: bool,
    is_told: bool,
}

impl PagedPace {
    /// Takes the time of an update, and the bytes that the run holds beyond what the system grants it now.
    /// Returns true if these probably slow the run down.
    fn is_paged(&mut self, seconds: f64, excess: u64) -> bool {
        if !std::mem::replace(&mut self.is_settled, true) {
            return false;
        }
        let best = self.best.unwrap_or(seconds).min(seconds);
        self.best = Some(best);
        excess > 0 && seconds >= MUCH_SLOWER * best
    }
}

impl MemoryMonitor {
    /// Creates a monitor for a run that holds `host_bytes` of host memory besides the program, for its
    /// whole time.
    pub fn new(device: &OpenDevice, host_bytes: u64) -> Self {
        let on_host = if device.info.kind.shares_memory() { host_bytes } else { 0 };
        let mut monitor = Self {
            peak: 0,
            on_host,
            others: None,
            excess: 0,
            health: None,
            system: DeviceMonitor::start(device),
            crossings: 0,
            pace: PagedPace::default(),
            throttled: 0,
        };
        monitor.read(device);
        monitor
    }

    /// Returns what the pools hold; `None` on the CPU, or where it is unknown.
    pub fn read(&mut self, device: &OpenDevice) -> Option<u64> {
        let held = held(device);
        self.peak = self.peak.max(held.unwrap_or(0));
        let reading = self.system.latest();
        let ours = held.unwrap_or(0) + self.on_host;
        let used = reading.memory.as_ref().map(|memory| memory.total.saturating_sub(memory.free));
        self.excess = reading.memory.map_or(0, |memory| memory.excess);
        self.others = used.map(|used| used.saturating_sub(ours));
        self.health = reading.health.known();
        held
    }

    /// Counts the step boundaries in a row, this one included, at which the pools `held` more than the
    /// budget.
    fn count_crossing(&mut self, held: u64, budget: u64) -> u32 {
        self.crossings = if held > budget { self.crossings + 1 } else { 0 };
        self.crossings
    }

    /// Begins to watch another plan.
    fn change_plan(&mut self) {
        (self.crossings, self.pace.is_settled) = (0, false);
    }

    /// Returns a warning once the clock was low at several log lines in a row, for a reason that the user
    /// can change. A GPU at its power limit works as its makers intend.
    pub fn throttle_warning(&mut self) -> Option<String> {
        let health = self.health.unwrap_or_default();
        let advice = match health.throttled {
            Some(Throttle::Heat) => "it is too hot: clean its fans, or lower its power limit",
            Some(Throttle::PowerSupply) => "its power supply delivers too little: check its cables",
            // It is told once.
            _ if self.throttled >= THROTTLED_LINES => return None,
            _ => {
                self.throttled = 0;
                return None;
            }
        };
        self.throttled = self.throttled.saturating_add(1);
        (self.throttled == THROTTLED_LINES)
            .then(|| format!("the GPU lowers its clock, because {advice} ({health})"))
    }
}

fn held(device: &OpenDevice) -> Option<u64> {
    gpu::memory(&device.device).map(|memory| memory.reserved)
}

impl Session<'_> {
    /// Returns the part of the pools that is known by class.
    pub(super) fn memory_by_class(&self) -> BTreeMap<Class, u64> {
        if held(&self.device).is_none() {
            return BTreeMap::new();
        }
        let known = [Class::Weights, Class::Optimizer];
        let of = |class| Some((class, *self.steps.forecast.classes.get(&class)?));
        known.into_iter().filter_map(of).collect()
    }

    /// Checks the budget at the boundary of a step. If the pools exceed it, their free pages go
    /// back to the driver; if they exceed it again, steps are split smaller.
    pub(super) async fn keep_within_budget(&mut self) -> Result<(), Failure> {
        let held = self.memory.read(&self.device);
        let (Some(budget), Some(held)) = (self.steps.limits.budget, held) else { return Ok(()) };
        let crossings = self.memory.count_crossing(held, budget);
        if crossings == 0 {
            return Ok(());
        }
        gpu::release_unused(&self.device.device);
        if crossings == 1 {
            return Ok(());
        }
        let text = format!("the run used {} of a budget of {}", bytes(held), bytes(budget));
        self.split_smaller(text, crossings == 2).await
    }

    /// Plans again if the run has become slow because the driver moves its memory to the machine's.
    /// An update takes `seconds` now.
    pub(super) async fn avoid_paging(&mut self, seconds: f64) -> Result<(), Failure> {
        let excess = self.memory.excess;
        if !self.memory.pace.is_paged(seconds, excess) {
            return Ok(());
        }
        gpu::release_unused(&self.device.device);
        let text = format!(
            "the run became {MUCH_SLOWER} times slower while it held {} more GPU memory than the system \
             allows now: other programs took it",
            bytes(excess)
        );
        let warns = !std::mem::replace(&mut self.memory.pace.is_told, true);
        self.split_smaller(text, warns).await
    }

    /// Splits steps smaller for the reason in `text`. If that is impossible, `warns` says so.
    async fn split_smaller(&mut self, text: String, warns: bool) -> Result<(), Failure> {
        let Some(plan) = plan::smaller(self.steps.plan()) else {
            if warns {
                self.journal.warn(format!("{text}, and its steps cannot be split smaller"));
            }
            return Ok(());
        };
        let config = self.ranks.own_config(&self.job.config);
        let forecast = Forecast::of(plan, &config, self.learner.vocabulary(), &self.steps.limits);
        self.replan(text, forecast).await
    }

    /// Changes the budget, and the plan if it no longer fits.
    pub(super) async fn set_budget(&mut self, budget: u64) -> Result<(), Failure> {
        let limits = plan::Limits { budget: Some(budget), ..self.steps.limits };
        let config = self.ranks.own_config(&self.job.config);
        let speed = known_speed(&self.device.info, self.job.mode);
        let (plan, vocab) = (self.steps.plan(), self.learner.vocabulary());
        match plan::replan(&config, plan, vocab, &limits, speed.as_ref()) {
            Ok(forecast) => {
                self.steps.limits = limits;
                self.job.config.vram_budget = Budget::Bytes(budget);
                if let Err(error) = self.journal.folder.write_config(&self.job.config) {
                    self.journal.warn(format!("the new budget was not saved: {error}"));
                }
                self.replan(format!("the budget is now {}", bytes(budget)), forecast).await
            }
            Err(PlanError::TooBig { least, .. }) if least.predicted_bytes > budget => {
                let least = bytes(least.predicted_bytes);
                self.journal.warn(format!(
                    "the budget is unchanged: the run needs at least {least}, more than {}",
                    bytes(budget)
                ));
                Ok(())
            }
            Err(error) => {
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                self.journal.warn(format!("the budget is unchanged: {error}{hint}"));
                Ok(())
            }
        }
    }

    async fn replan(&mut self, text: String, forecast: Forecast) -> Result<(), Failure> {
        let from = self.steps.plan().clone();
        if from != forecast.plan {
            // Each rank has its own budget, so the others may not be here to save their states.
            if self.learner.optimizer.sharding.is_none() {
                self.save_if_older(MAX_CHECKPOINT_AGE_AT_RISK).await?;
            }
            let to = Some(forecast.plan.clone());
            let reason = ReplanReason::Budget;
            self.journal.emit(Event::Replan { reason, text, from: Some(from), to });
        }
        self.journal.emit(Event::Plan(Box::new(forecast.clone())));
        self.steps.change(forecast);
        self.memory.change_plan();
        // Frees empty pages of the former size.
        gpu::release_unused(&self.device.device);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cpu, new_run, open, request};
    use super::*;
    use crate::ranks::Group;

    fn monitor() -> MemoryMonitor {
        MemoryMonitor::new(&OpenDevice::cpu(cpu()), 0)
    }

    #[test]
    fn only_crossings_in_a_row_count() {
        let mut memory = monitor();
        let counts: Vec<u32> =
            [11, 9, 11, 12, 10, 11].map(|held| memory.count_crossing(held, 10)).into();
        assert_eq!(counts, [1, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_run_is_paged_if_it_is_slow_and_holds_more_than_it_may() {
        let mut pace = PagedPace::default();
        for (seconds, excess, is_paged) in [
            // The kernels are compiled.
            (9.0, 1, false),
            (1.0, 0, false),
            (1.9, 1, false),
            // Another program computes too.
            (4.0, 0, false),
            (2.0, 1, true),
            (0.8, 1, false),
            (1.6, 1, true),
        ] {
            assert_eq!(pace.is_paged(seconds, excess), is_paged, "{seconds} s, {excess}");
        }
        // Another plan compiles again, and is compared with the best of all.
        pace.is_settled = false;
        assert!(!pace.is_paged(9.0, 1) && pace.is_paged(1.7, 1));
    }

    #[test]
    fn a_run_whose_memory_is_moved_away_is_split_smaller() {
        let (_folder, run) = new_run();
        let mut events = Vec::new();
        let mut emit = |event: &Event| events.push(event.clone());
        let request = request(&run, &[]);
        let mut session = open(cpu(), request, Group::alone(), &mut emit).unwrap();
        let before = session.steps.plan().micro_batch;
        session.memory.pace = PagedPace { best: Some(1.0), is_settled: true, is_told: false };
        session.memory.excess = 1 << 30;
        for seconds in [1.5, 2.5] {
            pollster::block_on(session.avoid_paging(seconds)).unwrap();
        }
        assert_eq!(session.steps.plan().micro_batch, before / 2);
        drop(session);
        let is_budget =
            |event: &&Event| matches!(event, Event::Replan { reason: ReplanReason::Budget, .. });
        assert_eq!(events.iter().filter(is_budget).count(), 1, "{events:?}");
    }

    #[test]
    fn a_clock_that_stays_low_is_told_once() {
        let mut memory = monitor();
        let mut warnings = |throttled: Option<Throttle>, lines: u32| {
            let health = DeviceHealth { celsius: Some(88.0), throttled, ..Default::default() };
            memory.health = Some(health);
            (0..lines).filter_map(|_| memory.throttle_warning()).collect::<Vec<_>>()
        };
        assert_eq!(warnings(Some(Throttle::PowerLimit), 9), [""; 0]);
        for throttled in [Some(Throttle::Heat), None, Some(Throttle::Heat)] {
            assert_eq!(warnings(throttled, THROTTLED_LINES - 1), [""; 0]);
        }
        let told = warnings(Some(Throttle::Heat), 9);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("too hot") && told[0].contains("88 °C"), "{told:?}");
    }

    #[test]
    fn a_new_plan_has_no_crossings_yet() {
        let (_folder, run) = new_run();
        let mut emit = |_: &Event| {};
        let mut session = open(cpu(), request(&run, &[]), Group::alone(), &mut emit).unwrap();
        session.memory.crossings = 2;
        let forecast = session.steps.forecast.clone();
        pollster::block_on(session.replan(String::new(), forecast)).unwrap();
        assert_eq!(session.memory.crossings, 0);
    }
}
