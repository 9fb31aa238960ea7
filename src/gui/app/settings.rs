//! Settings that the window stores from one session to the next.

use std::path::PathBuf;

use egui_tiles::Tree;
use serde::{Deserialize, Serialize};

use crate::gui::charts::ChartState;
use crate::gui::form::SettingsForm;
use crate::gui::layout::{self, Pane};
use crate::gui::{AUTO, platform};

const SETTINGS: &str = "wgpt";

/// The key of the layout. It is stored separately, so that another version's layout does not lose
/// the settings.
const LAYOUT: &str = "layout";

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

/// Reads the settings and the layout, or defaults for those that another version wrote.
pub(super) fn load(storage: Option<&dyn eframe::Storage>) -> (Settings, Tree<Pane>) {
    let settings = storage.and_then(|storage| eframe::get_value(storage, SETTINGS));
    let tree = storage.and_then(|storage| eframe::get_value(storage, LAYOUT));
    (settings.unwrap_or_default(), tree.unwrap_or_else(layout::tree))
}

/// Writes the settings and the layout.
pub(super) fn store(storage: &mut dyn eframe::Storage, settings: &Settings, tree: &Tree<Pane>) {
    eframe::set_value(storage, SETTINGS, settings);
    eframe::set_value(storage, LAYOUT, tree);
}
