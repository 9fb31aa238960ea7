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

    pub(crate) fn other_tokenizer(model: &Path) -> Self {
        let text = format!("{}: this model and the data use different tokenizers", model.display());
        let hint = "prepare the text into a new folder, with --tokenizer=gpt2 for GPT-2, or \
                    --tokenizer=MODEL for a model folder with a tokenizer.json, like a checkpoint";
        Self::new(text, hint).with_exit(Exit::Usage)
    }

    /// Returns the failure of a setting that differs from the loaded model, checkpoint or data in `path`.
    pub(crate) fn other_model(
        key: &'static str,
        [configured, loaded]: [impl Display; 2],
        path: &Path,
        hint: &str,
    ) -> Self {
        let path = path.display();
        let text = format!("`{key}` is {configured} in the configuration, but {loaded} in {path}");
        Self::new(text, hint).with_exit(Exit::Usage)
    }
}
