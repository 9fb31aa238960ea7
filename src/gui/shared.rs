//! The state that all panels share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::AUTO;
use super::app::WhenClosed;
use super::charts::{ChartState, Overlay};
use super::fit::FitState;
use super::form::SettingsForm;
use super::log::LogView;
use super::platform::{IS_PAGE, RUNS};
use super::run_list::Dialog;
use super::samples::SampleState;
use super::setup::{DataChoice, TimeChoice};
use crate::protocol::{DeviceLine, Progress, RunPhase, StorageUsage, StoredData, StoredModel};
use crate::runs::RunSummary;
use crate::worker::Trainer;

/// The state that all panels share. Replies and events change it, and panels edit it.
#[derive(Default)]
pub(super) struct Shared {
    pub settings: Settings,
    pub shown: ShownRun,
    pub library: Library,
    pub devices: Vec<DeviceLine>,
    pub data: DataChoice,
    pub time: TimeChoice,
    pub fit: FitState,
    pub samples: SampleState,
    pub log: LogView,
    /// True while the list of texts to fetch is open.
    pub lists_texts: bool,
    /// Search text for the settings; empty shows all.
    pub setting_filter: String,
}

/// Settings that outlive the window.
#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    pub form: SettingsForm,
    /// The device as `--device` takes it.
    pub device: String,
    pub charts: ChartState,
    /// The folder in which runs are created and listed.
    pub runs: PathBuf,
    pub when_closed: WhenClosed,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            form: SettingsForm::default(),
            device: AUTO.into(),
            charts: ChartState::default(),
            runs: PathBuf::from(RUNS),
            when_closed: WhenClosed::default(),
        }
    }
}

impl Shared {
    pub fn shown_name(&self) -> Option<&str> {
        self.shown.folder.as_deref().map(|folder| self.library.title(folder))
    }
}

/// The run that the panels show, and the trainer.
#[derive(Default)]
pub(super) struct ShownRun {
    pub folder: Option<PathBuf>,
    pub progress: Progress,
    /// The connection to the shown run, or to a run of this window that is not shown.
    pub trainer: Option<Trainer>,
    /// True from the end of the run until the notice about it is closed.
    pub has_finished: bool,
}

impl ShownRun {
    /// Returns true if a process trains the shown run.
    pub fn is_live(&self) -> bool {
        let trained = self.trainer.as_ref().map(|trainer| &trainer.run);
        trained.is_some() && trained == self.folder.as_ref()
    }

    /// Returns true if no run and no model is shown.
    pub fn is_empty(&self) -> bool {
        self.folder.is_none() && self.progress.state == RunPhase::Idle
    }

    pub fn has_own_trainer(&self) -> bool {
        self.trainer.as_ref().is_some_and(|trainer| trainer.is_own)
    }

    /// Returns true if the CPU generates texts: a run that trains has planned for the memory of its
    /// device. The worker of a page refuses texts meanwhile, because it has one device.
    pub fn generates_on_cpu(&self) -> bool {
        !IS_PAGE && self.trainer.is_some()
    }
}

/// The runs of the chosen folder, and a browser's stored data and models.
#[derive(Default)]
pub(super) struct Library {
    pub runs: Vec<RunSummary>,
    /// Runs whose curves are drawn with the shown run's curves, in the order of their colors.
    pub overlays: Vec<Overlay>,
    /// Settings in which the shown run and the last overlay differ, as key and both values; `None`
    /// until loaded.
    pub difference: Option<Vec<(&'static str, String, String)>>,
    /// Crashed runs that are no longer offered, with their time of change: a new crash is offered
    /// again.
    pub dismissed: Vec<(PathBuf, Duration)>,
    pub dialog: Option<Dialog>,
    pub data: Vec<StoredData>,
    pub models: Vec<StoredModel>,
    pub usage: StorageUsage,
}

impl Library {
    /// Returns the display name of a run, else the name of its folder.
    pub fn title<'a>(&'a self, run: &'a Path) -> &'a str {
        let listed = self.runs.iter().find(|known| known.path == run).map(RunSummary::title);
        listed.or_else(|| run.file_name()?.to_str()).unwrap_or_default()
    }
}
