//! The state of the window: which room is shown, and a value for each room. Replies and events change it,
//! and rooms draw and edit it.

mod charts;
mod chat;
mod dialogs;
mod fit;
mod form;
mod prompt;
mod rooms;
mod samples;
mod start;
mod times;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::target::IS_PAGE;
use crate::protocol::{
    DeviceLine, Obstacle, Progress, RunPhase, StorageUsage, StoredData, StoredModel,
};
use crate::runs::RunSummary;
use crate::worker::Trainer;

pub use charts::{ChartState, VisibleRange, XAxis};
pub use chat::ChatState;
pub use dialogs::{Catalog, Closing, Dialogs, HelpState, PathEntry, RunDialog};
pub use fit::{FitState, Planned, Refusal, in_words};
pub use form::{ADAPTER_RANK, SettingsForm, is_same, values};
pub use prompt::{PromptState, TextOptions, model_before};
pub use rooms::{Notice, Room, RunRoom, RunTab};
pub use samples::{Before, InsideState, SampleState, SampleView, Selection};
pub use start::{DataJob, Paste, StartState, What};
pub use times::TimeState;

#[derive(Default)]
pub struct Shared {
    pub room: Room,
    pub settings: Settings,
    pub library: Library,
    pub devices: Vec<DeviceLine>,
    pub obstacles: Vec<Obstacle>,
    /// What has happened besides the run, the newest last, until a person has closed it.
    pub notices: Vec<Notice>,
    pub start: StartState,
    /// The run or model of the rooms `Run` and `Model`.
    pub shown: ShownRun,
    pub run: RunRoom,
    pub samples: SampleState,
    pub dialogs: Dialogs,
    /// True if the window system has no drag and drop.
    pub no_drop: bool,
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
        problem.or_else(|| self.start.fit.refusal(form))
    }

    /// Begins to set up another kind of run, with other data.
    pub fn set_up(&mut self, what: What) {
        let Self { start, settings, .. } = self;
        if start.what == Some(what) {
            return;
        }
        if start.what == Some(What::FineTune) {
            settings.replace_form(SettingsForm::default());
            start.times = TimeState::default();
        }
        settings.form.set("data", "");
        start.what = Some(what);
    }

    /// Returns true if a model is to be fine-tuned, and none is chosen yet.
    pub fn lacks_model(&self) -> bool {
        self.start.what == Some(What::FineTune) && self.settings.form.model().is_none()
    }

    /// Returns true if it is known what to train and how long. A time is chosen for the data that were read.
    pub fn is_set_up(&self) -> bool {
        let times = &self.start.times;
        let is_read = matches!(self.settings.form.data, Some(Ok(_)));
        self.start.what.is_some() && times.is_answered() && (is_read || times.by_settings)
    }

    /// Tells a person what has happened. A notice that is shown already is not repeated.
    pub fn tell(&mut self, notice: Notice) {
        self.notices.retain(|known| known.text != notice.text);
        self.notices.push(notice);
        let excess = self.notices.len().saturating_sub(MOST_NOTICES);
        self.notices.drain(..excess);
    }
}

/// More notices would leave no room for what they are about.
const MOST_NOTICES: usize = 3;

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
    /// Models without a run that were opened, the newest first.
    pub opened: Vec<PathBuf>,
    pub when_closed: WhenClosed,
}

/// The most models that are listed because they were opened.
const MOST_OPENED: usize = 20;

impl Settings {
    /// Lists a model without a run.
    pub fn list(&mut self, model: PathBuf) {
        if !self.opened.contains(&model) {
            self.opened.insert(0, model);
            self.opened.truncate(MOST_OPENED);
        }
    }
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
            opened: Vec::new(),
            when_closed: WhenClosed::default(),
        }
    }
}

impl Settings {
    /// Replaces the form. What is known about its data stays, if that is the same.
    pub fn replace_form(&mut self, mut form: SettingsForm) {
        if form.text("data") == self.form.text("data") {
            form.data = self.form.data.take();
        }
        self.form = form;
    }

    /// Returns the folder of data: next to the folder of the runs, as nanoGPT's `data` is next to its
    /// `out`.
    pub fn data_folder(&self) -> PathBuf {
        self.runs.parent().unwrap_or(Path::new("")).join("data")
    }
}

/// The run or model that is shown, and the trainer.
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
    pub dialog: Option<RunDialog>,
    pub data: Vec<StoredData>,
    pub models: Vec<StoredModel>,
    pub usage: StorageUsage,
}

impl Library {
    /// Returns the display name of a run, else the name of its folder.
    pub fn title<'a>(&'a self, run: &'a Path) -> &'a str {
        let listed = self.runs.iter().find(|known| known.path == run).map(RunSummary::title);
        listed.unwrap_or_else(|| name_of(run))
    }
}

/// Returns the name of a folder; of a model in the cache of the Hugging Face Hub, the model's name.
pub fn name_of(folder: &Path) -> &str {
    let names = || folder.ancestors().filter_map(|folder| folder.file_name()?.to_str());
    let of_hub = names().find_map(|name| name.strip_prefix("models--")?.rsplit("--").next());
    of_hub.or_else(|| names().next()).unwrap_or_default()
}

/// A run that is compared with the shown one.
pub struct Overlay {
    pub run: PathBuf,
    pub name: String,
    /// The source of its curves; empty until it was read.
    pub progress: Progress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_downloaded_model_has_its_name_and_not_that_of_its_snapshot() {
        let downloaded = "/home/me/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de";
        assert_eq!(name_of(Path::new(downloaded)), "Qwen3-0.6B");
        assert_eq!(name_of(Path::new("out/foxes-1")), "foxes-1");
    }
}
