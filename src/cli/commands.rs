//! The short commands: prepare, devices, doctor, config.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use serde_json::json;

use super::activity::bar;
use super::args::{ConfigAction, Global, PrepareArgs};
use super::find_model::{warn, warn_with_hint};
use super::next::train_on;
use super::terminal::unwrapped;
use crate::config::{KEYS, Matrices, preset_names, preset_title};
use crate::data::{
    self, ConversationCounts, Dataset, Phase, PrepareOptions, PrepareProgress, Prepared,
    StopRequest, TokenizerChoice,
};
use crate::doctor::DoctorReport;
use crate::gpu::{self, Backend, DeviceInfo, Search, cublas};
use crate::hub;
use crate::model::has_weights;
use crate::protocol::Failure;
use crate::text::{Table, bytes, bytes_of, count, escape_terminal, grouped};
use crate::worker::{list_devices, products_line, signals};

const NOTHING_WRITTEN: &str = "stopped: nothing was written";

pub(super) fn prepare(args: PrepareArgs, global: &Global) -> Result<(), Failure> {
    let inputs = hub::texts(args.inputs)?;
    // The model whose tokenizer the data get, by the name that was typed.
    let mut model = None;
    let tokenizer = match args.tokenizer.unwrap_or_default() {
        TokenizerChoice::File(path) => {
            let local = hub::local(&path)?.into_owned();
            model = Some(path).filter(|_| has_weights(&local));
            TokenizerChoice::File(local)
        }
        other => other,
    };
    let options = PrepareOptions {
        tokenizer,
        encoding: args.encoding,
        text_field: args.text_field,
        skip_bad_lines: args.skip_bad_lines,
        val_fraction: args.val_fraction,
        seed: args.seed,
        force: args.force,
        stop: StopRequest::default(),
    };
    let reads_stdin = inputs.iter().any(|input| input.as_os_str() == "-");
    if reads_stdin && !global.quiet && std::io::stdin().is_terminal() {
        let end = if cfg!(windows) { "Ctrl-Z and Enter" } else { "Ctrl-D" };
        message!("reading text from the terminal; end it with {end} on a line of its own");
    }
    let bar = bar(global.quiet, 1000, "[{bar:12}] {percent}%, {eta} left, {wide_msg}");
    let (stop, signal) = (options.stop.clone(), Arc::new(AtomicI32::new(0)));
    let received = signal.clone();
    signals::listen(move |signal| {
        received.store(signal, Ordering::SeqCst);
        if stop.stop() {
            message!("{NOTHING_WRITTEN}");
            signals::exit(128 + signal);
        }
    })?;
    let mut show = |progress: PrepareProgress| {
        bar.set_position((progress.share() * 1000.0) as u64);
        let read = || bytes_of(progress.bytes_read, progress.bytes_total);
        bar.set_message(match progress.phase {
            Phase::Stdin => format!("copying stdin: {}", bytes(progress.bytes_read)),
            Phase::Survey => format!("reading: {}", read()),
            Phase::Vocabulary => "training the tokenizer".to_string(),
            Phase::Tokenize | Phase::Done => {
                format!("tokenizing: {}, {} tokens", read(), count(progress.tokens))
            }
        });
    };
    crate::gpu::start_compute_threads();
    let prepared = data::prepare(&inputs, &args.output, &options, &mut show);
    bar.finish_and_clear();
    if prepared.is_err() && options.stop.is_stopped() {
        message!("{NOTHING_WRITTEN}");
        signals::exit(128 + signal.load(Ordering::SeqCst));
    }
    let Prepared { meta, files, text_bytes, chosen, recognised, warnings } = prepared?;
    warn(&warnings);
    recognised.iter().filter(|_| !global.quiet).for_each(|text| message!("{text}"));
    let some =
        |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let document = if meta.conversations.is_some() { "conversation" } else { "document" };
    output!(
        "read {}, {}, {} bytes of text",
        some(files as u64, "file"),
        some(meta.documents, document),
        grouped(text_bytes as f64, 0),
    );
    if let Some((choice, reason)) = chosen {
        output!("tokenizer: {choice}, because {reason}; --tokenizer chooses another");
    }
    let tokens = |count: u64| grouped(count as f64, 0);
    output!(
        "{}: {} training tokens, {} validation tokens",
        args.output.display(),
        tokens(meta.train_tokens),
        tokens(meta.val_tokens),
    );
    output!(
        "vocabulary: {} ({}), {:.2} bytes per token",
        tokens(meta.vocab_size.into()),
        meta.tokenizer.base().kind(),
        text_bytes as f64 / (meta.train_tokens + meta.val_tokens) as f64,
    );
    if let Some(ConversationCounts { train, val, longest }) = meta.conversations {
        output!(
            "conversations: {} for training, {} for validation, of up to {} tokens",
            tokens(train),
            tokens(val),
            tokens(longest)
        );
        if !global.quiet {
            show_first(&args.output)?;
        }
    }
    if !global.quiet {
        unwrapped(&train_on(&args.output, &meta, model.as_deref()));
    }
    Ok(())
}

/// Shows the first conversation for training as a model reads it, special tokens included.
fn show_first(folder: &Path) -> Result<(), Failure> {
    const MOST: usize = 800;
    let dataset = Dataset::open(&folder.to_string_lossy(), 1)?;
    let Some(tokenizer) = &dataset.tokenizer else { return Ok(()) };
    let (Some(ids), Some(template)) = (dataset.train.conversation(0)?, tokenizer.chat()) else {
        return Ok(());
    };
    let whose = if template.is_of_folder() { "the tokenizer's own" } else { "wgpt's" };
    message!("the first one in {whose} template; a model learns what the assistant says:\n");
    let text = tokenizer.decode(&ids);
    let shown: String = text.chars().take(MOST).collect();
    for line in escape_terminal(&shown).lines() {
        message!("    {line}");
    }
    message!("{}", if shown.len() < text.len() { "    ...\n" } else { "" });
    Ok(())
}

pub(super) fn devices(json: bool, global: &Global) {
    let listing = list_devices(Search::All);
    listing.warnings().for_each(warn_with_hint);
    let devices = listing.devices;
    if let Some(why) = gpu::why_no_cuda(&devices).filter(|_| !global.quiet) {
        message!("note: no cuda device: {why}");
    }
    let on_cuda = |device: &DeviceInfo| device.id.backend == Backend::Cuda;
    let has_cuda = devices.iter().any(on_cuda);
    if let Some(why) = has_cuda.then(cublas::obstacle).flatten() {
        message!("warning: cuBLASLt is not used: {why}");
    }
    let library = has_cuda.then(cublas::library).flatten();
    if json {
        let object = |device: &DeviceInfo| {
            let mut object = json!({
                "id": device.id.to_string(),
                "name": device.name,
                "backend": device.id.backend,
                "kind": device.kind,
                "driver": device.driver,
                "max_binding_bytes": device.max_binding,
                "dtypes": device.abilities.dtypes(),
                "matrices": device.abilities.matrices.map(Matrices::side),
            });
            if on_cuda(device) {
                object["products"] =
                    json!(library.map(|it| json!({ "name": it.name, "from": it.from })));
            }
            object
        };
        output!("{}", json!(devices.iter().map(object).collect::<Vec<_>>()));
        return;
    }
    let row = |device: &DeviceInfo| {
        vec![
            device.id.to_string(),
            device.name.clone(),
            device.kind.to_string(),
            device.max_binding.map_or_else(|| "any".into(), bytes),
            device.abilities.to_string(),
            device.driver.clone(),
        ]
    };
    let head = ["device", "name", "kind", "binding", "dtypes", "driver"];
    let table = Table::new(head, devices.iter().map(row));
    super::write_out(table.plain(&[3]));
    if has_cuda {
        output!("{}", products_line(library));
    }
}

pub(super) fn doctor(json: bool) {
    #[cfg(feature = "gui")]
    let front_end = crate::gui::front_end();
    #[cfg(not(feature = "gui"))]
    let front_end = crate::doctor::FrontEnd {
        display: None,
        runs: super::run_list::RUNS.into(),
        settings: None,
    };
    let listing = list_devices(Search::All);
    let report = DoctorReport::gather(front_end, &listing.devices, listing.problems());
    if json {
        output!("{}", json!(report));
    } else {
        output!("{report}");
    }
}

/// Runs `wgpt presets`.
pub(super) fn presets() {
    let width = preset_names().map(str::len).max().unwrap_or(0);
    for name in preset_names() {
        output!("{name:<width$}  {}", preset_title(name));
    }
    output!(
        "\n`wgpt train --preset=NAME` trains one; `wgpt plan --preset=NAME` shows what it needs"
    );
}

pub(super) fn config(action: ConfigAction) -> Result<(), Failure> {
    match action {
        ConfigAction::Init(source) => {
            output!("{}", source.resolve(Vec::new(), None)?.config.to_toml().trim_end());
        }
        ConfigAction::Show(source) => {
            let resolved = source.resolve(Vec::new(), None)?;
            let text = resolved.config.to_toml();
            for key in KEYS {
                let line = text.lines().find(|line| line.starts_with(&format!("{} = ", key.name)));
                let value = line.and_then(|line| line.split("  # ").next()).unwrap_or(key.name);
                let provenance = resolved.provenance.get(key.name);
                let provenance = provenance.map_or_else(String::new, ToString::to_string);
                output!("{:<40} {provenance}", value.trim_end());
            }
            warn(&resolved.warnings);
        }
        ConfigAction::Check(source) => {
            warn(&source.resolve(Vec::new(), None)?.warnings);
            output!("ok");
        }
    }
    Ok(())
}
