//! Settings that the window stores from one session to the next.

use std::path::PathBuf;

use egui_tiles::Tree;
use serde::{Deserialize, Serialize};

use crate::gui::charts::ChartState;
use crate::gui::form::Form;
use crate::gui::layout::{self, Pane};
use crate::gui::platform;

/// The key of the settings.
const SETTINGS: &str = "wgpt";

/// The key of the layout: apart, so that a layout of another version does not lose the settings.
const LAYOUT: &str = "layout";

/// The fate of a run when its window closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WhenClosed {
    /// A dialog asks; without an answer the run continues.
    #[default]
    Ask,
    /// The run stops with a checkpoint.
    Stop,
    /// The run continues.
    #[serde(rename = "GoOn")]
    Continue,
}

/// Settings that outlive the window.
#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    pub form: Form,
    pub device: String,
    pub charts: ChartState,
    pub runs: PathBuf,
    pub when_closed: WhenClosed,
    #[serde(skip, default = "layout::tree")]
    pub tree: Tree<Pane>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            form: Form::default(),
            device: "auto".into(),
            charts: ChartState::default(),
            runs: PathBuf::from(platform::RUNS),
            when_closed: WhenClosed::default(),
            tree: layout::tree(),
        }
    }
}

impl Settings {
    /// Reads the settings, or defaults for those that another version wrote.
    pub fn load(storage: Option<&dyn eframe::Storage>) -> Self {
        let stored = storage.and_then(|storage| eframe::get_value::<Self>(storage, SETTINGS));
        let layout = storage.and_then(|storage| eframe::get_value(storage, LAYOUT));
        Self { tree: layout.unwrap_or_else(layout::tree), ..stored.unwrap_or_default() }
    }

    /// Writes the settings.
    pub fn store(&self, storage: &mut dyn eframe::Storage) {
        eframe::set_value(storage, SETTINGS, self);
        eframe::set_value(storage, LAYOUT, &self.tree);
    }
}
