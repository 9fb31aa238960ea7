//! The memory of a run: measured at step boundaries, and kept within the budget.

use std::collections::BTreeMap;
use std::time::Duration;

use web_time::Instant;

use super::Session;
use super::saving::MAX_CHECKPOINT_AGE_AT_RISK;
use crate::config::Budget;
use crate::gpu::{self, DeviceInfo, DeviceKind, OpenDevice};
use crate::plan::{self, Class, Forecast, PlanError};
use crate::protocol::{Event, ReplanReason};
use crate::runs::known_speed;
use crate::text::bytes;
use crate::train::TrainError;

const OTHERS_INTERVAL: Duration = Duration::from_secs(10);

/// A monitor of the device's memory, in bytes.
pub(super) struct MemoryMonitor {
    /// The most that the pools have held.
    pub peak: u64,
    /// What the run holds in host memory, where that is the memory of the device too.
    on_host: u64,
    /// The bytes that other programs use, where known.
    pub others: Option<u64>,
    queried: Instant,
    /// Step boundaries in a row at which the pools held more than the budget, under the current
    /// plan.
    crossings: u32,
}

impl MemoryMonitor {
    /// Creates a monitor for a run that holds `host_bytes` of host memory besides the program, for its
    /// whole time.
    pub fn new(device: &OpenDevice, host_bytes: u64) -> Self {
        let on_host = if device.info.kind.shares_memory() { host_bytes } else { 0 };
        let held = held(device).unwrap_or(0);
        let others = others(&device.info, held + on_host);
        Self { peak: held, on_host, others, queried: Instant::now(), crossings: 0 }
    }

    /// Returns what the pools hold; `None` on the CPU, or where it is unknown.
    pub fn read(&mut self, device: &OpenDevice) -> Option<u64> {
        let held = held(device);
        self.peak = self.peak.max(held.unwrap_or(0));
        if self.queried.elapsed() >= OTHERS_INTERVAL {
            self.others = others(&device.info, held.unwrap_or(0) + self.on_host);
            self.queried = Instant::now();
        }
        held
    }

    /// Counts the step boundaries in a row, this one included, at which the pools `held` more than the
    /// budget.
    fn count_crossing(&mut self, held: u64, budget: u64) -> u32 {
        self.crossings = if held > budget { self.crossings + 1 } else { 0 };
        self.crossings
    }
}

fn held(device: &OpenDevice) -> Option<u64> {
    gpu::memory(&device.device).map(|memory| memory.reserved)
}

/// Returns the memory of the device that other programs use.
fn others(info: &DeviceInfo, ours: u64) -> Option<u64> {
    if info.kind == DeviceKind::Cpu {
        return None;
    }
    let memory = gpu::reported_memory(info)?;
    Some(memory.total.saturating_sub(memory.free).saturating_sub(ours))
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
    pub(super) async fn keep_within_budget(&mut self) -> Result<(), TrainError> {
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
        let Some(plan) = plan::smaller(self.steps.plan()) else {
            if crossings == 2 {
                self.journal.warn(format!("{text}, and its steps cannot be split smaller"));
            }
            return Ok(());
        };
        let config = self.ranks.own_config(&self.job.config);
        let forecast = Forecast::of(plan, &config, self.learner.vocabulary(), &self.steps.limits);
        self.replan(text, forecast).await
    }

    /// Changes the budget, and the plan if it no longer fits.
    pub(super) async fn set_budget(&mut self, budget: u64) -> Result<(), TrainError> {
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
                    "the budget stays: the run needs at least {least}, more than {}",
                    bytes(budget)
                ));
                Ok(())
            }
            Err(error) => {
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                self.journal.warn(format!("the budget stays: {error}{hint}"));
                Ok(())
            }
        }
    }

    async fn replan(&mut self, text: String, forecast: Forecast) -> Result<(), TrainError> {
        let from = self.steps.plan().clone();
        if from != forecast.plan {
            // Each rank has its own budget, so the others may not be here to save their states.
            if !self.saves_together() {
                self.save_if_older(MAX_CHECKPOINT_AGE_AT_RISK).await?;
            }
            let to = Some(forecast.plan.clone());
            let reason = ReplanReason::Budget;
            self.journal.emit(Event::Replan { reason, text, from: Some(from), to });
        }
        self.journal.emit(Event::Plan(Box::new(forecast.clone())));
        self.steps.change(forecast);
        self.memory.crossings = 0;
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

    #[test]
    fn only_crossings_in_a_row_count() {
        let queried = Instant::now();
        let mut memory = MemoryMonitor { peak: 0, on_host: 0, others: None, queried, crossings: 0 };
        let counts: Vec<u32> =
            [11, 9, 11, 12, 10, 11].map(|held| memory.count_crossing(held, 10)).into();
        assert_eq!(counts, [1, 0, 1, 2, 0, 1]);
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
