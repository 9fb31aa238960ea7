//! Paths that were dropped, chosen in a dialog or named.

use std::path::{Path, PathBuf};

use crate::gui::intent::{FileChoice, Intent};
use crate::model::has_weights;
use crate::protocol::{Request, Texts};
use crate::{disk, runs};

/// Returns the intent of a dialog in which these paths were chosen; `None` if it was cancelled.
pub fn chosen(choice: FileChoice, paths: Vec<PathBuf>) -> Option<Intent> {
    let first = paths.first()?.clone();
    match choice {
        FileChoice::Texts | FileChoice::DataFolder => recognize(paths),
        FileChoice::RunsFolder => Some(Intent::ListRuns(first)),
        FileChoice::Model if is_run_or_model(&first) => Some(Intent::Show(first)),
        FileChoice::Base if is_run_or_model(&first) => Some(Intent::FineTune(first)),
        FileChoice::Model | FileChoice::Base => {
            let text =
                format!("{} has no model: no model.safetensors, no ckpt.pt", first.display());
            Some(Intent::Unreadable(text))
        }
        FileChoice::Export(checkpoint, format) => {
            Some(Intent::Ask(Request::Export { checkpoint, format, folder: first }))
        }
    }
}

/// Recognizes paths that were dropped, chosen or named: a run or a model, a folder with tokens, else
/// texts.
pub fn recognize(paths: Vec<PathBuf>) -> Option<Intent> {
    let first = paths.first()?;
    // Tokens of wgpt, nanoGPT or llm.c.
    let is_tokens = |path: PathBuf| path.extension().is_some_and(|extension| extension == "bin");
    let has_tokens = || {
        let mut entries = disk::read_dir(first).into_iter().flatten().flatten();
        entries.any(|entry| is_tokens(entry.path()))
    };
    Some(if is_run_or_model(first) {
        Intent::Show(first.clone())
    } else if has_tokens() {
        Intent::UseData(first.clone())
    } else {
        Intent::Prepare(Texts::Files(paths))
    })
}

/// Returns true if a folder holds a run, a checkpoint, a Hugging Face model or one of nanoGPT, and for a GGUF file.
fn is_run_or_model(folder: &Path) -> bool {
    let is_gguf = folder.extension().is_some_and(|extension| extension == "gguf");
    is_gguf || runs::is_run(folder) || has_weights(folder) || disk::is_file(&folder.join("ckpt.pt"))
}
