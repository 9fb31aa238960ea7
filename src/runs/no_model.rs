//! Says what a path without a model is instead, and what to give in its place.

use std::path::Path;

use super::{CHECKPOINTS_FOLDER, CONFIG_FILE, EVENTS_FILE, has_checkpoint};
use crate::data::has_tokens;
use crate::disk;
use crate::model::{ARCHITECTURE_FILE, has_weights};
use crate::protocol::Failure;

/// What a path is, and what to do.
struct Advice {
    what: String,
    hint: String,
}

impl Advice {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl Failure {
    /// Creates the failure of a path without a model or an intact checkpoint.
    pub(crate) fn no_checkpoint(path: &Path) -> Self {
        // The checkpoints of a run are in a folder of their own.
        let is_inner = path.file_name().is_some_and(|name| name == CHECKPOINTS_FOLDER);
        let path = path.parent().filter(|run| is_inner && has_run(run)).unwrap_or(path);
        let about = |advice: Advice| {
            Self::bad_data(format!("{}: {}", path.display(), advice.what), advice.hint)
        };
        if disk::is_file(path) {
            return about(of_file(path));
        }
        if let Some(advice) = of_folder(path) {
            return about(advice);
        }
        let mut names: Vec<_> = disk::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        if let Some((name, advice)) = of_names(&names) {
            let text = format!("{}: {}", path.join(name).display(), advice.what);
            return Self::bad_data(text, advice.hint);
        }
        let has_model =
            |folder: &Path| disk::is_dir(folder) && (has_weights(folder) || has_checkpoint(folder));
        let inner = names.iter().map(|name| path.join(name)).find(|folder| has_model(folder));
        let hint = match inner {
            Some(folder) => format!("give a folder in it, like {}", folder.display()),
            None => "give a run that has a checkpoint, a checkpoint, nanoGPT's ckpt.pt, or a Hugging Face \
                     folder"
                .to_owned(),
        };
        about(Advice::new("no model and no intact checkpoint in this folder", hint))
    }
}

fn has_run(path: &Path) -> bool {
    [CONFIG_FILE, EVENTS_FILE].iter().all(|name| disk::is_file(&path.join(name)))
}

/// Describes a file, which is no model.
fn of_file(file: &Path) -> Advice {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let ending = file.extension().unwrap_or_default().to_string_lossy();
    let hint = format!("give its folder: {}", folder.display());
    if has_weights(folder) && ["json", "safetensors", "txt", "jinja"].contains(&&*ending) {
        return Advice::new("this is one file of a model", hint);
    }
    if has_run(folder) {
        return Advice::new("this is one file of a run", hint);
    }
    let names = [file.file_name().unwrap_or_default().to_string_lossy().into_owned()];
    of_names(&names).map(|(_, advice)| advice).unwrap_or_else(|| {
        let hint =
            "give a run, a checkpoint, a Hugging Face folder or its zip, or nanoGPT's ckpt.pt";
        Advice::new("this file is no model", hint)
    })
}

/// Describes a folder by what it is for.
fn of_folder(folder: &Path) -> Option<Advice> {
    let path = folder.display();
    if has_run(folder) {
        let hint = format!("train it with `wgpt train --resume --run={path}`, or give another run");
        return Some(Advice::new("this run has no checkpoint yet", hint));
    }
    if has_tokens(folder) {
        let hint =
            format!("give a run that was trained on it; `wgpt train --data={path}` trains one");
        return Some(Advice::new("this is training data, not a model", hint));
    }
    // The cache of the Hugging Face Hub.
    let name = folder.file_name()?.to_string_lossy();
    let id = name.strip_prefix("models--")?.replacen("--", "/", 1);
    Some(Advice::new("this is a folder of the Hub's cache", format!("give hf:{id}")))
}

/// Describes the first of these names that tells what a folder has in place of a model.
fn of_names(names: &[String]) -> Option<(&String, Advice)> {
    let has = |part: &str, ending: &str| {
        names.iter().find(|name| name.contains(part) && name.ends_with(ending))
    };
    let known = [
        (
            has("adapter", ".json").or(has("adapter", ".safetensors")),
            "this is an adapter of another model",
            "merge it into its model first, in Python with PEFT's merge_and_unload and save_pretrained",
        ),
        (
            has("pytorch_model", ".bin"),
            "these weights are in PyTorch's own format",
            "load the model in Python with transformers and save it again: save_pretrained writes \
             model.safetensors",
        ),
        (
            has("-of-", ".safetensors"),
            "this is a part of a model without the index of all parts",
            "fetch the whole folder again, with its model.safetensors.index.json",
        ),
        (has("", ".gguf"), "this folder has a model in a GGUF file", "give the path of that file"),
        (
            has("", ".safetensors"),
            "these weights are not called model.safetensors",
            "rename the file, next to the config.json of its model, and give that folder",
        ),
        (
            names.iter().find(|name| *name == ARCHITECTURE_FILE),
            "this belongs to a model, but its folder has no weights",
            "fetch its model.safetensors, too",
        ),
    ];
    known.into_iter().find_map(|(name, what, hint)| Some((name?, Advice::new(what, hint))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row has a path in a folder, the files of the folder, what is said, and a part of the advice.
    #[test]
    fn a_path_without_a_model_is_named_with_the_way_out() {
        let said = "no model and no intact checkpoint in this folder";
        for (path, files, what, hint) in [
            (
                "m/model.safetensors",
                &["m/model.safetensors"][..],
                "one file of a model",
                "give its folder: {m}",
            ),
            (
                "m/config.json",
                &["m/config.json", "m/model.safetensors"],
                "one file of a model",
                "give its folder: {m}",
            ),
            (
                "r/log.txt",
                &["r/config.toml", "r/events.jsonl", "r/log.txt"],
                "one file of a run",
                "give its folder: {r}",
            ),
            ("g", &["g/x.gguf"], "x.gguf: this folder has a model", "the path of that file"),
            ("notes.txt", &["notes.txt"], "this file is no model", "give a run"),
            ("r", &["r/config.toml", "r/events.jsonl"], "no checkpoint yet", "--resume --run="),
            (
                "r/checkpoints",
                &["r/config.toml", "r/events.jsonl", "r/checkpoints/x"],
                "r: this run has no checkpoint yet",
                "--resume --run=",
            ),
            ("d", &["d/train.bin", "d/meta.json"], "training data", "train --data="),
            ("m", &["m/config.json"], "config.json: this belongs to a model", "model.safetensors"),
            ("m", &["m/adapter_config.json", "m/config.json"], "adapter", "merge"),
            ("m", &["m/sub/model.safetensors"], said, "in it, like {m/sub}"),
            ("models--a--b--c", &["models--a--b--c/x"], "cache", "give hf:a/b--c"),
            ("m", &["m/other"], said, "give a run that has a checkpoint"),
            ("nowhere", &["m/other"], said, "give a run that has a checkpoint"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                let file = folder.path().join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "").unwrap();
            }
            let failure = Failure::no_checkpoint(&folder.path().join(path));
            assert!(failure.text.contains(what), "{path}: {failure}");
            let m = folder.path().join("m");
            let named =
                [("{m}", m.clone()), ("{r}", folder.path().join("r")), ("{m/sub}", m.join("sub"))];
            let hint = named.iter().fold(hint.to_owned(), |hint, (name, path)| {
                hint.replace(name, &path.display().to_string())
            });
            assert!(failure.hint.contains(&hint), "{path}: {}", failure.hint);
        }
    }
}
