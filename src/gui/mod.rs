//! The window: drain events, apply them, draw, send commands.
//!
//! Each panel is a function of what is known (`Progress`, the form, the runs) that draws and gives an
//! [`Intent`]: panels change nothing but how they look. [`App`] carries intents out. What
//! takes time (devices, data, runs on the disk) is looked up on threads of its own.

mod app;
mod charts;
mod control;
mod fit;
mod form;
mod layout;
mod log;
mod open;
mod runs;
mod samples;
mod setup;
mod theme;
mod trainer;
mod work;

use std::path::PathBuf;

use crate::protocol::Command;

pub use app::App;
pub use open::{GuiError, Options, open};

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
    /// Turn texts into tokens and put them into the form.
    Prepare(Vec<PathBuf>),
    /// The same with a text from the clipboard.
    PrepareText(String),
    /// Put text on the clipboard.
    Copy(String),
    /// Show a folder in the system's file manager.
    OpenFolder(PathBuf),
}
