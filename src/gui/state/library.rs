//! The runs of the chosen folder, and a browser's stored data and models.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::dialogs::RunDialog;
use crate::protocol::{Progress, StorageUsage, StoredData, StoredModel};
use crate::runs::RunSummary;

#[derive(Default)]
pub struct Library {
    pub runs: Vec<RunSummary>,
    /// Runs whose curves are drawn with the shown run's curves, in the order of their colors.
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

/// A run whose curves are drawn with the shown run's curves.
pub struct Overlay {
    pub run: PathBuf,
    pub name: String,
    /// The source of its curves; empty until it was read.
    pub progress: Progress,
}
