//! What a device reaches: its peaks, each kernel as a share of them, whole training steps.
//!
//! Everything stands beside the same work by burn's stock ops, in the same run, so that a ratio
//! means something where a time does not: on another machine, or on software.

mod kernels;
mod step;

pub use step::TrainingStep;

use std::time::Instant;

use burn::tensor::Device;
use serde::Serialize;

use crate::config::{Config, Dtype};
use crate::gpu::{self, DeviceError, Kind, OpenDevice, Peaks};
use crate::ops::OpsMode;
use crate::protocol::DeviceLine;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kernels one by one.
    pub kernels: bool,
    /// The model and micro-batch of whole steps, if those are to be measured.
    pub steps: Option<Config>,
    /// Whether burn's stock ops are measured too. They take many times the memory.
    pub compare: bool,
    /// Which implementation of the ops; the numbers are those of `steps`.
    pub mode: OpsMode,
}

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub device: DeviceLine,
    /// The most that the device does; `None` on the processor.
    pub peaks: Option<Peaks>,
    /// The kernels.
    pub kernels: Vec<KernelRow>,
    /// Whole steps.
    pub steps: Vec<StepRow>,
}

/// One op at one size.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    /// The op, and whether its forward or its backward pass.
    pub name: &'static str,
    /// Its sizes.
    pub size: String,
    /// Milliseconds, the best of several.
    pub ms: f64,
    /// Milliseconds of burn's stock ops for the same.
    pub stock_ms: Option<f64>,
    /// Bytes that it has to move at least, in 10^9 a second.
    pub gb_per_s: f64,
    /// Its multiplications and additions, in 10^9 a second.
    pub gflop_per_s: f64,
    /// The share of the device's peak, of whichever of the two binds; `None` without peaks.
    pub fraction: Option<f64>,
}

/// Whole training steps: forward, backward, gradient norm, AdamW.
#[derive(Clone, Debug, Serialize)]
pub struct StepRow {
    /// Which implementation of the ops.
    pub ops: &'static str,
    /// What activations are kept in and products multiply.
    pub dtype: Dtype,
    /// Weights.
    pub parameters: usize,
    /// Sequences.
    pub micro_batch: usize,
    /// Positions.
    pub block_size: usize,
    /// Milliseconds of the first step, which compiles the kernels.
    pub first_ms: f64,
    /// Milliseconds of a step, the best of several.
    pub ms: f64,
    /// Tokens in a second.
    pub tokens_per_s: f64,
    /// Operations in 10^9 a second, as `6 P + 6 L C T` a token: causal attention counted once.
    pub gflop_per_s: f64,
    /// The share of the device's peak; `None` without peaks.
    pub fraction: Option<f64>,
    /// Kernels launched in a step.
    pub launches: usize,
    /// Most bytes that the device's pools held; `None` on the processor.
    pub peak_bytes: Option<u64>,
}

/// Measures, and gives each row to `show` as soon as it is there.
///
/// # Errors
/// When the device stops.
pub fn run(
    device: &OpenDevice,
    options: &Options,
    show: &mut dyn FnMut(Line),
) -> Result<Report, DeviceError> {
    let slow = match device.info.kind {
        Kind::Software | Kind::Cpu => true,
        // The sizes of cards would take it seconds a kernel, and drivers reset it for that.
        Kind::Integrated => gpu::peaks(&device.device, true)?
            .is_none_or(|peaks| peaks.multiply_add_gflop_per_s < 2000.0),
        _ => false,
    };
    let mode = options.mode.on(device.info.kind);
    let peaks = gpu::peaks(&device.device, slow)?;
    show(Line::Peaks(peaks));
    gpu::release_unused(&device.device);
    let mut report =
        Report { device: device.info.line(), peaks, kernels: Vec::new(), steps: Vec::new() };
    if options.kernels {
        let bench =
            kernels::Bench { device: &device.device, mode, compare: options.compare, peaks };
        for case in kernels::CASES {
            let row = bench.measure(case, slow)?;
            show(Line::Kernel(&row));
            report.kernels.push(row);
            gpu::release_unused(&device.device);
        }
    }
    if let Some(config) = &options.steps {
        device.check_dtype(config.dtype)?;
        let others = options.compare && options.mode != OpsMode::REFERENCE;
        for mode in [Some(mode), others.then_some(OpsMode::REFERENCE)] {
            let Some(mode) = mode else { continue };
            let row = step::measure(&device.device, config, mode, peaks)?;
            show(Line::Step(&row));
            report.steps.push(row);
            gpu::release_unused(&device.device);
        }
    }
    Ok(report)
}

/// Something that was measured.
pub enum Line<'a> {
    /// The device's peaks.
    Peaks(Option<Peaks>),
    /// A kernel.
    Kernel(&'a KernelRow),
    /// A step.
    Step(&'a StepRow),
}

/// The share of what binds: the time that bytes and operations take at the peaks, over the time
/// that it took.
fn fraction(peaks: Option<Peaks>, bytes: f64, operations: f64, seconds: f64) -> Option<f64> {
    let peaks = peaks?;
    let memory = bytes * 1e-9 / peaks.copy_gb_per_s;
    let compute = operations * 1e-9 / peaks.multiply_add_gflop_per_s;
    Some(memory.max(compute) / seconds)
}

/// Runs of a timing, and seconds after which no other is begun.
const RUNS: usize = 20;
const ENOUGH_SECONDS: f64 = 1.5;

/// The seconds of the best of several runs of `work` on what `prepare` gives, after one run that
/// compiles. Only `work` is timed.
fn best<T>(
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
    let (mut best, mut spent) = (f64::INFINITY, 0.0);
    for count in 0..RUNS {
        if count >= 2 && spent > ENOUGH_SECONDS {
            break;
        }
        let seconds: f64 = run()?;
        best = best.min(seconds);
        spent += seconds;
    }
    Ok(best)
}
