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
        let text =
            format!("{}: no model and no intact checkpoint in this folder", folder.display());
        let hint = "give a run that has a checkpoint, a checkpoint, nanoGPT's ckpt.pt, or a Hugging Face folder";
        Self::bad_data(text, hint)
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
