//! The window: takes events and replies, applies them, draws, and sends commands and requests.
//!
//! Each panel is a function of the state (`Progress`, the form, the runs) that draws it and returns
//! an [`Intent`]: panels change nothing but their view state. [`App`] carries out intents. Slow
//! work is a request to the `worker`; the differences between a program and a page are in
//! `platform`.

mod app;
mod charts;
mod chat;
mod control;
mod finished;
mod fit;
mod form;
mod layout;
mod log;
mod platform;
mod prompt;
mod runs;
mod samples;
mod selection;
mod setup;
#[cfg(test)]
mod tests;
mod theme;

use std::path::PathBuf;

use crate::data::Message;
use crate::protocol::Command;
use crate::runs::About;

pub use app::App;
#[cfg(windows)]
pub(crate) use platform::entry::explorer;
pub use platform::entry::*;
pub use prompt::TextOptions;

/// Options of the window.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Starts a demo run.
    pub demo: bool,
    /// Continues the run that a page shows first, if it was interrupted.
    pub resume: bool,
    /// Writes a screenshot of the window to this file and closes the window.
    pub screenshot: Option<PathBuf>,
    /// Texts to prepare, a data folder, or a run to show.
    pub inputs: Vec<PathBuf>,
    /// Reads neither devices, nor data, nor runs by itself: what is drawn depends only on what the
    /// window is given.
    pub still: bool,
}

/// An action that a panel requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// Sends a command to the trainer.
    Send(Command),
    /// Starts the run that the form describes.
    Start,
    /// Continues a run from its newest checkpoint.
    Continue(PathBuf),
    /// Shows a run, and follows it if it trains in another process.
    Show(PathBuf),
    /// Draws the curves of these runs, and no others, with those of the shown run.
    Overlay(Vec<PathBuf>),
    /// Brings up the prompt, to generate text with the shown run.
    Try,
    /// Generates a text with the shown run or model, which does not train.
    GenerateText {
        /// The beginning of the text.
        prompt: String,
        /// The options.
        options: TextOptions,
    },
    /// Has the shown run or model answer the last message of a conversation.
    Answer {
        /// The conversation.
        messages: Vec<Message>,
        /// The options.
        options: TextOptions,
    },
    /// Ends the text that is being generated.
    StopText,
    /// Fills the form with the configuration of a run, for a new one that begins with its weights.
    Fork(PathBuf),
    /// Exports a checkpoint as a Hugging Face folder; a dialog asks for the place.
    Export(PathBuf),
    /// Opens a dialog for texts, which are then prepared.
    ChooseTexts,
    /// Opens a dialog for a folder with tokens or texts.
    ChooseData,
    /// Opens a dialog for a folder with runs.
    ChooseRuns,
    /// Opens a dialog for the folder of a model, to show it.
    ChooseModel,
    /// Tokenizes a text from the clipboard and puts the data into the form.
    PrepareText(String),
    /// Copies a text to the clipboard.
    Copy(String),
    /// Shows a folder in the system's file manager.
    OpenFolder(PathBuf),
    /// Sets the display name and the note of a run.
    Describe {
        /// The run.
        run: PathBuf,
        /// Its display name and note.
        about: About,
    },
    /// Moves a run to the trash. In a browser, deletes a run or a model from its storage.
    Remove(PathBuf),
}
