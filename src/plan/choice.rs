//! Chooses the fastest plan that fits.

use super::{DeviceSpeed, Forecast, Kernels, Limits, Plan, PlanError, Work};
use crate::config::{Choice, Config};
use crate::text::bytes;

/// The smallest automatic logits chunk in rows. Smaller ones save too little memory for their launches.
const MIN_CHUNK: usize = 32;

/// Plans with times within this factor count as equally fast: estimates are no better, and the
/// request should change as little as possible.
const TIE: f64 = 1.05;

/// Returns the fastest plan for a step of `config` that fits the limits.
///
/// The requested split is taken if it fits. Otherwise the candidates are all smaller micro-batches with
/// more accumulation, then smaller logits chunks, each without and with activation checkpointing and
/// with the optimizer on the device and in host memory, as far as the configuration leaves that
/// open. The candidate with the shortest estimated update wins; of equally fast ones, the first in this
/// order. A larger logits chunk takes the rest of the budget. An unknown `speed` is assumed.
///
/// The global batch, the order of the data and the result of evaluations stay the same.
pub fn plan(
    config: &Config,
    vocab: u32,
    limits: &Limits,
    speed: Option<&DeviceSpeed>,
) -> Result<Forecast, PlanError> {
    let assumed = DeviceSpeed::assumed(limits.kernels);
    let search = PlanSearch { config, vocab, limits, speed: speed.unwrap_or(&assumed) };
    let Some(chosen) = search.fastest() else { return Err(search.refusal()) };
    let mut forecast = search.with_larger_chunk(chosen);
    forecast.why = search.explain(&forecast);
    Ok(forecast)
}

/// Returns the plan of a running trainer under new limits: `plan` if it fits, otherwise the fastest plan
/// that leaves the optimizer where it is.
pub(crate) fn replan(
    config: &Config,
    plan: &Plan,
    vocab: u32,
    limits: &Limits,
    speed: Option<&DeviceSpeed>,
) -> Result<Forecast, PlanError> {
    if let Some(kept) = keep(config, config, plan, vocab, limits) {
        return Ok(kept);
    }
    let offload_optimizer = if plan.offload_optimizer { Choice::True } else { Choice::False };
    self::plan(&Config { offload_optimizer, ..config.clone() }, vocab, limits, speed)
}

/// Returns the forecast of an earlier `plan`, if the configuration still requests the same split
/// and the plan fits. A resumed run is bit-identical only if its steps are split as before.
pub(crate) fn keep(
    config: &Config,
    before: &Config,
    plan: &Plan,
    vocab: u32,
    limits: &Limits,
) -> Option<Forecast> {
    let offload_optimizer = plan.offload_optimizer && limits.can_offload();
    // A checkpoint of several ranks has the plan of one share.
    let is_whole = (plan.micro_batch * plan.accumulation) as u64 == config.global_batch();
    let plan = Plan { offload_optimizer, ..plan.clone() };
    let forecast = Forecast::of(plan, config, vocab, limits);
    let same_request = is_whole
        && Plan::new(config, vocab) == Plan::new(before, vocab)
        && config.grad_checkpoint == before.grad_checkpoint
        && config.offload_optimizer == before.offload_optimizer;
    (same_request && forecast.fits(limits)).then_some(forecast)
}

/// Returns the next smaller plan for the same step: with half the micro-batch, then half the logits
/// chunk, then activation checkpointing. A running trainer can change to it: the optimizer stays.
pub(crate) fn smaller(plan: &Plan) -> Option<Plan> {
    let global = plan.micro_batch * plan.accumulation;
    if plan.micro_batch > 1 {
        let half = plan.micro_batch / 2;
        let micro_batch = (1..=half).rev().find(|&micro| global.is_multiple_of(micro))?;
        let accumulation = global / micro_batch;
        return Some(Plan { micro_batch, accumulation, ..plan.clone() });
    }
    if plan.loss_chunk >= 2 * MIN_CHUNK {
        return Some(Plan { loss_chunk: plan.loss_chunk / 2, ..plan.clone() });
    }
    (!plan.grad_checkpoint).then(|| Plan { grad_checkpoint: true, ..plan.clone() })
}

/// Returns the next smaller plan for a trainer that is restarted: as [`smaller()`] does, and finally with
/// the optimizer in host memory, if `can_offload`.
pub(crate) fn smaller_or_offloaded(plan: &Plan, can_offload: bool) -> Option<Plan> {
    let offloaded = || Plan { offload_optimizer: true, ..plan.clone() };
    smaller(plan).or_else(|| (can_offload && !plan.offload_optimizer).then(offloaded))
}

#[derive(Clone, Copy)]
pub(super) struct PlanSearch<'a> {
    pub config: &'a Config,
    pub vocab: u32,
    pub limits: &'a Limits,
    /// The known or assumed speed of the device.
    pub speed: &'a DeviceSpeed,
}

impl PlanSearch<'_> {
    /// Returns the fastest plan that fits, without a larger logits chunk and an explanation.
    pub(super) fn fastest(&self) -> Option<Forecast> {
        let candidates = self.candidates();
        let fitting = |plan: &Plan| {
            let forecast = self.forecast(plan.clone());
            forecast.fits(self.limits).then_some(forecast)
        };
        // No split is faster than the requested one, which has the fewest launches and tiles.
        if let Some(requested) = fitting(&candidates[0]) {
            return Some(requested);
        }
        let timed = candidates.iter().map(|plan| (self.seconds(plan), fitting(plan)));
        let fit: Vec<(f64, Forecast)> =
            timed.filter_map(|(seconds, forecast)| Some((seconds, forecast?))).collect();
        let best = fit.iter().map(|(seconds, _)| *seconds).min_by(f64::total_cmp)?;
        fit.into_iter().find(|(seconds, _)| *seconds <= TIE * best).map(|(_, forecast)| forecast)
    }

    fn forecast(&self, plan: Plan) -> Forecast {
        Forecast::of(plan, self.config, self.vocab, self.limits)
    }

    fn seconds(&self, plan: &Plan) -> f64 {
        self.speed.seconds(Work::update(self.config, self.vocab, plan))
    }

    /// Lists the plans for a step, the requested one first; never empty.
    fn candidates(&self) -> Vec<Plan> {
        let Self { config, vocab, limits, .. } = *self;
        let global = config.global_batch();
        let requested = u64::from(config.micro_batch().get());
        let micro_batches: Vec<u64> =
            (1..=requested).rev().filter(|&micro| global.is_multiple_of(micro)).collect();
        let offloads = match config.offload_optimizer {
            _ if !limits.can_offload() => Choice::False,
            Choice::Auto if limits.host_budget == Some(0) => Choice::False,
            choice => choice,
        };
        let mut plans = Vec::new();
        for &offload_optimizer in options(offloads) {
            for &grad_checkpoint in options(config.grad_checkpoint) {
                let split = |micro| Plan {
                    grad_checkpoint,
                    offload_optimizer,
                    ..Plan::split(config, vocab, micro)
                };
                plans.extend(micro_batches.iter().map(|&micro| split(micro)));
                // Smaller logits chunks only if the smallest micro-batch is not enough.
                if config.loss_chunk == 0 {
                    let smallest = split(1);
                    let parts = [2, 4, 8].map(|parts| smallest.loss_chunk / parts);
                    let chunks = parts.into_iter().filter(|&chunk| chunk >= MIN_CHUNK);
                    plans.extend(chunks.map(|loss_chunk| Plan { loss_chunk, ..smallest.clone() }));
                }
            }
        }
        plans
    }

    /// Doubles the logits chunk of a plan as long as it fits the budget, up to the whole micro-batch. It
    /// stays without a budget, if the configuration sets it, and on the CPU, where a larger one would
    /// exceed the caches.
    fn with_larger_chunk(&self, mut forecast: Forecast) -> Forecast {
        let Self { config, vocab, limits, .. } = *self;
        if config.loss_chunk > 0 || limits.budget.is_none() || limits.kernels == Kernels::Cpu {
            return forecast;
        }
        while let Some(plan) = forecast.plan.with_larger_chunk(config, vocab, limits.precision) {
            let larger = self.forecast(plan);
            if !larger.fits(limits) {
                break;
            }
            forecast = larger;
        }
        forecast
    }

    /// Explains how and why a plan differs from the requested one, and the cost; empty if it does not.
    fn explain(&self, chosen: &Forecast) -> String {
        let requested = self.forecast(self.candidates().swap_remove(0));
        let from = &requested.plan;
        let to = &chosen.plan;
        let mut changes = Vec::new();
        if to.micro_batch != from.micro_batch {
            changes.push(format!("micro-batch {} instead of {}", to.micro_batch, from.micro_batch));
        }
        if to.loss_chunk < from.loss_chunk && to.micro_batch == 1 {
            changes.push(format!("logits chunk of {} rows", to.loss_chunk));
        }
        if to.grad_checkpoint && !from.grad_checkpoint {
            changes.push("activation checkpointing".to_string());
        }
        if to.offload_optimizer && !from.offload_optimizer {
            changes.push("optimizer in host memory".to_string());
        }
        if changes.is_empty() {
            return String::new();
        }
        changes.push(longer(self.seconds(to) / self.seconds(from)));
        let need = requested.predicted_bytes;
        let reason = match self.limits.budget {
            Some(budget) if need > budget => {
                let [need, budget] = [need, budget].map(bytes);
                format!("the requested settings need {need}, but the budget is {budget}")
            }
            _ if !requested.fits_host() => {
                let [need, free] = [requested.host_bytes, requested.host_budget()].map(bytes);
                format!("the requested settings need {need} of host memory, but {free} is free")
            }
            _ => "with the requested settings a tensor is larger than the device allows".into(),
        };
        format!("{}: {reason}", changes.join(", "))
    }

    /// Returns the error of a run that no plan makes fit.
    fn refusal(&self) -> PlanError {
        let forecasts: Vec<Forecast> =
            self.candidates().into_iter().map(|plan| self.forecast(plan)).collect();
        // A plan that fits the device lacks host memory.
        let lacks = |forecast: &&Forecast| {
            if forecast.fits_device(self.limits) {
                (false, forecast.host_bytes.saturating_sub(forecast.host_budget()))
            } else {
                (true, forecast.predicted_bytes)
            }
        };
        let least = forecasts.iter().min_by_key(lacks).expect("the requested plan is a candidate");
        let need = least.largest_tensor;
        if let Some(have) = self.limits.largest_tensor.filter(|&have| need > have) {
            return PlanError::TensorTooLarge { need, have };
        }
        // The smallest budget of the device with which the host has enough.
        let on_host = forecasts.iter().filter(|forecast| forecast.fits_host());
        let budget = on_host.map(|forecast| forecast.predicted_bytes).min();
        let least = Box::new(least.clone());
        let fixes = self.fixes(budget);
        PlanError::TooBig { least, fixes, holders: Vec::new() }
    }
}

fn options(choice: Choice) -> &'static [bool] {
    match choice {
        Choice::Auto => &[false, true],
        Choice::True => &[true],
        Choice::False => &[false],
    }
}

/// Describes the cost of a change that multiplies the time of an update by `ratio`.
fn longer(ratio: f64) -> String {
    let percent = (100.0 * (ratio - 1.0)).round();
    match percent {
        ..1.0 => "updates take about as long".into(),
        1.0..100.0 => format!("updates take about {percent}% longer"),
        _ => format!("updates take about {ratio:.1} times as long"),
    }
}

#[cfg(test)]
mod tests;
