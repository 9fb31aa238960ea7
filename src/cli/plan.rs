//! `wgpt plan`: the memory, disk and time of a run, and if it fits its device.

use std::time::Duration;

use chrono::Local;
use serde_json::{Value, json};

use super::args::{Global, PlanArgs};
use super::find_model::{proven, select_device, warn};
use super::recipe::{self, ChosenData, RecipeDevice};
use super::target::{self, TargetGpu};
use super::terminal::at_spaces;
use crate::bench::{self, TrainingStep};
use crate::config::{
    Abilities, BaseDtype, Budget, Config, Dtype, GPT2_VOCABULARY, Hours, InitFrom, Matrices,
    OptimizerKind,
};
use crate::data::Dataset;
use crate::gpu::{self, DeviceChoice, OtherPrograms, SelectedDevice};
use crate::ops::OpsMode;
use crate::plan::{
    self, Class, DataSize, DeviceMemory, DeviceProfile, DeviceSpeed, Fix, Forecast, Kernels,
    Limits, Lora, PlanError, PublishedGpu, RanksEstimate, Recipe, Row, Shares, Totals,
};
use crate::protocol::Failure;
use crate::ranks::RanksError;
use crate::runs;
use crate::text::bytes;

pub(super) fn run(mut args: PlanArgs, global: &Global) -> Result<(), Failure> {
    if args.targets {
        target::list();
        return Ok(());
    }
    let is_named = args.source.is_named();
    let length = args.source.length.take();
    let mut resolved = args.source.clone().resolve(Vec::new(), None)?;
    warn(&resolved.warnings);
    let mut recipe = None;
    // A budget or a size alone is planned without a device, whose speed a table needs.
    let has_speed = match args.target {
        Some(target) => target.gpu.is_some(),
        None => {
            let is_budget = matches!(resolved.config.vram_budget, Budget::Bytes(_));
            global.device()? != DeviceChoice::Auto || !is_budget
        }
    };
    // These are about one run.
    let is_one_run = args.measure || args.calibrate || args.suggest || args.ranks.is_some();
    let asks_for_table = !is_named
        && !is_one_run
        && length.is_none()
        && recipe::asks_for_table(&resolved)
        && (has_speed || !resolved.config.data.is_empty());
    if recipe::chooses(is_named, &resolved, length) || asks_for_table {
        let mut device = recipe_device(&resolved.config, args.target, global)?;
        device.ranks = args.ranks.unwrap_or(1);
        let data = ChosenData::for_plan(&resolved.config, global.quiet)?.with_length(length);
        let time = recipe::time_of(&resolved.config);
        if time.is_none() && asks_for_table {
            return recipe::show(&args.source, &device, &resolved, &data, args.json, global.quiet);
        }
        let time = time.unwrap_or(recipe::NO_LIMIT);
        let is_tuned = resolved.config.init_from != InitFrom::Scratch;
        match device.recipe(&resolved, &data, time, global.quiet) {
            Ok(found) => {
                let set = found.set.iter().map(|(key, value)| (key.to_string(), value.clone()));
                args.source.flags.extend(set);
                resolved = args.source.resolve(Vec::new(), None)?;
                recipe = Some(found);
            }
            // The plan says what a model needs that does not fit.
            Err(error) if is_tuned && error.text == recipe::NOTHING_FITS => {
                args.source.length = length;
                resolved = args.source.resolve(Vec::new(), None)?;
            }
            Err(error) => return Err(error),
        }
    } else if length.is_some() {
        args.source.length = length;
        resolved = args.source.resolve(Vec::new(), None)?;
    }
    let plans_schedule = !resolved.sets_length();
    let max_time = recipe::time_of(&resolved.config);
    let config = Config { max_time, ..resolved.config };
    let ranks = args.ranks.unwrap_or(1);
    if args.measure && config.shard_optimizer && ranks > 1 {
        let text = "--measure tests one process, but shard_optimizer needs several";
        return Err(Failure::usage(text, "leave out --measure or --shard_optimizer"));
    }
    let (vocab, data) = data(&config)?;
    let (selected, mode) = if args.measure || args.calibrate {
        let (selected, mode) = proven(select_device(global)?, &config, global)?;
        (Some(selected), mode)
    } else {
        (None, global.ops()?.with_products(config.cublas))
    };
    if let (true, Some(selected)) = (args.calibrate, &selected) {
        calibrate(&config, selected.clone(), mode, global.quiet)?;
    }
    let device = device(&config, args.target, selected.as_ref(), mode, global)?;
    let (limits, budget) = device.profile.limits(config.vram_budget, config.dtype);
    let speed = device.profile.speed.as_ref();
    let limits = limits.sharded(&config, ranks as usize);
    let own = plan::of_share(&config, largest_share(&config, ranks)?);
    let (forecast, fixes) = match plan::plan(&own, vocab, &limits, speed) {
        Ok(forecast) => (forecast, None),
        Err(PlanError::TooBig { least, fixes, .. }) => (*least, Some(fixes)),
        Err(error) => return Err(error.into()),
    };
    let mut totals = Totals::new(&config, vocab, &forecast.plan, data, speed, plans_schedule);
    let ranks = (ranks > 1)
        .then(|| RanksEstimate::new(&config, vocab, &forecast.plan, ranks, args.network, speed));
    if let Some(ranks) = &ranks {
        ranks.add_to(&mut totals);
    }
    let measured = match selected {
        Some(selected) if args.measure && fixes.is_none() => {
            Some(measure(&config, vocab, &forecast, selected, mode)?)
        }
        _ => None,
    };
    let optimizer = config.optimizer;
    let advice = totals.advice(&config);
    let adapter = adapter(&config);
    let within_hours =
        totals.time.as_ref().and_then(|time| within_hours(&config.hours, time.seconds));
    let report = PlanReport {
        device,
        budget,
        optimizer,
        adapter,
        forecast,
        totals,
        within_hours,
        advice,
        recipe,
        ranks,
        fixes,
        measured,
    };
    if args.json {
        output!("{}", report.json());
    } else {
        report.show(args.suggest, global.verbose > 0);
    }
    let PlanReport { device, forecast, fixes: Some(fixes), .. } = report else { return Ok(()) };
    let holders = device.profile.holders(config.vram_budget);
    Err(PlanError::TooBig { least: Box::new(forecast), fixes, holders }.into())
}

fn recipe_device(
    config: &Config,
    target: Option<TargetGpu>,
    global: &Global,
) -> Result<RecipeDevice, Failure> {
    if target.is_none() {
        return RecipeDevice::selected(config, global);
    }
    let PlannedDevice { profile, no_time, .. } =
        device(config, target, None, global.ops()?, global)?;
    let needs_speed = config.init_from == InitFrom::Scratch || config.is_timed();
    if profile.speed.is_none() && needs_speed {
        let text = "without the GPU's name, the training time is unknown";
        return Err(Failure::usage(text, no_time.as_str()));
    }
    Ok(RecipeDevice::target(profile))
}

/// Returns the sequences of the rank with the largest of equal shares.
fn largest_share(config: &Config, ranks: u32) -> Result<u64, Failure> {
    let global = config.global_batch();
    let micro_batch = config.micro_batch().get().into();
    let shares = Shares::of(global, micro_batch, &vec![1.0; ranks as usize]);
    let too_many = || RanksError::TooMany { ranks: ranks as usize, sequences: global };
    Ok(shares.ok_or_else(too_many)?.sequences(0))
}

/// Returns the vocabulary, and the size of the data if they exist.
fn data(config: &Config) -> Result<(u32, Option<DataSize>), Failure> {
    let vocab = |found: u32| if config.vocab_size > 0 { config.vocab_size } else { found };
    if config.data.is_empty() {
        return Ok((vocab(GPT2_VOCABULARY), None));
    }
    match Dataset::open(&config.data, u64::from(config.block_size.get())) {
        Ok(data) => {
            let size = DataSize { train: data.train.len(), val: data.val.len() };
            let adds = data.adds_to(config.vocab_size);
            let vocab = if adds { data.vocab_size } else { vocab(data.vocab_size) };
            Ok((vocab, Some(size)))
        }
        // A plan needs no data, which may not be prepared yet.
        Err(error) if error.is_missing => {
            if config.vocab_size == 0 {
                message!(
                    "warning: {error}; planning with the vocabulary of GPT-2, {GPT2_VOCABULARY} \
                     tokens\n  hint: {}",
                    error.hint()
                );
            }
            Ok((vocab(GPT2_VOCABULARY), None))
        }
        Err(error) => Err(error.into()),
    }
}

struct PlannedDevice {
    profile: DeviceProfile,
    /// The precision of the run, and the reason for it.
    precision: String,
    /// The next step if its speed is unknown.
    no_time: String,
}

/// Returns the target GPU, or else the device of the command, which is `selected` if that is given. With only a
/// budget in bytes, no driver is asked, and the plan is the same on every machine.
fn device(
    config: &Config,
    target: Option<TargetGpu>,
    selected: Option<&SelectedDevice>,
    mode: OpsMode,
    global: &Global,
) -> Result<PlannedDevice, Failure> {
    let choice = global.device()?;
    let is_budget = matches!(config.vram_budget, Budget::Bytes(_));
    let (memory, gpu) = match target {
        Some(TargetGpu { memory, gpu }) => (DeviceMemory::Target(memory), gpu),
        None if choice == DeviceChoice::Auto && selected.is_none() && is_budget => {
            (DeviceMemory::Unknown, None)
        }
        None => {
            let mut device = match selected {
                Some(selected) => selected.info.clone(),
                None => select_device(global)?.info,
            };
            let mut mode = mode;
            let slower = runs::kernel_verdicts::avoid_faulty(&mut device, &mut mode, config.dtype);
            warn(slower.as_slice());
            let mode = mode.for_run(config.dtype, &device)?;
            let no_time = format!("wgpt plan --device={} --calibrate measures it", device.id);
            let profile = runs::device_profile(&device, mode);
            let precision = profile.abilities.explain(config.dtype);
            return Ok(PlannedDevice { profile, precision, no_time });
        }
    };
    // In float16 we assume that a GPU without a name has cooperative matrices, which take more memory.
    let float16 = config.dtype == Dtype::Float16;
    let matrices = float16.then_some(Matrices::Sixteen);
    let unnamed = Abilities { float16, matrices, ..Abilities::default() };
    let abilities = gpu.map_or(unnamed, PublishedGpu::abilities);
    let planned = abilities.planned(config.dtype);
    let mut precision = abilities.explain(config.dtype);
    if gpu.is_none() && planned.matrices().is_some() {
        precision += ", assumed for a GPU without a name";
    }
    let kernels = match planned.dtype() {
        // These need CUDA.
        Dtype::Tf32 | Dtype::Bfloat16 => Kernels::Cube,
        _ => Kernels::Wgsl,
    };
    let speed = gpu.and_then(|gpu| DeviceSpeed::published(gpu, planned));
    let limits = Limits { pools: true, kernels, ..Limits::default() };
    let profile = DeviceProfile { memory, abilities, speed, limits };
    let no_time = match target {
        Some(_) => "--target=\"RTX 3060\" estimates it for a GPU by name",
        None => "--target=\"RTX 3060\" or --device estimates it",
    };
    Ok(PlannedDevice { profile, precision, no_time: no_time.into() })
}

fn calibrate(
    config: &Config,
    selected: SelectedDevice,
    mode: OpsMode,
    quiet: bool,
) -> Result<(), Failure> {
    let (device, mode) = mode.open(config.dtype, selected)?;
    if !quiet {
        message!("measuring {} ({})...", device.info.name, device.info.id);
    }
    let mut others = OtherPrograms::default();
    let mut points = bench::calibrate(&device, mode)?;
    let others = others.share();
    points.iter_mut().for_each(|point| *point = point.with_others(others));
    runs::remember_speed(&device.info, mode, &points);
    Ok(())
}

/// Reserves the memory of a step without computing it; returns the bytes that the pools hold then.
fn measure(
    config: &Config,
    vocab: u32,
    forecast: &Forecast,
    selected: SelectedDevice,
    mode: OpsMode,
) -> Result<u64, Failure> {
    let (device, mode) = mode.open(config.dtype, selected)?;
    if gpu::memory(&device.device).is_none() {
        let text = format!("{} has no memory pools to measure", device.info.name);
        return Err(Failure::usage(text, "give a GPU: --device=vulkan:0"));
    }
    let config = Config { vocab_size: vocab, ..config.clone() };
    gpu::size_pages(&device.device, forecast.page_bytes());
    let mut step = TrainingStep::reserved(&device.device, &config, &forecast.plan, mode);
    gpu::dry_run(&device.device, || (step.step(), step.step()));
    Ok(gpu::memory(&device.device).map_or(0, |memory| memory.reserved))
}

struct PlanReport {
    device: PlannedDevice,
    /// The budget and its source.
    budget: String,
    optimizer: OptimizerKind,
    /// The adapter that is trained, if there is one, and its base.
    adapter: Option<String>,
    forecast: Forecast,
    totals: Totals,
    /// When it would end, if it trains in some hours only.
    within_hours: Option<String>,
    advice: Vec<String>,
    /// The recipe, if the command gives a time and no preset.
    recipe: Option<Recipe>,
    ranks: Option<RanksEstimate>,
    /// Changes that would fit, if the run does not.
    fixes: Option<Vec<Fix>>,
    measured: Option<u64>,
}

impl PlanReport {
    fn json(&self) -> Value {
        let fix =
            |fix: &Fix| json!({ "option": fix.flags(), "predicted_bytes": fix.predicted_bytes });
        let mut object = match &self.fixes {
            None => json!(self.forecast),
            Some(fixes) => {
                let fixes: Vec<_> = fixes.iter().map(fix).collect();
                json!({ "least": self.forecast, "fixes": fixes })
            }
        };
        object["fits"] = self.fixes.is_none().into();
        if self.fixes.is_none() {
            object["measured_bytes"] = self.measured.into();
        }
        object["verdict"] = self.forecast.verdict().into();
        object["precision"] = self.device.precision.as_str().into();
        object["optimizer"] = self.optimizer.to_string().into();
        if let Some(ranks) = &self.ranks {
            object["ranks"] = json!(ranks);
        }
        object["advice"] = json!(self.advice);
        object["run"] = json!(self.totals);
        object
    }

    /// Prints the verdict, the time, what the run learns and the totals, in at most 80 columns. With `rows`,
    /// also prints the tensors in memory.
    fn show(&self, suggest: bool, rows: bool) {
        output!("{}", self.forecast.verdict());
        let totals = self.totals.lines();
        let of_time = totals.iter().position(|(label, _)| *label == "time");
        let (totals, time) = totals.split_at(of_time.unwrap_or(totals.len()));
        if time.is_empty() {
            line("time", &format!("unknown; {}", self.device.no_time));
        }
        time.iter().for_each(|(label, text)| line(label, text));
        self.within_hours.iter().for_each(|text| line("hours", text));
        if let Some(recipe) = &self.recipe {
            line("chosen", &format!("expect {}; {}", recipe.expectation(), recipe.why()));
        }
        for text in &self.advice {
            message!("warning: {text}");
        }
        let of_ranks = self.ranks.as_ref().map(RanksEstimate::lines).unwrap_or_default();
        for (label, text) in totals.iter().chain(&of_ranks) {
            line(label, text);
        }
        line("budget", &self.budget);
        line("dtype", &self.device.precision);
        let optimizer = match self.optimizer {
            OptimizerKind::AdamW => "AdamW",
            OptimizerKind::Muon => {
                "Muon for the matrices of the blocks, AdamW for all other weights"
            }
        };
        line("optimizer", optimizer);
        self.adapter.iter().for_each(|adapter| line("adapter", adapter));
        line("step", &self.forecast.plan.to_string());
        if !self.forecast.why.is_empty() {
            line("", &self.forecast.why);
        }
        if rows || self.measured.is_some() {
            self.show_rows();
        } else {
            line("memory", "-v lists what takes it");
        }
        if let (Some(fixes), true) = (&self.fixes, suggest) {
            output!("these changes make it fit:");
            for fix in fixes {
                output!("  {:<40} {:>11}", fix.flags(), bytes(fix.predicted_bytes));
            }
        }
    }

    fn show_rows(&self) {
        let Forecast { rows, host_rows, predicted_bytes, .. } = &self.forecast;
        let names = rows.iter().chain(host_rows).map(|row| row.name.len());
        let width = names.max().unwrap_or(0).max(IN_HOST_MEMORY.len());
        for (title, rows) in [("at the peak", rows), (IN_HOST_MEMORY, host_rows)] {
            if !rows.is_empty() {
                output!("");
                table(title, rows, width);
            }
        }
        if let Some(measured) = self.measured {
            let place = if host_rows.is_empty() { "" } else { " on the device" };
            let off = (*predicted_bytes as f64 / measured as f64 - 1.0) * 100.0;
            output!("measured: {}{place} (predicted {off:+.1}%)", bytes(measured));
        }
    }
}

/// Describes the adapter of a run, and the weights that stay as they are.
fn adapter(config: &Config) -> Option<String> {
    let lora = Lora::new(config)?;
    // Measured by `wgpt eval` on tinyshakespeare.
    let base = match config.base_dtype {
        BaseDtype::Auto => "the base is frozen",
        BaseDtype::Q8_0 => {
            "the base is frozen, in 8 bits (measured on a model of 0.8M weights: loss 1.9115, in float32 1.9116)"
        }
    };
    Some(format!("rank {}, alpha {}; {base}", lora.rank, lora.alpha))
}

/// Describes when a run that begins now would end, if it trains in some hours only.
fn within_hours(hours: &Hours, seconds: f64) -> Option<String> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|_| !hours.is_always())?;
    Some(match hours.after(&Local::now(), time) {
        Some(end) => {
            format!("{hours}; begun now, it ends on {}", end.format("%A, %Y-%m-%d at %H:%M"))
        }
        None => format!("{hours}; the run would take too long"),
    })
}

/// Prints a label and its text, over several lines if it is long.
fn line(mut label: &str, text: &str) {
    for part in textwrap::wrap(text, at_spaces(70)) {
        output!("{label:<9} {part}");
        label = "";
    }
}

const IN_HOST_MEMORY: &str = "in host memory";

/// Prints the rows of one memory under a title, with names of up to `width` columns.
fn table(title: &str, rows: &[Row], width: usize) {
    let total = rows.iter().map(|row| row.bytes).sum::<u64>().max(1);
    let (unit, name) = match total {
        0..10_485_760 => (1024.0, "KiB"),
        _ => (1_048_576.0, "MiB"),
    };
    let rows = visible(rows, (0.05 * unit) as u64);
    output!("{:<11} {title:<width$} {name:>9}", "class");
    for class in Class::ALL {
        for row in rows.iter().filter(|row| row.class == *class) {
            let bar = "#".repeat((row.bytes as f64 / total as f64 * 16.0).round() as usize);
            let size = row.bytes as f64 / unit;
            output!("{}", format!("{class:<11} {:<width$} {size:>9.1} {bar}", row.name).trim_end());
        }
    }
    output!("{:<11} {:<width$} {:>9.1}", "total", "", total as f64 / unit);
}

/// Returns the rows, with those below `least` bytes as one.
fn visible(rows: &[Row], least: u64) -> Vec<Row> {
    let (mut shown, small): (Vec<Row>, Vec<Row>) =
        rows.iter().cloned().partition(|row| row.bytes >= least);
    let bytes: u64 = small.iter().map(|row| row.bytes).sum();
    if bytes >= least {
        let name = "small tensors".to_string();
        shown.push(Row { name, class: Class::Workspace, bytes });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rows_are_shown_as_one() {
        let row = |name: &str, bytes| Row { name: name.into(), class: Class::Activations, bytes };
        let rows = [row("a", 1000), row("b", 60), row("c", 50)];
        let names = |least| -> Vec<String> {
            visible(&rows, least).into_iter().map(|row| row.name).collect()
        };
        assert_eq!(names(10), ["a", "b", "c"]);
        assert_eq!(names(100), ["a", "small tensors"]);
        assert_eq!(names(500), ["a"]);
    }
}
