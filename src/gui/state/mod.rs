//! The state of the window. Replies and events change it, and panels draw and edit it.

mod charts;
mod chat;
mod data;
mod dialogs;
mod fit;
mod form;
mod inside;
mod library;
mod prompt;
mod samples;
mod settings;
mod shown_run;
mod times;

use crate::protocol::{DeviceLine, Obstacle};

pub use charts::{ChartState, VisibleRange, XAxis};
pub use chat::ChatState;
pub use data::{DataJob, DataState, Paste};
pub use dialogs::{Closing, Dialogs, HelpState, PathEntry, RunDialog};
pub use fit::{FitState, Planned, in_words};
pub use form::{SettingsForm, is_same, values};
pub use inside::InsideState;
pub use library::{Library, Overlay};
pub use prompt::{PartialText, PromptState, TextOptions};
pub use samples::{SampleState, SampleView, Selection};
pub use settings::{AUTO, Settings, WhenClosed};
pub use shown_run::ShownRun;
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
}
