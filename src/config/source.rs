//! The settings of a command as typed.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::RunLength;

/// A file, a preset, and settings that replace theirs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigSource {
    /// TOML, or nanoGPT's Python.
    pub file: Option<PathBuf>,
    pub preset: Option<String>,
    /// Names and values of settings.
    pub flags: Vec<(String, String)>,
    /// The length of the run, if it is not in updates.
    #[serde(default)]
    pub length: Option<RunLength>,
}
