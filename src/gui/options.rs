//! How a window is opened.

use std::path::PathBuf;

use super::intent::Overrides;

/// The default takes nothing from the machine: neither its environment variables nor a folder of runs.
/// `environment` returns the options of a program or a page.
#[derive(Clone, Debug, Default)]
pub struct WindowOptions {
    /// Starts a demo run.
    pub demo: bool,
    /// Continues the run that a page shows first, if it was interrupted.
    pub resume: bool,
    /// Writes a screenshot of the window to this file and closes the window.
    pub screenshot: Option<PathBuf>,
    /// The theme; `None` for the system's or the last window's.
    pub is_dark: Option<bool>,
    /// Settings that replace the last window's.
    pub overrides: Overrides,
    /// Starts runs without a test of the device's kernels.
    pub no_self_test: bool,
    /// Texts to prepare, a data folder, or a run to show.
    pub inputs: Vec<PathBuf>,
    /// The folder in which runs are created and listed, unless the last window has chosen one. Empty
    /// lists none.
    pub runs: PathBuf,
    /// The window system has no drag and drop.
    pub no_drop: bool,
    /// Reads neither devices nor data by itself: what is drawn depends only on what the window is
    /// given.
    pub still: bool,
}
