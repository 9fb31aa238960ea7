//! Settings that outlive the window.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::charts::ChartState;
use super::form::SettingsForm;

/// The value of `--device` and `--vram_budget` that chooses automatically.
pub const AUTO: &str = "auto";

#[derive(Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub form: SettingsForm,
    /// The device as `--device` takes it.
    pub device: String,
    pub charts: ChartState,
    /// The folder in which runs are created and listed. Empty lists none.
    pub runs: PathBuf,
    pub when_closed: WhenClosed,
}

/// The fate of a run when its window closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenClosed {
    /// A dialog asks; without an answer the run continues.
    #[default]
    Ask,
    Stop,
    #[serde(rename = "GoOn")]
    Continue,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            form: SettingsForm::default(),
            device: AUTO.into(),
            charts: ChartState::default(),
            runs: PathBuf::new(),
            when_closed: WhenClosed::default(),
        }
    }
}

impl Settings {
    /// Returns the folder of data: next to the folder of the runs, as nanoGPT's `data` is next to its
    /// `out`.
    pub fn data_folder(&self) -> PathBuf {
        self.runs.parent().unwrap_or(Path::new("")).join("data")
    }
}
