//! The dialogs of the window.

use std::path::PathBuf;

use crate::gui::intent::FileChoice;
use crate::runs::About;

#[derive(Default)]
pub struct Dialogs {
    pub help: HelpState,
    pub closing: Closing,
    /// A path that is being typed, on systems that have no file dialog.
    pub path: Option<PathEntry>,
    /// The list of what can be fetched, while it is open, and the name that is chosen in it.
    pub list: Option<Catalog>,
    pub listed: Option<&'static str>,
}

/// What the list of downloads shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Catalog {
    Texts,
    Models,
}

#[derive(Default)]
pub struct HelpState {
    pub is_open: bool,
    /// True once the details were requested.
    pub is_requested: bool,
    /// The details of this machine, once they were read.
    pub details: Option<String>,
}

/// A window that is to close while a run that it has started trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Closing {
    #[default]
    No,
    /// A dialog asks what happens to the run.
    Asking,
    Yes,
}

pub struct PathEntry {
    pub choice: FileChoice,
    pub text: String,
    /// Why the path was not taken.
    pub error: Option<String>,
}

/// A dialog about a stored run or model.
pub enum RunDialog {
    Describe { run: PathBuf, name: String, about: About },
    Remove { path: PathBuf, name: String },
}
