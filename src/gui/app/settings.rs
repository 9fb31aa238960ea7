//! Settings that the window stores from one session to the next.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::gui::charts::ChartState;
use crate::gui::form::SettingsForm;
use crate::gui::{AUTO, platform};

/// The fate of a run when its window closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WhenClosed {
    /// A dialog asks; without an answer the run continues.
    #[default]
    Ask,
    /// The run stops with a checkpoint.
    Stop,
    #[serde(rename = "GoOn")]
    Continue,
}

/// Settings that outlive the window.
#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(in crate::gui) struct Settings {
    pub form: SettingsForm,
    /// The device as `--device` takes it.
    pub device: String,
    pub charts: ChartState,
    /// The folder in which runs are created and listed.
    pub runs: PathBuf,
    pub(super) when_closed: WhenClosed,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            form: SettingsForm::default(),
            device: AUTO.into(),
            charts: ChartState::default(),
            runs: PathBuf::from(platform::RUNS),
            when_closed: WhenClosed::default(),
        }
    }
}
