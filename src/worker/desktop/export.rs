//! Writes models for other programs.

mod ollama;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::config::Gelu;
use crate::data::{TOKENIZER_FILE, TOKENIZER_FILES, Tokenizer};
use crate::disk::{self, FolderKind};
use crate::gpu::{self, DeviceChoice};
use crate::model::{
    ADAPTER_CONFIG, ADAPTER_FILE, ARCHITECTURE_FILE, Blocks, GgufFile, GgufType, WEIGHTS_FILE,
    has_weights, parameters,
};
use crate::protocol::{ExportFormat, Failure};
use crate::report::{CARD, write_model_card};
use crate::runs::{ModelSource, archive, checkpoint};
use crate::worker::answer::name_of;
use crate::worker::data_requests::free_path;
pub(crate) use ollama::{ollama_commands, write_ollama};

/// Writes a run, a checkpoint or a model for a window. Returns the path of the folder or file.
pub(super) fn export(
    checkpoint: &Path,
    format: ExportFormat,
    folder: PathBuf,
) -> Result<PathBuf, Failure> {
    let source = ModelSource::open(checkpoint)?;
    let tokenizer = source.tokenizer.as_ref();
    let known = || tokenizer.ok_or_else(|| source.no_tokenizer());
    let elsewhere = |failure| Failure { hint: "choose another folder".into(), ..failure };
    let name = format!("model-{}", name_of(checkpoint));
    match format {
        ExportFormat::HuggingFace => {
            let out = free_folder(folder, &name);
            write_model_folder(&source, tokenizer, &out).map(|()| out).map_err(elsewhere)
        }
        ExportFormat::Gguf => {
            let out = free_path(&folder, &name, ".gguf");
            write_gguf(&source, known()?, &out, GgufType::F16, &mut |_, _| {}).map(|_| out)
        }
        ExportFormat::Ollama => {
            let out = free_folder(folder, &name);
            write_ollama(&source, known()?, &out, GgufType::F16, &mut |_, _| {}).map(|_| out)
        }
        ExportFormat::Page => {
            let out = free_folder(folder, &format!("page-{}", name_of(checkpoint)));
            write_page(&source, tokenizer, None, &out).map(|()| out)
        }
    }
}

/// Returns `folder` if it is empty, else a new folder called `name` below it.
fn free_folder(folder: PathBuf, name: &str) -> PathBuf {
    let empty = disk::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none());
    if empty { folder } else { free_path(&folder, name, "") }
}

/// The folder in which the files of an export are written.
const UNFINISHED: &str = ".wgpt-export";

/// Fills a folder, which may exist, with the files that `write` writes into another one. The files `last` are moved
/// last, in their order: after a crash, each of them is complete if it exists, and so are all files before it.
/// Without the very last, wgpt sees no model or page.
fn fill(
    folder: &Path,
    last: &[&str],
    write: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let part = folder.join(UNFINISHED);
    // A killed export has left it, and may have moved some of its files.
    let is_own = disk::exists(&part);
    let _ = disk::remove_dir_all(&part);
    disk::create_dir_all(&part).map_err(Failure::file(&part))?;
    let filled = write(&part).and_then(|()| move_files(&part, folder, last, is_own));
    let _ = disk::remove_dir_all(&part);
    if filled.is_err() {
        // Keeps a folder with files.
        let _ = disk::remove_dir(folder);
    }
    filled
}

/// Moves all files, but none if `to` has one of them, unless it `is_own`.
fn move_files(from: &Path, to: &Path, last: &[&str], is_own: bool) -> Result<(), Failure> {
    let mut files = Vec::new();
    for entry in disk::read_dir(from).map_err(Failure::file(from))? {
        let name = entry.map_err(Failure::file(from))?.file_name();
        disk::sync_file(&from.join(&name)).map_err(Failure::file(&from.join(&name)))?;
        files.push(name);
    }
    if let Some(name) = files.iter().find(|name| !is_own && disk::exists(&to.join(name))) {
        return Err(occupied(to, &name.to_string_lossy()));
    }
    files.sort_by_key(|name: &OsString| last.iter().position(|last| name == last));
    for name in files {
        let path = to.join(&name);
        disk::publish(&from.join(&name), &path).map_err(Failure::file(&path))?;
    }
    Ok(())
}

fn occupied(folder: &Path, name: &str) -> Failure {
    let text = format!("{}: this folder already has a file {name}", folder.display());
    Failure::usage(text, "give another folder, which may have a README.md; no file is replaced")
}

/// Writes a model as a Hugging Face folder, which must have no model yet. Replaces no file, and keeps a card
/// that is there.
pub(crate) fn write_model_folder(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    output: &Path,
) -> Result<(), Failure> {
    if let Some(text) = disk::other_kind(output, FolderKind::Model) {
        return Err(Failure::usage(text, disk::OTHER_KIND_HINT));
    }
    if has_weights(output) {
        let text = format!("{}: this folder already has a model", output.display());
        return Err(Failure::usage(text, "give another folder"));
    }
    // The names are checked again, but a large model takes minutes until then.
    let names = [ARCHITECTURE_FILE].into_iter().chain(TOKENIZER_FILES);
    if let Some(name) = disk::first_in(output, names).filter(|_| !output.join(UNFINISHED).exists())
    {
        return Err(occupied(output, name));
    }
    // An export does not overwrite a model card, so the card comes after its picture.
    fill(output, &[CARD, WEIGHTS_FILE], |folder| {
        write_model(source, tokenizer, folder)?;
        write_model_card(source, tokenizer, folder, output)
    })
}

/// Writes an adapter as PEFT does. Replaces no file.
pub(crate) fn write_adapter_folder(source: &ModelSource, output: &Path) -> Result<(), Failure> {
    if source.adapter.is_none() {
        let text = format!(
            "{}: this is no adapter: all of its weights were trained",
            source.name.display()
        );
        return Err(Failure::usage(text, "leave out --format for a folder with the whole model"));
    }
    fill(output, &[ADAPTER_CONFIG, ADAPTER_FILE], |folder| {
        for name in [ADAPTER_CONFIG, ADAPTER_FILE].into_iter().chain(TOKENIZER_FILES) {
            let (from, to) = (source.path.join(name), folder.join(name));
            if disk::exists(&from) {
                let file = disk::read_regular(&from).map_err(Failure::io("read", &from))?;
                disk::write(&to, file).map_err(Failure::io("write", &to))?;
            }
        }
        Ok(())
    })
}

fn write_model(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    folder: &Path,
) -> Result<(), Failure> {
    let cpu: DeviceChoice = "cpu".parse()?;
    let model = source.model(&gpu::open(cpu)?.device)?;
    let written =
        checkpoint::write_model(folder, model.architecture(), parameters(&model), tokenizer);
    pollster::block_on(written)?;
    // Even if wgpt cannot use it, it is the model's tokenizer. Without it, GPT-2's would be assumed.
    let own = source.path.join(TOKENIZER_FILE);
    if tokenizer.is_none() && own.exists() {
        let file = disk::read(&own).map_err(Failure::io("read", &own))?;
        let to = folder.join(TOKENIZER_FILE);
        disk::write(&to, file).map_err(Failure::io("write", &to))?;
    }
    Ok(())
}

const INDEX: &str = "index.html";

/// Finds the browser build: in this folder or, without one, where `web/build.sh` writes it or next to the
/// program. Returns its folder and its first file.
#[allow(clippy::disallowed_methods, reason = "looks next to the program, and does not start it")]
fn browser_build(given: Option<&Path>) -> Result<(PathBuf, PathBuf), Failure> {
    let of_program = std::env::current_exe().ok();
    let of_program = of_program.and_then(|program| Some(program.parent()?.join("page")));
    let usual = || [Some("web/dist".into()), of_program].into_iter().flatten().collect();
    let folders: Vec<PathBuf> = given.map_or_else(usual, |folder| vec![folder.to_path_buf()]);
    let found = folders.iter().map(|folder| (folder.clone(), folder.join(INDEX)));
    found.into_iter().find(|(_, index)| index.exists()).ok_or_else(|| {
        let text = match given {
            Some(folder) => format!("{}: not the browser build of wgpt", folder.display()),
            None => "the browser build of wgpt was not found".into(),
        };
        let hint = format!(
            "unpack wgpt-{}-page.zip, which every release has, as the folder `page` next to the \
             program, or give its folder with --web",
            env!("CARGO_PKG_VERSION")
        );
        Failure::usage(text, &hint)
    })
}

/// Writes the browser build with a model that it imports when it opens. `web` is the folder of the browser
/// build; `None` looks for it.
pub(crate) fn write_page(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    web: Option<&Path>,
    output: &Path,
) -> Result<(), Failure> {
    let (web, index) = browser_build(web)?;
    if output.join(INDEX).exists() {
        let text = format!("{}: this folder already has a page", output.display());
        return Err(Failure::usage(text, "give another folder with -o"));
    }
    if tokenizer.is_none() {
        return Err(source.no_tokenizer());
    }
    let unpacked = tempfile::tempdir().map_err(Failure::file(output))?;
    write_model(source, tokenizer, unpacked.path())?;
    let name = format!("{}.zip", safe_name(output));
    // The page imports a model once, and knows it by its hash.
    let hash = &source.fingerprint()?[..16];
    let meta =
        format!("<meta name=\"wgpt-model\" content=\"{name}\" data-hash=\"{hash}\">\n</head>");
    fill(output, &[INDEX], |folder| {
        for entry in disk::read_dir(&web).map_err(Failure::file(&web))?.flatten() {
            if entry.path().is_file() && entry.file_name() != INDEX {
                let to = folder.join(entry.file_name());
                let file = disk::read(entry.path()).map_err(Failure::file(&entry.path()))?;
                disk::write(&to, file).map_err(Failure::file(&to))?;
            }
        }
        let zip = folder.join(&name);
        let file = disk::File::create(&zip).map_err(Failure::file(&zip))?;
        archive::pack(unpacked.path(), file)?;
        let text = disk::read_to_string(&index).map_err(Failure::file(&index))?;
        let to = folder.join(INDEX);
        disk::write(&to, text.replacen("</head>", &meta, 1)).map_err(Failure::file(&to))
    })
}

/// Returns the name of a folder as a part of a URL, and as the name of a model in Ollama.
pub(crate) fn safe_name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let name: String = name.chars().map(safe).collect();
    let name = name.trim_start_matches('-');
    if name.is_empty() { "model".into() } else { name.to_owned() }
}

/// Writes a model as a GGUF file, with matrices of type `kind`. Passes the tensors that are written, and
/// their number, to `show`. Returns warnings.
pub(crate) fn write_gguf(
    source: &ModelSource,
    tokenizer: &Tokenizer,
    path: &Path,
    kind: GgufType,
    show: &mut dyn FnMut(usize, usize),
) -> Result<Vec<&'static str>, Failure> {
    if path.exists() {
        let text = format!("{}: this file exists already", path.display());
        return Err(Failure::usage(text, "give another file with -o"));
    }
    let mut vocabulary = tokenizer.vocabulary().map_err(|reason| {
        let text = format!("a gguf file cannot hold this model's tokenizer: {reason}");
        let hint = "export a Hugging Face folder with --format hf, which takes any tokenizer";
        Failure::usage(text, hint)
    })?;
    let architecture = &source.architecture;
    let mut warnings = Vec::new();
    vocabulary.pad(architecture.vocab_size);
    vocabulary.cut(architecture.vocab_size);
    if matches!(architecture.blocks, Blocks::Gpt2 { gelu: Gelu::Erf, .. }) {
        warnings.push(
            "llama.cpp computes GELU in its tanh form, but this model was trained with the \
             exact one: its logits will differ slightly",
        );
    }
    if vocabulary.end.is_none() {
        warnings.push(
            "the tokenizer has no token that ends a text; programs that read the file may \
             mistake another token for it",
        );
    }
    if let Some(folder) = path.parent() {
        disk::create_dir_all(folder).map_err(Failure::file(folder))?;
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut weights = source.weights()?;
    let file = GgufFile { name: &name, architecture, vocabulary: &vocabulary, dtype: kind };
    file.write(path, &mut *weights, show)?;
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::recorder::{Call, record};

    #[test]
    fn a_folder_is_complete_before_it_has_its_last_file() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        // A killed export left this.
        disk::create_dir_all(out.join(UNFINISHED).join("a")).unwrap();
        let write = |part: &Path| {
            for name in ["a", "b", "c"] {
                disk::write(part.join(name), name).unwrap();
            }
            Ok(())
        };
        let (filled, calls) = record(|| fill(&out, &["b", "a"], write));
        filled.unwrap();
        let part = |name| out.join(UNFINISHED).join(name);
        let first = calls.iter().position(|call| matches!(call, Call::Rename(..))).unwrap();
        let (before, moves) = calls.split_at(first);
        let is_synced = |name| before.contains(&Call::SyncFile(part(name)));
        assert!(["a", "b", "c"].into_iter().all(is_synced), "{calls:?}");
        let rename = |name| Call::Rename(part(name), out.join(name));
        let sync = || Call::SyncFolder(out.clone());
        assert_eq!(moves, [rename("c"), sync(), rename("b"), sync(), rename("a"), sync()]);
        assert_eq!(disk::read_dir(&out).unwrap().count(), 3);
        let failed = fill(&folder.path().join("none"), &["a"], |_| Err(Failure::new("full", "")));
        // The folder has files of these names now, which may be anybody's.
        let failed_again = fill(&out, &["a"], write).unwrap_err();
        assert!(failed_again.text.contains("already has a file"), "{failed_again}");
        assert_eq!(disk::read_to_string(out.join("a")).unwrap(), "a");
        assert!(failed.is_err() && !folder.path().join("none").exists());
    }
}
