//! `wgpt plan`: the memory that a run will take.

use super::CliError;
use super::args::{Global, PlanArgs};
use crate::bench::TrainingStep;
use crate::config::{Budget, Config, Dtype, bytes};
use crate::data::{DataError, Dataset};
use crate::gpu::{self, DeviceChoice};
use crate::plan::{self, Class, DeviceMemory, DeviceProfile, Forecast, Limits, PlanError};
use crate::train;

/// The vocabulary of GPT-2, for a configuration without a vocabulary and without data.
const GPT2_VOCABULARY: u32 = 50_257;

/// Runs `wgpt plan`.
pub(super) fn run(args: PlanArgs, global: &Global) -> Result<(), CliError> {
    let resolved = args.source.resolve(None)?;
    for warning in &resolved.warnings {
        message!("warning: {warning}");
    }
    let config = resolved.config;
    let vocab = vocabulary(&config)?;
    let (limits, source) = limits(&config, &args.target, args.measure, global)?;
    let forecast = match plan::plan(&config, vocab, &limits) {
        Ok(forecast) => forecast,
        Err(PlanError::TooBig { least, fixes }) => {
            if args.json {
                let least = serde_json::to_value(&least).expect("a forecast is plain data");
                output!("{}", serde_json::json!({ "fits": false, "least": least, "fixes": fixes }));
            } else {
                table(&least, &source);
            }
            if args.suggest && !args.json {
                output!("these changes make it fit:");
                for fix in &fixes {
                    output!("  {:<40} {:>11}", fix.option, bytes(fix.predicted_bytes));
                }
            }
            return Err(CliError::Train(PlanError::TooBig { least, fixes }.into()));
        }
        Err(error) => return Err(CliError::Train(error.into())),
    };
    let measured = args.measure.then(|| measure(&config, vocab, &forecast, global)).transpose()?;
    if args.json {
        let mut object = serde_json::to_value(&forecast).expect("a forecast is plain data");
        object["fits"] = true.into();
        object["measured_bytes"] = measured.into();
        output!("{object}");
        return Ok(());
    }
    table(&forecast, &source);
    if let Some(measured) = measured {
        let off = forecast.predicted_bytes as f64 / measured as f64 - 1.0;
        output!("measured: {} (predicted {:+.1}%)", bytes(measured), off * 100.0);
    }
    Ok(())
}

fn vocabulary(config: &Config) -> Result<u32, CliError> {
    if config.vocab_size > 0 || config.data.is_empty() {
        return Ok(if config.vocab_size > 0 { config.vocab_size } else { GPT2_VOCABULARY });
    }
    match Dataset::open(&config.data, u64::from(config.block_size.get())) {
        Ok(dataset) => Ok(dataset.vocab_size),
        // A plan needs no data: it may not be prepared yet.
        Err(error @ DataError::Missing { .. }) => {
            message!(
                "warning: {error}; planning with the vocabulary of GPT-2, {GPT2_VOCABULARY} tokens"
            );
            Ok(GPT2_VOCABULARY)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the limits of a target GPU, else of the device, and where the budget comes from. With
/// neither, only the budget of the configuration applies: no driver is loaded, and the plan is the
/// same on every machine.
fn limits(
    config: &Config,
    target: &Option<Budget>,
    measure: bool,
    global: &Global,
) -> Result<(Limits, String), CliError> {
    let choice = global.device()?;
    let is_percent = matches!(config.vram_budget, Budget::Percent(_));
    let memory = match target {
        Some(Budget::Bytes(size)) => DeviceMemory::Target(*size),
        _ if choice == DeviceChoice::Auto && !measure && !is_percent => DeviceMemory::Unknown,
        _ => {
            let device = gpu::select(choice)?.info;
            device.check_dtype(config.dtype)?;
            return Ok(train::limits(config, &device, global.ops()?));
        }
    };
    // Other types than float32 need CUDA.
    let cube = config.dtype != Dtype::Float32;
    let device = DeviceProfile { memory, largest_tensor: None, pools: true, cube };
    let (limits, source) = device.limits(config.vram_budget);
    Ok(match limits.budget {
        Some(_) => (limits, source),
        None => (limits, "none; --vram_budget, --target or --device sets one".into()),
    })
}

/// Reserves the memory of a step without computing it; returns the bytes that the pools hold then.
fn measure(
    config: &Config,
    vocab: u32,
    forecast: &Forecast,
    global: &Global,
) -> Result<u64, CliError> {
    let device = gpu::open(global.device()?)?;
    if gpu::memory(&device.device).is_none() {
        return Err(CliError::Usage {
            what: format!("{} has no memory pools to measure", device.info.name),
            hint: "give a GPU: --device=vulkan:0",
        });
    }
    let config = Config { vocab_size: vocab, ..config.clone() };
    gpu::size_pages(&device.device, forecast.page_bytes());
    let mut step = TrainingStep::planned(&device.device, &config, &forecast.plan, global.ops()?);
    gpu::dry_run(&device.device, || (step.step(), step.step()));
    Ok(gpu::memory(&device.device).map_or(0, |memory| memory.reserved))
}

fn table(forecast: &Forecast, source: &str) {
    let total = forecast.predicted_bytes.max(1);
    let width = forecast.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    for class in Class::ALL {
        for row in forecast.rows.iter().filter(|row| row.class == class) {
            let share = row.bytes as f64 / total as f64;
            let bar = "#".repeat((share * 40.0).round() as usize);
            output!("{:<11} {:<width$} {:>11}  {bar}", class, row.name, bytes(row.bytes));
        }
    }
    output!("{:<11} {:<width$} {:>11}", "total", "", bytes(total));
    output!("budget: {source}");
    output!("{}", forecast.plan);
    if !forecast.why.is_empty() {
        output!("{}", forecast.why);
    }
}
