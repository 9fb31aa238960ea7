//! `wgpt export` and `wgpt import`: models for other programs.

use std::path::Path;

use super::activity::Activity;
use super::args::{ExportArgs, ExportFormat, Global};
use super::find_model::{find_model, find_tokenizer, unknown_tokenizer};
use crate::config::Gelu;
use crate::data::Tokenizer;
use crate::disk;
use crate::model::{Blocks, GgufFile};
use crate::protocol::Failure;
use crate::report::write_model_card;
use crate::runs::{ModelSource, archive};
use crate::text::millions;
use crate::worker::write_model_folder;

pub(super) fn export(args: ExportArgs, global: &Global) -> Result<(), Failure> {
    let is_gguf = args.output.extension().is_some_and(|ending| ending == "gguf");
    let by_name = if is_gguf { ExportFormat::Gguf } else { ExportFormat::Hf };
    let format = args.format.unwrap_or(by_name);
    let source = find_model(args.model.as_deref(), global.quiet)?;
    let tokenizer = match &args.data {
        Some(data) => Some(find_tokenizer(&source, Some(data.as_str()))?),
        None => source.tokenizer.clone(),
    };
    match format {
        ExportFormat::Hf => {
            convert(&source, tokenizer.as_ref(), &args.output, global)?;
            write_model_card(&source, tokenizer.as_ref(), &args.output)?;
        }
        ExportFormat::Gguf => gguf(&source, &args, global)?,
        ExportFormat::Page => page(&source, tokenizer.as_ref(), &args, global)?,
    }
    output!("{} -> {}", source.path.display(), args.output.display());
    Ok(())
}

/// Runs `wgpt import`: writes the same model as export.
pub(super) fn import(model: &Path, output: &Path, global: &Global) -> Result<(), Failure> {
    let source = find_model(Some(model), global.quiet)?;
    convert(&source, source.tokenizer.as_ref(), output, global)?;
    let parameters = millions(source.architecture.parameters() as u64);
    let (source, output) = (source.path.display(), output.display());
    output!("{source} -> {output} ({parameters} parameters); train on with --init_from={output}");
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

const INDEX: &str = "index.html";

/// Writes the browser build with a model that it imports when it opens.
fn page(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    args: &ExportArgs,
    global: &Global,
) -> Result<(), Failure> {
    let (web, output) = (&args.web, &args.output);
    let index = web.join(INDEX);
    if !index.exists() {
        let hint = "build it with web/build.sh, or unpack the page of this release, and give its \
                    folder with --web";
        return Err(Failure::usage(format!("{}: not the page of wgpt", web.display()), hint));
    }
    if output.join(INDEX).exists() {
        let text = format!("{}: this folder already has a page", output.display());
        return Err(Failure::usage(text, "give another folder with -o"));
    }
    if tokenizer.is_none() {
        return Err(unknown_tokenizer(source));
    }
    let unpacked = tempfile::tempdir().map_err(Failure::file(output))?;
    convert(source, tokenizer, unpacked.path(), global)?;
    disk::create_dir_all(output).map_err(Failure::file(output))?;
    for entry in disk::read_dir(web).map_err(Failure::file(web))?.flatten() {
        if entry.path().is_file() && entry.file_name() != INDEX {
            let to = output.join(entry.file_name());
            std::fs::copy(entry.path(), &to).map_err(Failure::file(&to))?;
        }
    }
    let name = format!("{}.zip", safe_name(output));
    let zip = output.join(&name);
    let file = disk::File::create(&zip).map_err(Failure::file(&zip))?;
    archive::pack(unpacked.path(), file)?;
    let text = disk::read_to_string(&index).map_err(Failure::file(&index))?;
    // The page imports a model once, and knows it by its hash.
    let hash = &source.fingerprint()?[..16];
    let meta =
        format!("<meta name=\"wgpt-model\" content=\"{name}\" data-hash=\"{hash}\">\n</head>");
    // It is written last, because a folder without it is no page.
    let to = output.join(INDEX);
    disk::write(&to, text.replacen("</head>", &meta, 1)).map_err(Failure::file(&to))
}

/// Returns the name of a folder as a part of a URL.
fn safe_name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let name: String = name.chars().map(safe).collect();
    if name.is_empty() { "model".into() } else { name }
}

fn gguf(source: &ModelSource, args: &ExportArgs, global: &Global) -> Result<(), Failure> {
    let path = &args.output;
    if path.exists() {
        let text = format!("{}: this file exists already", path.display());
        return Err(Failure::usage(text, "give another file with -o"));
    }
    let tokenizer = find_tokenizer(source, args.data.as_deref())?;
    let mut vocabulary = tokenizer.vocabulary().map_err(|reason| {
        let text = format!("a gguf file cannot have the tokenizer of this model: {reason}");
        let hint = "export a Hugging Face folder with --format hf, which has any tokenizer";
        Failure::usage(text, hint)
    })?;
    let architecture = &source.architecture;
    vocabulary.pad(architecture.vocab_size);
    if matches!(architecture.blocks, Blocks::Gpt2 { gelu: Gelu::Erf, .. }) {
        message!(
            "warning: llama.cpp computes GELU in its tanh form, but this model was trained with the \
             exact one: its logits will be slightly different"
        );
    }
    if vocabulary.end.is_none() {
        message!(
            "warning: the tokenizer has no token that ends a text; programs that read the file may \
             take another one for it"
        );
    }
    if let Some(folder) = path.parent() {
        disk::create_dir_all(folder).map_err(Failure::file(folder))?;
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut weights = source.weights()?;
    let mut activity = Activity::new(global.quiet);
    let mut show = |done: usize, all: usize| {
        activity.show(format!("writing {} {done}/{all}", path.display()));
    };
    let file = GgufFile { name: &name, architecture, vocabulary: &vocabulary, dtype: args.kind };
    Ok(file.write(path, &mut *weights, &mut show)?)
}
