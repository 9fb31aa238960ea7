//! The window: takes events and replies, applies them, draws, and sends commands and requests.
//!
//! A panel is a function that draws the state that all panels share and returns an `Intent`.
//! [`App`] carries out intents. Slow work is a request to the `worker`; the differences between a
//! program and a page are in `platform`.

mod app;
mod charts;
mod control;
mod conversation;
mod export;
mod finished;
mod fit;
mod form;
#[cfg(not(target_arch = "wasm32"))]
mod get_list;
mod inside;
mod layout;
mod log;
mod platform;
mod prompt;
mod run_list;
mod run_tab;
mod samples;
mod setup;
mod shared;
#[cfg(test)]
mod tests;
mod theme;
mod tiles;
mod token_text;
mod welcome;
mod widgets;

use std::path::PathBuf;

use crate::protocol::{Command, Request, SampleInput, Texts};
use platform::{Choice, Overrides};
use shared::Shared;

pub use app::App;
#[cfg(windows)]
pub(crate) use platform::explorer;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use platform::front_end;
pub use platform::open;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Starts a demo run.
    pub demo: bool,
    /// Continues the run that a page shows first, if it was interrupted.
    pub resume: bool,
    /// Writes a screenshot of the window to this file and closes the window.
    pub screenshot: Option<PathBuf>,
    /// The device to train on, as `--device` takes it. `None` takes the environment's, else the last
    /// window's.
    pub device: Option<String>,
    /// Starts runs without a test of the device's kernels.
    pub no_self_test: bool,
    /// Texts to prepare, a data folder, or a run to show.
    pub inputs: Vec<PathBuf>,
    /// Reads neither devices, nor data, nor runs by itself: what is drawn depends only on what the
    /// window is given.
    pub still: bool,
}

/// The value of `--device` and `--vram_budget` that chooses automatically.
const AUTO: &str = "auto";

/// An action that a panel, a shortcut, a dialog or the system requests.
#[derive(Debug, PartialEq)]
#[allow(dead_code, reason = "some come only from a page, others only from a program")]
enum Intent {
    Send(Command),
    Ask(Request),
    Start,
    /// Shows the list of texts and models to fetch.
    ListTexts,
    /// Replaces the settings of the form by the demo's, and starts it.
    Demo,
    Continue(PathBuf),
    /// Shows a run or a model, and follows the run if it trains in another process.
    Show(PathBuf),
    /// Draws the curves of these runs, and of no others, with the shown run's curves.
    Overlay(Vec<PathBuf>),
    /// Brings up the prompt, to generate text with the shown run.
    Try,
    /// Generates a text with the shown run or model, which does not train.
    Generate(SampleInput),
    Choose(Choice),
    /// Asks for a path in the window, because the system has no dialog.
    TypePath(Choice),
    UseData(PathBuf),
    /// Shows that a text is being read.
    Reading(String),
    /// Tokenizes texts and puts the data into the form.
    Prepare(Texts),
    /// Fetches what `wgpt get` takes.
    #[cfg(not(target_arch = "wasm32"))]
    Get(String),
    ListRuns(PathBuf),
    Override(Overrides),
    /// Warns that a file could not be read, for this reason.
    Unreadable(String),
    OpenFolder(PathBuf),
    /// Closes the window without a question.
    Close,
}
