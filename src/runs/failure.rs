//! Failures of files, checkpoints and models.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::disk;
use crate::model::OTHER_MODEL;
use crate::protocol::{Exit, Failure};
use crate::text::excerpt;

impl Failure {
    /// Returns a function for `map_err`: "cannot `action` `path`".
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |error| {
            let hint = disk::hint(&error)
                .unwrap_or("check the path, its permissions and the free space of the disk");
            Self::new(format!("cannot {action} {}: {error}", path.display()), hint)
        }
    }

    /// Returns a function for `map_err` about a typed file or folder. A missing file is a wrong argument; any
    /// other error is the system's.
    pub(crate) fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |error| {
            let text = format!("{}: {error}", path.as_ref().display());
            let is_wrong = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory);
            let exit = if is_wrong { Exit::Usage } else { Exit::Failure };
            let hint = disk::hint(&error).unwrap_or("check the path and its permissions");
            Self { exit, ..Self::new(text, hint) }
        }
    }

    pub(crate) fn checkpoint(path: &Path, reason: impl Display) -> Self {
        Self::bad_data(format!("{}: {}", path.display(), excerpt(reason)), OTHER_MODEL)
    }

    pub(crate) fn no_checkpoint(folder: &Path) -> Self {
        if let Some(failure) = Self::other_weights(folder) {
            return failure;
        }
        let text =
            format!("{}: no model and no intact checkpoint in this folder", folder.display());
        let hint = "give a run that has a checkpoint, a checkpoint, nanoGPT's ckpt.pt, or a Hugging Face folder";
        Self::bad_data(text, hint)
    }

    /// Names what a folder has in place of a model.
    fn other_weights(folder: &Path) -> Option<Self> {
        let entries = disk::read_dir(folder).ok()?.flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        let has = |part: &str, ending: &str| {
            names.iter().find(|name| name.contains(part) && name.ends_with(ending))
        };
        let known = [
            (
                has("adapter", ".json"),
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
            (
                has("", ".gguf"),
                "this is a GGUF file, which wgpt writes but does not read",
                "give the folder of safetensors that it was made from",
            ),
            (
                has("", ".safetensors"),
                "these weights are not called model.safetensors",
                "rename the file, next to the config.json of its model",
            ),
        ];
        let (name, what, hint) =
            known.into_iter().find_map(|(name, what, hint)| Some((name?, what, hint)))?;
        Some(Self::bad_data(format!("{}: {what}", folder.join(name).display()), hint))
    }

    pub(crate) fn other_tokenizer(model: &Path) -> Self {
        let text = format!("{}: this model and the data use different tokenizers", model.display());
        let hint = "prepare the data again, with --tokenizer=gpt2 for GPT-2, or --tokenizer=MODEL for a \
                    model folder with a tokenizer.json, like a checkpoint";
        Self::new(text, hint).with_exit(Exit::Usage)
    }

    /// Returns the failure of a setting that differs from the loaded model or checkpoint in `path`.
    pub(crate) fn other_model(
        key: &'static str,
        [configured, loaded]: [impl Display; 2],
        path: &Path,
    ) -> Self {
        let path = path.display();
        let text = format!("`{key}` is {configured} in the configuration, but {loaded} in {path}");
        Self::new(text, "leave the setting out, or start a new run").with_exit(Exit::Usage)
    }
}
