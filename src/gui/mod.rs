//! The window: drain events, apply them, draw, send commands.
//!
//! Each panel is a function of what is known (`Progress`, the form, the runs) that draws and gives an
//! [`Intent`]: panels change nothing but how they look. [`App`] carries intents out. What
//! takes time (devices, data, runs on the disk) is looked up elsewhere: what differs between a program
//! with processes, threads and a disk and a page with a worker lies behind `host`.

mod app;
mod charts;
mod control;
mod fit;
mod form;
mod layout;
mod log;
mod runs;
mod samples;
mod setup;
mod theme;
#[cfg_attr(
    target_arch = "wasm32",
    allow(dead_code, reason = "a page gives a trainer less to know")
)]
mod trainer;
#[cfg_attr(target_arch = "wasm32", allow(dead_code, reason = "a page finds less"))]
mod work;

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod desktop;

#[cfg(target_arch = "wasm32")]
use browser as host;
#[cfg(not(target_arch = "wasm32"))]
use desktop as host;

use std::path::PathBuf;

use crate::protocol::Command;

pub use app::App;
#[cfg(not(target_arch = "wasm32"))]
pub use desktop::{GuiError, open};

/// How the window begins.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether to train the demo at once.
    pub demo: bool,
    /// Whether to continue the run that a page shows at first, if it was interrupted.
    pub resume: bool,
    /// A file for a picture of the window, after which it closes.
    pub screenshot: Option<PathBuf>,
    /// Texts to prepare, a data folder, or a run to show.
    pub inputs: Vec<PathBuf>,
    /// Whether to look at nothing outside: neither devices, nor data, nor former runs. What is drawn
    /// then depends on nothing but what the window is told.
    pub still: bool,
}

/// What a panel asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// Something for the trainer.
    Tell(Command),
    /// Begin the run that the form describes.
    Start,
    /// Continue a run that lies on the disk, from its newest checkpoint.
    Continue(PathBuf),
    /// Show a run, and follow it if a process trains in it.
    Show(PathBuf),
    /// Draw the curves of a run beside the present one, or no longer.
    Overlay(PathBuf),
    /// Fill the form with the configuration of a run, to begin a new one from this checkpoint.
    Fork(PathBuf),
    /// Write a checkpoint as a Hugging Face folder; where to is asked.
    Export(PathBuf),
    /// Ask for texts, and prepare them.
    ChooseTexts,
    /// Ask for a folder with tokens or with texts.
    ChooseData,
    /// Ask for a folder with runs.
    ChooseRuns,
    /// Turn a text from the clipboard into tokens and put them into the form.
    PrepareText(String),
    /// Put text on the clipboard.
    Copy(String),
    /// Show a folder in the system's file manager.
    OpenFolder(PathBuf),
    /// Remove a run or a model from the storage of a page. A program leaves the disk alone.
    Remove(PathBuf),
}
