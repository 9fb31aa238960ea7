//! `wgpt bench`: the speed of a device.

use super::args::{BenchArgs, BenchPart, Global};
use super::find_model::{proven, select_device};
use super::print_failure;
use super::torch::TorchStep;
use super::{bench_result, benchmark_row};
use crate::bench::{self, BenchOptions, Measurement, OpRow, StepRow};
use crate::config::{Config, Layer};
use crate::data::Dataset;
use crate::gpu::{DeviceInfo, Peaks};
use crate::protocol::Failure;
use crate::runs;
use crate::text::{self, known};
use crate::worker::{Watched, watch};

/// nanoGPT's configuration for a CPU: a preset, and settings that change it.
const SOFTWARE: (&str, &str) = (
    "shakespeare-char",
    "vocab_size = 65\nblock_size = 64\nbatch_size = 12\nn_layer = 4\nn_head = 4\nn_embd = 128\n\
     dropout = 0.0",
);

/// Prints rows as they come, or one JSON object at the end.
pub(super) fn run(mut args: BenchArgs, global: &Global) -> Result<(), Failure> {
    if let Some(path) = &args.verify {
        return bench_result::verify(path, global);
    }
    if let Some(path) = args.card.take() {
        return match args.result {
            Some(time) => bench_result::run(args, time.into(), &path, global),
            None => benchmark_row::run(args, &path, global),
        };
    }
    let selected = select_device(global)?;
    let slow = !selected.info.kind.is_gpu();
    let (preset, changes) = if slow { SOFTWARE } else { ("gpt2", "batch_size = 4") };
    let layers = vec![Layer::preset(preset)?, Layer::toml(preset, changes)?];
    let config = with_vocabulary(args.source.resolve(layers, None)?.config);
    let mut torch = args.torch.as_deref().map(TorchStep::read).transpose()?.unwrap_or_default();
    torch.retain(|step| step.measured(&config, bench::architecture(&config).vocab_size as u32));
    let (mut selected, mode) = proven(selected, &config, global)?;
    let planned = mode.for_run(config.dtype, &selected.info)?;
    selected.driver = runs::driver_traits(&selected.info, planned, &config);
    let (device, mode) = mode.open(config.dtype, selected)?;
    let json = args.json;
    watch(&device, Watched::Command, move |failure| print_failure(failure, json));
    let options = BenchOptions {
        kernels: args.only != Some(BenchPart::Steps),
        steps: (args.only != Some(BenchPart::Kernels)).then_some(config),
        compare: !args.no_compare,
        profile: args.profile,
        mode,
    };
    if !args.json {
        let DeviceInfo { name, id, kind, .. } = &device.info;
        output!("{name} ({id}), {kind}\n{}", mode.arithmetic());
    }
    let mut has_steps = false;
    let mut show = |made: Measurement| match made {
        _ if args.json => {}
        Measurement::Peaks(peaks) => {
            match peaks {
                Some(Peaks { copy_gb_per_s: copy, multiply_add_gflop_per_s: multiply_add }) => {
                    output!("copy {copy:.1} GB/s, multiply-add {multiply_add:.1} GFLOP/s");
                }
                None => output!("the peaks of this device are not measured"),
            }
            if options.kernels {
                output!("\n{}", line(&KERNELS, |(heading, ..)| heading.to_string()));
            }
        }
        Measurement::Kernel(row) => output!("{}", line(&KERNELS, |(.., cell)| cell(row))),
        Measurement::Step(row) => {
            if !std::mem::replace(&mut has_steps, true) {
                output!("\n{}", line(&STEPS, |(heading, ..)| heading.to_string()));
            }
            output!("{}", line(&STEPS, |(.., cell)| cell(row)));
            torch.iter().for_each(|step| show_torch(step, row));
            show_launches(row);
        }
    };
    let report = bench::run(&device, &options, &mut show)?;
    if args.json {
        output!("{}", serde_json::to_string(&report).expect("a report is plain data"));
    }
    Ok(())
}

/// Returns a configuration with the vocabulary of its data. Without them a model is measured with GPT-2's.
pub(super) fn with_vocabulary(config: Config) -> Config {
    let data = || Dataset::open(&config.data, 1).map_or(0, |data| data.vocab_size);
    let is_set = config.vocab_size > 0 || config.data.is_empty();
    let vocab_size = if is_set { config.vocab_size } else { data() };
    Config { vocab_size, ..config }
}

/// A column of a table that is printed row by row during the measurement: its heading, its width, which is
/// negative if it is aligned to the left, and its cells.
type Column<R> = (&'static str, isize, fn(&R) -> String);

const KERNELS: [Column<OpRow>; 8] = [
    ("kernel", -39, |row| row.name.to_string()),
    ("size", -32, |row| row.size.clone()),
    ("ms", 9, |row| format!("{:.2}", row.ms)),
    ("GB/s", 8, |row| format!("{:.2}", row.gb_per_s)),
    ("GFLOP/s", 9, |row| format!("{:.2}", row.gflop_per_s)),
    ("peak", 5, |row| known(row.fraction, |share| text::percent(share, 0))),
    ("stock ms", 9, |row| known(row.stock_ms, |ms| format!("{ms:.2}"))),
    ("ratio", 6, |row| known(row.stock_ms, |ms| format!("{:.1}", ms / row.ms))),
];

const STEPS: [Column<StepRow>; 13] = [
    ("ops", -10, |row| row.ops.to_string()),
    ("parameters", 11, |row| row.parameters.to_string()),
    ("batch", 5, |row| row.micro_batch.to_string()),
    ("tokens", 6, |row| (row.micro_batch * row.block_size).to_string()),
    ("first ms", 10, |row| format!("{:.1}", row.first_ms)),
    ("ms", 10, |row| format!("{:.1}", row.ms)),
    ("tokens/s", 10, |row| format!("{:.0}", row.tokens_per_s)),
    ("GFLOP/s", 9, |row| format!("{:.1}", row.gflop_per_s)),
    ("peak", 5, |row| known(row.fraction, |share| text::percent(share, 0))),
    ("launches", 8, |row| row.launches.to_string()),
    ("host us", 8, |row| known(row.host_us, |us| format!("{us:.0}"))),
    ("us each", 7, |row| known(row.host_us_per_launch, |us| format!("{us:.1}"))),
    ("memory", 10, |row| known(row.peak_bytes, text::bytes)),
];

fn line<R>(columns: &[Column<R>], cell: impl Fn(&Column<R>) -> String) -> String {
    let cells = columns.iter().map(|column| {
        let text = cell(column);
        let width = column.1.unsigned_abs();
        if column.1 < 0 { format!("{text:<width$}") } else { format!("{text:>width$}") }
    });
    cells.collect::<Vec<_>>().join(" ")
}

/// Prints the kernels of a step, and their total time, without the pauses between them.
fn show_launches(row: &StepRow) {
    if row.kernels.is_empty() {
        return;
    }
    let all = row.kernels.iter().map(|kernel| kernel.ms).sum::<f64>();
    let show = |name: &str, launches: usize, ms: f64| {
        let share = text::percent(ms / all, 1);
        output!("  {name:<70} {launches:>8} {ms:>10.3} {share:>6}");
    };
    output!("\n  {:<70} {:>8} {:>10} {:>6}", "kernel and workgroups", "launches", "ms", "share");
    row.kernels.iter().for_each(|kernel| show(&kernel.name, kernel.launches, kernel.ms));
    show("all", row.kernels.iter().map(|kernel| kernel.launches).sum(), all);
}

/// Prints PyTorch's time of the same step, and the ratio of `row` to it.
fn show_torch(step: &TorchStep, row: &StepRow) {
    let mode = if step.compile { "compiled" } else { "eager" };
    let name = format!("PyTorch {} {mode}, {} threads", step.torch, step.threads);
    match step.ms {
        Some(ms) => output!("  {name}: {ms:.1} ms, ratio {:.2}", row.ms / ms),
        None => output!("  {name}: not measured"),
    }
}
