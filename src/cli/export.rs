//! `wgpt export` and `wgpt import`: models for other programs.

use std::path::Path;

use super::activity::Activity;
use super::args::{ExportArgs, FormatArg, Global};
use super::find_model::{find_model, find_tokenizer};
use super::next;
use crate::data::Tokenizer;
use crate::protocol::Failure;
use crate::runs::ModelSource;
use crate::text::millions;
use crate::worker::{
    ollama_commands, write_adapter_folder, write_gguf, write_model_folder, write_ollama, write_page,
};

pub(super) fn export(args: ExportArgs, global: &Global) -> Result<(), Failure> {
    let is_gguf = args.output.extension().is_some_and(|ending| ending == "gguf");
    let by_name = if is_gguf { FormatArg::Gguf } else { FormatArg::Hf };
    let format = args.format.unwrap_or(by_name);
    let source = find_model(args.model.as_deref(), global.quiet)?;
    let tokenizer = match &args.data {
        Some(data) => Some(find_tokenizer(&source, Some(data.as_str()))?),
        None => source.tokenizer.clone(),
    };
    match format {
        FormatArg::Hf => convert(&source, tokenizer.as_ref(), &args.output, global)?,
        FormatArg::Peft => write_adapter_folder(&source, &args.output)?,
        FormatArg::Gguf | FormatArg::Ollama => {
            let tokenizer = find_tokenizer(&source, args.data.as_deref())?;
            let mut activity = Activity::new(global.quiet);
            let path = args.output.display();
            let mut show = |done, all| activity.show(format!("writing {path} {done}/{all}"));
            let write = if format == FormatArg::Gguf { write_gguf } else { write_ollama };
            for warning in write(&source, &tokenizer, &args.output, args.kind, &mut show)? {
                message!("warning: {warning}");
            }
        }
        FormatArg::Page => {
            let mut activity = Activity::new(global.quiet);
            activity.show(format!("writing {}", args.output.display()));
            write_page(&source, tokenizer.as_ref(), args.web.as_deref(), &args.output)?;
        }
    }
    output!("{} -> {}", source.name.display(), args.output.display());
    let output = &args.output;
    match format {
        FormatArg::Ollama => output!("{}", ollama_commands(output)),
        FormatArg::Hf if tokenizer.is_some() => output!("{}", next::use_model(output)),
        FormatArg::Gguf => output!("{}", next::use_file(output)),
        FormatArg::Page => output!("{}", next::use_page(output)),
        FormatArg::Hf | FormatArg::Peft => {}
    }
    Ok(())
}

/// Runs `wgpt import`: writes the same model as export.
pub(super) fn import(
    model: &Path,
    output: &Path,
    data: Option<&str>,
    global: &Global,
) -> Result<(), Failure> {
    let source = find_model(Some(model), global.quiet)?;
    let tokenizer = match data {
        Some(data) => Some(find_tokenizer(&source, Some(data))?),
        None => source.tokenizer.clone(),
    };
    convert(&source, tokenizer.as_ref(), output, global)?;
    let parameters = millions(source.architecture.parameters() as u64);
    let source = source.name.display();
    if tokenizer.is_none() {
        message!(
            "warning: {source} has no tokenizer, so this model cannot read or write text\n  hint: give the data \
             that it was trained on with --data"
        );
    }
    let output = output.display();
    output!("{source} -> {output} ({parameters} parameters); use it with --init_from={output}");
    Ok(())
}

fn convert(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    output: &Path,
    global: &Global,
) -> Result<(), Failure> {
    let mut activity = Activity::new(global.quiet);
    activity.show(format!("writing {}", output.display()));
    write_model_folder(source, tokenizer, output)
}
