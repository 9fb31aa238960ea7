//! The speed of a whole run on a device, by which people compare GPUs.

use super::{TrainingStep, best_seconds};
use crate::config::Config;
use crate::gpu::{self, DeviceError, OpenDevice, PowerMeter};
use crate::ops::OpsMode;
use crate::plan::Plan;
use crate::protocol::BenchmarkRow;

/// The tokens that GPT-2 124M is commonly trained on to reach GPT-2's loss.
const TOKENS: f64 = 10e9;

/// Measures updates of `config`, split by `plan`. Computes at most two micro-batches of an update,
/// because the others take as long.
pub(crate) fn benchmark_row(
    device: &OpenDevice,
    config: &Config,
    plan: &Plan,
    mode: OpsMode,
) -> Result<BenchmarkRow, DeviceError> {
    let mut step = TrainingStep::planned(&device.device, config, plan, mode);
    let meter = PowerMeter::start(&device.info);
    let whole = best_seconds(&device.device, || (), |()| step.step())?;
    let gradients = best_seconds(&device.device, || (), |()| drop(step.gradients()))?;
    let watts = meter.finish();
    step.check()?;
    let computed = plan.accumulation.min(2) as f64;
    let update = (whole - gradients).max(0.0) + gradients / computed * plan.accumulation as f64;
    let sequences = (plan.micro_batch * plan.accumulation) as f64;
    let tokens_per_s = sequences * f64::from(config.block_size.get()) / update;
    Ok(BenchmarkRow {
        dtype: mode.precision.dtype(),
        products: mode.products().map(|library| library.name.clone()),
        tokens_per_s,
        hours_to_10b_tokens: TOKENS / tokens_per_s / 3600.0,
        micro_batch: plan.micro_batch,
        accumulation: plan.accumulation,
        grad_checkpoint: plan.grad_checkpoint,
        offload_optimizer: plan.offload_optimizer,
        watts,
        peak_bytes: gpu::memory(&device.device).map(|memory| memory.reserved),
    })
}
