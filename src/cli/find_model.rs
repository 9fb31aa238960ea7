//! The model that a command works with, its tokenizer, and the device.

use std::path::Path;

use super::activity::Activity;
use super::args::Global;
use super::print_failure;
use super::run_list::newest_model;
use crate::config::{Config, Dtype};
use crate::data::{Dataset, Tokenizer, TokenizerKind};
use crate::gpu::SelectedDevice;
use crate::model::Gpt;
use crate::ops::OpsMode;
use crate::protocol::Failure;
use crate::runs::ModelSource;
use crate::runs::kernel_verdicts::avoid_faulty;
use crate::worker::{Proven, Watched, prove, select, watch};

/// Opens the model at `path`, or of the newest run, and prints the checkpoint that it uses.
pub(super) fn find_model(path: Option<&Path>, quiet: bool) -> Result<ModelSource, Failure> {
    let path = &path.map_or_else(|| newest_model(quiet), |path| Ok(path.to_path_buf()))?;
    let mut activity = Activity::new(quiet);
    activity.show(format!("opening {}", path.display()));
    let source = ModelSource::open(path)?;
    activity.clear();
    warn(&source.warnings);
    if !quiet {
        let kind = if source.state.is_some() { "checkpoint" } else { "model" };
        // If a zip was unpacked, this is its path.
        let used = if source.path.starts_with(path) { &source.path } else { path };
        message!("{kind}: {}", used.display());
    }
    Ok(source)
}

pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        message!("warning: {warning}");
    }
}

pub(super) fn warn_with_hint(Failure { text, hint, .. }: Failure) {
    message!("warning: {text}\n  hint: {hint}");
}

/// Selects the device of the command, and warns about drivers that crash.
pub(super) fn select_device(global: &Global) -> Result<SelectedDevice, Failure> {
    Ok(select(global.device()?, warn_with_hint)?)
}

/// Returns the tokenizer of `data`, or else of the model.
pub(super) fn find_tokenizer(
    source: &ModelSource,
    data: Option<&str>,
) -> Result<Tokenizer, Failure> {
    let mut tokenizer = source.tokenizer.clone();
    if let Some(data) = data {
        let of_data = Dataset::open(data, 1)?.tokenizer;
        let hint = "leave --data out: the model has its own tokenizer";
        check_tokenizer(source, data, of_data.as_ref(), hint)?;
        tokenizer = of_data.or(tokenizer);
    }
    let tokenizer = tokenizer.ok_or_else(|| source.no_tokenizer())?;
    let rows = source.architecture.vocab_size;
    tokenizer.check_text_rows(rows)?;
    let have = tokenizer.vocab_size() as usize;
    // A model may be padded, as nanoGPT pads GPT-2. If its tokenizer is unknown, only the number of tokens shows
    // that it was trained on other data.
    let may_be_padded = tokenizer.base().kind() == TokenizerKind::Gpt2
        || source.tokenizer.as_ref().is_some_and(|own| own.has_text_of(&tokenizer));
    if have < rows && !may_be_padded {
        let text = format!("the tokenizer has {have} tokens, but the model has {rows}");
        let hint = if data.is_some() {
            "give the data folder that the model was trained on with --data"
        } else {
            "its tokenizer.json belongs to another model: take it and the weights from the same place"
        };
        return Err(Failure::usage(text, hint));
    }
    Ok(tokenizer)
}

/// Returns an error with `hint` if data has another tokenizer than the model.
pub(super) fn check_tokenizer(
    source: &ModelSource,
    data: &str,
    tokenizer: Option<&Tokenizer>,
    hint: &str,
) -> Result<(), Failure> {
    if source.has_text_of(tokenizer) {
        return Ok(());
    }
    let path = source.name.display();
    let text = format!("{data}: this data and the model {path} use different tokenizers");
    Err(Failure::usage(text, hint))
}

/// Opens the device of a command that does not train, and loads a model onto it. Returns the model with the mode
/// of its ops.
pub(super) fn load_model(source: &ModelSource, global: &Global) -> Result<(Gpt, OpsMode), Failure> {
    let mut device = select_device(global)?;
    let mut mode = global.ops()?;
    if let Some(text) = avoid_faulty(&mut device.info, &mut mode, Dtype::Float32) {
        message!("warning: {text}");
    }
    let device = device.open_float32()?;
    watch(&device, Watched::Command, |failure| print_failure(failure, false));
    if global.verbose > 0 {
        message!("device: {} ({}), {}", device.info.name, device.info.id, device.reason);
    }
    let mut activity = Activity::new(global.quiet);
    activity.show("loading the model".into());
    let model = source.model(&device.device)?;
    Ok((model, mode.on(device.info.kind)))
}

/// Returns a device and a way to compute steps of `config` with correct kernels. Prints a warning if it is not
/// the fastest way. If no way exists and the user has not named the device, returns the CPU.
pub(super) fn proven(
    device: SelectedDevice,
    config: &Config,
    global: &Global,
) -> Result<(SelectedDevice, OpsMode), Failure> {
    let say = |text: &str| {
        if !global.quiet {
            message!("{text}");
        }
    };
    let mode = global.ops()?.with_products(config.cublas);
    let proven = prove(device.clone(), mode, config, global.self_test(), &say);
    let Proven { device, mode, warnings, .. } = match proven {
        Ok(proven) => proven,
        Err(error) => return Ok((device.fallback(error)?, global.ops()?)),
    };
    warn(&warnings);
    Ok((device, mode))
}
