//! The folder and the variables of Hugging Face's tools.

use std::path::PathBuf;

/// Returns the folder of Hugging Face's tools.
pub(super) fn home() -> Option<PathBuf> {
    let cache = || {
        variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(dirs::home_dir()?.join(".cache")))
    };
    variable("HF_HOME").map(PathBuf::from).or_else(|| Some(cache()?.join("huggingface")))
}

/// Returns the text of a variable, if it has one.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
}
