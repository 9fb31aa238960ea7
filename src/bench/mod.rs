//! Benchmarks a device: its peaks, single kernels relative to them, whole training steps, and the
//! short calibration behind estimates of time.
//!
//! burn's stock ops do the same work in the same run. The ratio of the times is meaningful where
//! the times alone are not: on another machine, or on a software renderer.

mod attention;
mod calibrate;
mod cases;
mod kernels;
mod row;
mod step;

pub(crate) use calibrate::calibrate;
use kernels::{Bench, OpSizes};
pub(crate) use row::benchmark_row;
pub use step::TrainingStep;
pub(crate) use step::architecture;

use std::time::Instant;

use burn::tensor::Device;
use serde::Serialize;

use crate::config::{Config, Dtype, Precision};
use crate::gpu::{self, DeviceError, DeviceKind, OpenDevice, Peaks};
use crate::ops::{Implementation, OpsMode};
use crate::plan::DeviceLine;

#[derive(Clone, Debug)]
pub(crate) struct BenchOptions {
    pub kernels: bool,
    /// The model and micro-batch of whole training steps; `None` to measure none.
    pub steps: Option<Config>,
    /// True to measure burn's stock ops too, which take many times the memory.
    pub compare: bool,
    /// True to time each kernel of the steps.
    pub profile: bool,
    pub mode: OpsMode,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct BenchReport {
    pub device: DeviceLine,
    pub precision: String,
    /// `None` on the CPU.
    pub peaks: Option<Peaks>,
    pub kernels: Vec<OpRow>,
    pub steps: Vec<StepRow>,
}

/// The measurement of one op at one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OpRow {
    /// The op, and `backward` for its backward pass.
    pub name: &'static str,
    pub size: String,
    /// The best time of several runs.
    pub ms: f64,
    /// The best time of burn's stock ops.
    pub stock_ms: Option<f64>,
    /// The bytes that the op must move, in 10^9 per second.
    pub gb_per_s: f64,
    /// Multiplications and additions, in 10^9 per second.
    pub gflop_per_s: f64,
    /// The share of the peak of memory or of arithmetic, whichever limits the op; `None` without peaks.
    pub fraction: Option<f64>,
}

/// The measurement of whole training steps: forward and backward pass, gradient norm, AdamW.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepRow {
    pub ops: Implementation,
    pub dtype: Dtype,
    pub parameters: usize,
    pub micro_batch: usize,
    pub block_size: usize,
    /// The time of the first step, which compiles the kernels.
    pub first_ms: f64,
    /// The best time of several steps.
    pub ms: f64,
    pub tokens_per_s: f64,
    /// Operations in 10^9 per second. A token counts `6 P + 6 L C T`: half of a full attention, as
    /// it is causal.
    pub gflop_per_s: f64,
    /// The share of the device's peak of arithmetic; `None` without peaks.
    pub fraction: Option<f64>,
    /// Per step.
    pub launches: usize,
    /// The time that the host takes to queue a step and to submit it to the driver, which does not wait for
    /// the device: the best of several steps. `None` on the CPU.
    pub host_us: Option<f64>,
    /// The same per launch.
    pub host_us_per_launch: Option<f64>,
    /// The peak of the device's memory pools in bytes; `None` on the CPU.
    pub peak_bytes: Option<u64>,
    /// The step's kernels, by the time that they take; empty on the CPU and unless they were timed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<LaunchRow>,
}

/// The launches of one kernel in a training step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LaunchRow {
    /// For wgpt's own kernels with the grid of workgroups.
    pub name: String,
    pub launches: usize,
    /// On the device, of all launches.
    pub ms: f64,
}

/// Measures everything in `options`, and passes each measurement to `show` at once.
pub(crate) fn run(
    device: &OpenDevice,
    options: &BenchOptions,
    show: &mut dyn FnMut(Measurement),
) -> Result<BenchReport, DeviceError> {
    let slow = match device.info.kind {
        DeviceKind::Software | DeviceKind::Cpu => true,
        // A weak integrated GPU would take seconds per kernel at the larger sizes, and drivers
        // reset a device for that.
        DeviceKind::Integrated => gpu::peaks(&device.device, true)?
            .is_none_or(|peaks| peaks.multiply_add_gflop_per_s < 2000.0),
        _ => false,
    };
    let mode = options.mode;
    let peaks = gpu::peaks(&device.device, slow)?;
    show(Measurement::Peaks(peaks));
    // The peaks of cooperative matrices are not measured.
    let comparable = peaks.filter(|_| mode.precision.matrices().is_none());
    gpu::release_unused(&device.device);
    let mut report = BenchReport {
        device: device.info.line(),
        precision: mode.arithmetic(),
        peaks,
        kernels: Vec::new(),
        steps: Vec::new(),
    };
    if options.kernels {
        let compare = options.compare && mode.precision == Precision::FLOAT32;
        let bench = Bench { device: &device.device, mode, compare, peaks: comparable };
        let sizes = if slow { &OpSizes::SMALL } else { &OpSizes::GPT2 };
        for case in cases::CASES {
            let row = case(&bench, sizes)?;
            show(Measurement::Kernel(&row));
            report.kernels.push(row);
            gpu::release_unused(&device.device);
        }
    }
    if let Some(config) = &options.steps {
        let compare = options.compare && mode.implementation != Implementation::Reference;
        for mode in [mode].into_iter().chain(compare.then_some(OpsMode::REFERENCE)) {
            let profile = options.profile && mode.implementation != Implementation::Reference;
            let row = step::measure(&device.device, config, mode, comparable, profile)?;
            show(Measurement::Step(&row));
            report.steps.push(row);
            gpu::release_unused(&device.device);
        }
    }
    Ok(report)
}

/// A measurement, in the order in which a report makes them.
pub(crate) enum Measurement<'a> {
    Peaks(Option<Peaks>),
    Kernel(&'a OpRow),
    Step(&'a StepRow),
}

/// Returns the share of the limiting peak: the time that `bytes` or `operations` take at the
/// device's peaks, whichever is longer, over the measured `seconds`.
fn fraction(peaks: Option<Peaks>, bytes: f64, operations: f64, seconds: f64) -> Option<f64> {
    let peaks = peaks?;
    let memory = bytes * 1e-9 / peaks.copy_gb_per_s;
    let compute = operations * 1e-9 / peaks.multiply_add_gflop_per_s;
    Some(memory.max(compute) / seconds)
}

/// The most timed runs of one measurement.
const MAX_RUNS: usize = 20;

/// The timed seconds after which a measurement of at least two runs ends.
const MAX_SECONDS: f64 = 1.5;

/// Returns the seconds of the fastest of several runs of `work` on the result of `prepare`, after
/// one run that compiles the kernels. Times `work` only.
fn best_seconds<T>(
    device: &Device,
    mut prepare: impl FnMut() -> T,
    mut work: impl FnMut(T),
) -> Result<f64, DeviceError> {
    let mut run = || {
        let input = prepare();
        gpu::wait(device)?;
        let start = Instant::now();
        work(input);
        gpu::wait(device)?;
        Ok(start.elapsed().as_secs_f64())
    };
    run()?;
    let mut best = f64::INFINITY;
    let mut spent = 0.0;
    for count in 0..MAX_RUNS {
        if count >= 2 && spent > MAX_SECONDS {
            break;
        }
        let seconds: f64 = run()?;
        best = best.min(seconds);
        spent += seconds;
    }
    Ok(best)
}
