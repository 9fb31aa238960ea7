//! Writes a model as a folder for Ollama: a GGUF file, and the Modelfile that names it.

use std::fmt::Write;
use std::path::Path;

use super::{UNFINISHED, fill, occupied, safe_name, write_gguf};
use crate::data::Tokenizer;
use crate::disk;
use crate::model::GgufType;
use crate::protocol::Failure;
use crate::runs::ModelSource;
use crate::text::quoted;

const MODELFILE: &str = "Modelfile";

/// Writes a folder for Ollama. Replaces no file. Otherwise like [`write_gguf`].
pub(crate) fn write_ollama(
    source: &ModelSource,
    tokenizer: &Tokenizer,
    output: &Path,
    kind: GgufType,
    show: &mut dyn FnMut(usize, usize),
) -> Result<Vec<&'static str>, Failure> {
    let name = safe_name(output);
    let gguf = format!("{name}.gguf");
    let modelfile = modelfile(source, tokenizer, &name)?;
    // The names are checked again, but a large model takes minutes until then.
    let found = disk::first_in(output, [MODELFILE, &gguf]);
    if let Some(name) = found.filter(|_| !output.join(UNFINISHED).exists()) {
        return Err(occupied(output, name));
    }
    let mut warnings = Vec::new();
    fill(output, &[MODELFILE], |folder| {
        warnings = write_gguf(source, tokenizer, &folder.join(&gguf), kind, show)?;
        let path = folder.join(MODELFILE);
        disk::write(&path, modelfile).map_err(Failure::file(&path))
    })?;
    let writes_date = |text: String| text.contains("strftime_now");
    if tokenizer.chat().is_some_and(|template| writes_date(template.jinja())) {
        warnings
            .push("the chat template writes the date; Ollama will keep the date of this export");
    }
    Ok(warnings)
}

/// Returns the commands that use such a folder in Ollama, LM Studio and llama.cpp, a line each.
pub(crate) fn ollama_commands(folder: &Path) -> String {
    let name = safe_name(folder);
    let path = |file: &str| quoted(&folder.join(file).display().to_string());
    let modelfile = path(MODELFILE);
    let gguf = path(&format!("{name}.gguf"));
    format!(
        "Ollama:     ollama create {name} -f {modelfile}\n            ollama run {name}\n\
         LM Studio:  lms import {gguf}\nllama.cpp:  llama-server -m {gguf}"
    )
}

/// Returns a Modelfile for the file `name.gguf` next to it.
/// The format: <https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx>.
fn modelfile(source: &ModelSource, tokenizer: &Tokenizer, name: &str) -> Result<String, Failure> {
    let go = tokenizer.chat().map(|template| template.go()).transpose().map_err(|reason| {
        let text = format!("the chat template cannot be written for Ollama: {reason}");
        let hint = "export a file with --format=gguf for programs that read the template in it, such as \
                    llama.cpp and LM Studio";
        Failure::usage(text, hint)
    })?;
    let template = go.as_deref().unwrap_or("{{ .Prompt }}");
    let mut text = format!("# In this folder: ollama create {name} -f Modelfile\n");
    let _ = write!(text, "FROM ./{name}.gguf\nTEMPLATE \"\"\"{template}\"\"\"\n");
    let stops = tokenizer.stops();
    let specials = tokenizer.chat().into_iter().flat_map(|template| template.specials());
    for (_, stop) in specials.filter(|(id, _)| stops.contains(id)) {
        let _ = writeln!(text, "PARAMETER stop \"{stop}\"");
    }
    let _ = writeln!(text, "PARAMETER num_ctx {}", source.architecture.block_size);
    Ok(text)
}
