//! The state of the window. Replies and events change it, and panels draw and edit it.

mod charts;
mod chat;
mod data;
mod dialogs;
mod fit;
mod form;
mod inside;
mod prompt;
mod samples;
mod times;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::target::IS_PAGE;
use crate::protocol::{
    DeviceLine, Obstacle, Progress, RunPhase, StorageUsage, StoredData, StoredModel,
};
use crate::runs::RunSummary;
use crate::worker::Trainer;

pub use charts::{ChartState, VisibleRange, XAxis};
pub use chat::ChatState;
pub use data::{DataJob, DataState, Paste};
pub use dialogs::{Closing, Dialogs, HelpState, PathEntry, RunDialog};
pub use fit::{FitState, Planned, Refusal, in_words};
pub use form::{SettingsForm, is_same, values};
pub use inside::InsideState;
pub use prompt::{PromptState, TextOptions};
pub use samples::{SampleState, SampleView, Selection};
pub use times::TimeState;

#[derive(Default)]
pub struct Shared {
    pub settings: Settings,
    pub shown: ShownRun,
    pub library: Library,
    pub devices: Vec<DeviceLine>,
    pub obstacles: Vec<Obstacle>,
    pub data: DataState,
    pub times: TimeState,
    pub fit: FitState,
    pub samples: SampleState,
    pub log: LogView,
    pub dialogs: Dialogs,
    /// Search text for the settings; empty shows all.
    pub setting_filter: String,
    /// True if the window system has no drag and drop.
    pub no_drop: bool,
}

/// The lines of the log that are drawn.
#[derive(Default)]
pub struct LogView {
    pub only_problems: bool,
    pub earlier_pages: usize,
}

impl Shared {
    pub fn shown_name(&self) -> Option<&str> {
        self.shown.folder.as_deref().map(|folder| self.library.title(folder))
    }

    /// Returns why the run of the form cannot start. `None` during a run of this window, because its memory is
    /// not the reason.
    pub fn refusal(&mut self) -> Option<Refusal> {
        if self.shown.has_own_trainer() {
            return None;
        }
        let form = &self.settings.form;
        let problem = form.problem().map(|reason| Refusal { reason, fixes: Vec::new() });
        problem.or_else(|| self.fit.refusal(form))
    }
}

/// The value of `--device` and `--vram_budget` that chooses automatically.
pub const AUTO: &str = "auto";

/// Settings that outlive the window.
#[derive(Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub form: SettingsForm,
    /// A value of `--device`.
    pub device: String,
    pub charts: ChartState,
    /// The folder in which runs are created and listed. Empty lists none.
    pub runs: PathBuf,
    pub when_closed: WhenClosed,
}

/// What happens to a run when its window closes.
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

/// The run that the panels show, and the trainer.
#[derive(Default)]
pub struct ShownRun {
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

    /// Returns true if the CPU generates text, because a run that trains has planned for the memory of its
    /// device. The worker of a page, which has one device, generates no text meanwhile.
    pub fn generates_on_cpu(&self) -> bool {
        !IS_PAGE && self.trainer.is_some()
    }
}

/// The runs of the chosen folder, and a browser's stored data and models.
#[derive(Default)]
pub struct Library {
    pub runs: Vec<RunSummary>,
    /// Runs with curves next to the shown run's, in the order of their colors.
    pub overlays: Vec<Overlay>,
    /// Settings in which the shown run and the last overlay differ, as key and both values; `None`
    /// until loaded.
    pub difference: Option<Vec<(&'static str, String, String)>>,
    /// Crashed runs that are no longer offered, with their time of change: a new crash is offered
    /// again.
    pub dismissed: Vec<(PathBuf, Duration)>,
    pub dialog: Option<RunDialog>,
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

/// A run that is compared with the shown one.
pub struct Overlay {
    pub run: PathBuf,
    pub name: String,
    /// The source of its curves; empty until it was read.
    pub progress: Progress,
}
