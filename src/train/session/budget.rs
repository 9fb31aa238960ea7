//! Memory while a run is under way: what is taken, and what happens where that is too much.

use std::collections::BTreeMap;
use std::time::Duration;

use web_time::Instant;

use super::{BEFORE_RISK, Session};
use crate::config::{Budget, bytes};
use crate::gpu::{self, DeviceInfo, Kind, OpenDevice};
use crate::plan::{self, Class, Forecast, PlanError};
use crate::protocol::{Event, ReplanReason};
use crate::train::TrainError;

/// How often the system is asked what other programs take: that is no business of every step.
const ASK_THE_SYSTEM: Duration = Duration::from_secs(10);

/// What was seen of the device's memory, in bytes.
pub(super) struct Meter {
    /// The most that the pools held.
    peak: u64,
    others: Option<u64>,
    asked: Instant,
    /// Boundaries of steps, one after the other, at which the pools held more than the budget, under the present plan.
    crossings: u32,
}

/// A look at the device's memory, in bytes; `None` on the processor, or where nobody tells.
pub(super) struct Reading {
    /// What the pools hold.
    pub held: Option<u64>,
    /// The most that they held.
    pub peak: Option<u64>,
    /// What other programs take.
    pub others: Option<u64>,
}

impl Meter {
    pub fn new(device: &OpenDevice) -> Self {
        let held = held(device).unwrap_or(0);
        let others = others(&device.info, held);
        Self { peak: held, others, asked: Instant::now(), crossings: 0 }
    }

    pub fn read(&mut self, device: &OpenDevice) -> Reading {
        let held = held(device);
        self.peak = self.peak.max(held.unwrap_or(0));
        if self.asked.elapsed() >= ASK_THE_SYSTEM {
            self.others = others(&device.info, held.unwrap_or(0));
            self.asked = Instant::now();
        }
        Reading { held, peak: held.map(|_| self.peak), others: self.others }
    }
}

fn held(device: &OpenDevice) -> Option<u64> {
    gpu::memory(&device.device).map(|memory| memory.reserved)
}

/// What the device's memory is taken by besides this run.
fn others(info: &DeviceInfo, ours: u64) -> Option<u64> {
    if info.kind == Kind::Cpu {
        return None;
    }
    let card = gpu::reported_memory(info)?;
    Some(card.total.saturating_sub(card.free).saturating_sub(ours))
}

impl Session<'_> {
    /// Of what the pools hold, what is known by class.
    pub(super) fn memory_by_class(&self) -> BTreeMap<Class, u64> {
        if held(&self.device).is_none() {
            return BTreeMap::new();
        }
        let known = [Class::Weights, Class::Optimizer];
        let of = |class| Some((class, *self.forecast.classes.get(&class)?));
        known.into_iter().filter_map(of).collect()
    }

    /// At the boundary of a step: where the pools hold more than the budget, what was freed goes
    /// back to the driver; where that does not last, steps are cut smaller.
    pub(super) async fn keep_within_budget(&mut self) -> Result<(), TrainError> {
        let held = self.meter.read(&self.device).held;
        let (Some(budget), Some(held)) = (self.limits.budget, held) else { return Ok(()) };
        if held <= budget {
            self.meter.crossings = 0;
            return Ok(());
        }
        gpu::release_unused(&self.device.device);
        self.meter.crossings += 1;
        if self.meter.crossings == 1 {
            return Ok(());
        }
        let text = format!("the run held {}, its budget is {}", bytes(held), bytes(budget));
        let Some(plan) = plan::smaller(&self.forecast.plan) else {
            if self.meter.crossings == 2 {
                self.warn(format!("{text}, and its steps cannot be cut smaller"));
            }
            return Ok(());
        };
        let forecast = Forecast::of(plan, &self.config, self.vocabulary(), &self.limits);
        self.replan(text, forecast).await
    }

    /// Changes the budget; steps are cut anew if they no longer fit.
    pub(super) async fn set_budget(&mut self, budget: u64) -> Result<(), TrainError> {
        let limits = plan::Limits { budget: Some(budget), ..self.limits };
        let (config, vocab) = (&self.config, self.vocabulary());
        let plan = &self.forecast.plan;
        let kept = plan::keep(config, config, plan, vocab, &limits).map(Ok);
        let forecast = kept.unwrap_or_else(|| plan::plan(config, vocab, &limits));
        match forecast {
            Ok(forecast) => {
                self.limits = limits;
                self.config.vram_budget = Budget::Bytes(budget);
                if let Err(error) = self.folder.write_config(&self.config) {
                    self.warn(format!("the budget is not kept for later: {error}"));
                }
                self.replan(format!("the budget is {} now", bytes(budget)), forecast).await
            }
            Err(PlanError::TooBig { least, .. }) => {
                let least = bytes(least.predicted_bytes);
                self.warn(format!(
                    "the budget stays: with {} this run would not fit, it takes {least} at the \
                     least",
                    bytes(budget)
                ));
                Ok(())
            }
            Err(error) => {
                self.warn(format!("the budget stays: {error}"));
                Ok(())
            }
        }
    }

    async fn replan(&mut self, text: String, forecast: Forecast) -> Result<(), TrainError> {
        let from = self.forecast.plan.clone();
        if from != forecast.plan {
            self.rescue(BEFORE_RISK).await?;
            let to = Some(forecast.plan.clone());
            let reason = ReplanReason::Budget;
            self.emit(Event::Replan { reason, text, from: Some(from), to });
        }
        self.emit(Event::Plan(Box::new(forecast.clone())));
        self.forecast = forecast;
        self.meter.crossings = 0;
        // Pages of the former size that are empty now.
        gpu::release_unused(&self.device.device);
        Ok(())
    }

    fn vocabulary(&self) -> u32 {
        self.model().architecture().vocab_size as u32
    }
}
