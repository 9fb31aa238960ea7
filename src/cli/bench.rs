//! `wgpt bench`: the speed of a device.

use super::CliError;
use super::args::{BenchArgs, BenchPart, Global};
use super::bench_card;
use super::model::{confirmed, open_for_steps};
use super::torch::TorchStep;
use super::watch::{FailureOutput, Watched, watch};
use crate::bench::{self, KernelRow, Line, Options, StepRow};
use crate::config::Layer;
use crate::gpu::{self, DeviceInfo, Peaks};
use crate::text;

/// The default model of the steps: a preset, and settings that change it.
type Default = (&'static str, &'static [(&'static str, &'static str)]);

const HARDWARE: Default = ("gpt2", &[("batch_size", "4")]);

/// nanoGPT's configuration for a CPU.
const SOFTWARE: Default = (
    "shakespeare-char",
    &[
        ("vocab_size", "65"),
        ("block_size", "64"),
        ("batch_size", "12"),
        ("n_layer", "4"),
        ("n_head", "4"),
        ("n_embd", "128"),
        ("dropout", "0"),
    ],
);

/// Runs `wgpt bench`: prints rows as they come, or one JSON object at the end.
pub(super) fn run(mut args: BenchArgs, global: &Global) -> Result<(), CliError> {
    if args.card_row {
        return bench_card::measure(args, global);
    }
    if let Some(path) = args.card.take() {
        return bench_card::run(args, &path, global);
    }
    let selected = gpu::select(global.device()?)?;
    let slow = !selected.info.kind.is_gpu();
    let (preset, changes) = if slow { SOFTWARE } else { HARDWARE };
    let changes = changes.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let layers = vec![Layer::preset(preset)?, Layer::flags(changes)?];
    let config = args.source.resolve_on(layers, None)?.config;
    let mut torch = args.torch.as_deref().map(TorchStep::read).transpose()?.unwrap_or_default();
    let vocab = if config.vocab_size == 0 { bench::GPT2_VOCABULARY } else { config.vocab_size };
    torch.retain(|step| step.measured(&config, vocab));
    let mode = global.ops()?;
    let selected = confirmed(selected, config.dtype, mode);
    let (device, mode) = open_for_steps(selected, config.dtype, mode)?;
    watch(&device, FailureOutput::new(args.json, false), Watched::Command);
    let options = Options {
        kernels: args.only != Some(BenchPart::Steps),
        steps: (args.only != Some(BenchPart::Kernels)).then_some(config),
        compare: !args.no_compare,
        mode,
    };
    if !args.json {
        let DeviceInfo { name, id, kind, .. } = &device.info;
        output!("{name} ({id}), {kind}\n{}", mode.precision);
    }
    let mut steps = false;
    let mut show = |line: Line| match line {
        _ if args.json => {}
        Line::Peaks(peaks) => show_peaks(peaks, options.kernels),
        Line::Kernel(row) => show_kernel(row),
        Line::Step(row) => {
            if !std::mem::replace(&mut steps, true) {
                output!(
                    "\n{:<10} {:>11} {:>5} {:>6} {:>10} {:>10} {:>10} {:>9} {:>5} {:>8} {:>7} {:>10}",
                    "ops",
                    "parameters",
                    "batch",
                    "tokens",
                    "first ms",
                    "ms",
                    "tokens/s",
                    "GFLOP/s",
                    "peak",
                    "launches",
                    "us each",
                    "memory"
                );
            }
            show_step(row);
            torch.iter().for_each(|step| show_torch(step, row));
        }
    };
    let report = bench::run(&device, &options, &mut show)?;
    if args.json {
        let text = serde_json::to_string(&report).expect("a report is plain data");
        output!("{text}");
    }
    Ok(())
}

fn show_peaks(peaks: Option<Peaks>, kernels: bool) {
    match peaks {
        Some(peaks) => output!(
            "copy {:.1} GB/s, multiply-add {:.1} GFLOP/s",
            peaks.copy_gb_per_s,
            peaks.multiply_add_gflop_per_s
        ),
        None => output!("the peaks of this device are not measured"),
    }
    if kernels {
        output!(
            "\n{:<39} {:<32} {:>9} {:>8} {:>9} {:>5} {:>9} {:>6}",
            "kernel",
            "size",
            "ms",
            "GB/s",
            "GFLOP/s",
            "peak",
            "stock ms",
            "ratio"
        );
    }
}

fn show_kernel(row: &KernelRow) {
    let (stock, ratio) = match row.stock_ms {
        Some(stock) => (format!("{stock:.2}"), format!("{:.1}", stock / row.ms)),
        None => ("-".into(), "-".into()),
    };
    output!(
        "{:<39} {:<32} {:>9.2} {:>8.2} {:>9.2} {:>5} {stock:>9} {ratio:>6}",
        row.name,
        row.size,
        row.ms,
        row.gb_per_s,
        row.gflop_per_s,
        percent(row.fraction)
    );
}

fn show_step(row: &StepRow) {
    let memory = row.peak_bytes.map_or_else(|| "-".into(), text::bytes);
    let host = row.host_us_per_launch.map_or_else(|| "-".into(), |us| format!("{us:.1}"));
    output!(
        "{:<10} {:>11} {:>5} {:>6} {:>10.1} {:>10.1} {:>10.0} {:>9.1} {:>5} {:>8} {host:>7} {memory:>10}",
        row.ops,
        row.parameters,
        row.micro_batch,
        row.micro_batch * row.block_size,
        row.first_ms,
        row.ms,
        row.tokens_per_s,
        row.gflop_per_s,
        percent(row.fraction),
        row.launches
    );
}

/// Prints PyTorch's time of the same step, and how many times that `row` takes.
fn show_torch(step: &TorchStep, row: &StepRow) {
    let mode = if step.compile { "compiled" } else { "eager" };
    let name = format!("PyTorch {} {mode}, {} threads", step.torch, step.threads);
    match step.ms {
        Some(ms) => output!("  {name}: {ms:.1} ms, ratio {:.2}", row.ms / ms),
        None => output!("  {name}: not measured"),
    }
}

fn percent(fraction: Option<f64>) -> String {
    fraction.map_or_else(|| "-".into(), |fraction| text::percent(fraction, 0))
}
