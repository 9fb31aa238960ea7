//! The settings of a command as a person gives them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A file, a preset, and settings that replace theirs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigSource {
    /// TOML, or nanoGPT's Python.
    pub file: Option<PathBuf>,
    pub preset: Option<String>,
    /// The names and values of settings, as typed.
    pub flags: Vec<(String, String)>,
}
