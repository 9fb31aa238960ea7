//! The actions that a room, a shortcut, a dialog or the system requests.

use std::path::PathBuf;

use super::state::{Catalog, Room};
use crate::protocol::{Command, ExportFormat, Request, SampleInput, Texts};

#[derive(Debug, PartialEq)]
#[allow(dead_code, reason = "some come only from a page, others only from a program")]
pub enum Intent {
    /// Sends a command to the shown run.
    Send(Command),
    /// Sends a command to the run that this window has started, if any.
    SendToOwnRun(Command),
    Ask(Request),
    /// Starts the run that is set up, once it is shown.
    Start,
    /// Shows the room for a new run.
    New,
    Enter(Room),
    /// Sets up a run that begins with the weights of a run or a model.
    FineTune(PathBuf),
    /// Shows the list of texts or models to fetch.
    List(Catalog),
    /// Starts the demo, and leaves the run that is set up as it is.
    Demo,
    Continue(PathBuf),
    /// Shows a run or a model, and follows the run if it trains in another process.
    Show(PathBuf),
    /// Draws the curves of these runs, and of no others, with the shown run's curves.
    Overlay(Vec<PathBuf>),
    /// Shows the model of the shown run, to write to it.
    Try,
    /// Generates text with the shown run or model, which does not train.
    Generate(SampleInput),
    Choose(FileChoice),
    /// Asks for a path in the window, because the system has no dialog.
    TypePath(FileChoice),
    UseData(PathBuf),
    /// Shows that text is being read.
    Reading(String),
    /// Tokenizes texts and puts the data into the form.
    Prepare(Texts),
    ListRuns(PathBuf),
    Override(Overrides),
    /// Warns that a file could not be read, for this reason.
    Unreadable(String),
    OpenFolder(PathBuf),
    /// Closes the window without a question.
    Close,
}

/// The kind of path that a file dialog returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChoice {
    Texts,
    /// A folder with tokens or texts.
    DataFolder,
    /// A folder with runs.
    RunsFolder,
    /// The folder or file of a model. On a page, its zip.
    Model,
    /// The same, for a run that begins with its weights.
    Base,
    /// A folder for this checkpoint. On a page, a zip among the browser's downloads.
    Export(PathBuf, ExportFormat),
}

impl FileChoice {
    pub fn title(&self) -> &'static str {
        match self {
            Self::Texts | Self::DataFolder => "Data to train on",
            Self::RunsFolder => "Folder with runs",
            Self::Model | Self::Base => "Folder of a model",
            Self::Export(_, ExportFormat::Gguf) => "Folder for the file",
            Self::Export(..) => "Empty folder for the model",
        }
    }
}

/// Settings from environment variables and flags, or from the page's URL.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    pub preset: Option<String>,
    /// A value of `--device`.
    pub device: Option<String>,
    pub settings: Vec<(String, String)>,
    /// True if they replace everything that was typed before.
    pub replace_all: bool,
    /// Errors of the parts that could not be read.
    pub problems: Vec<String>,
}
