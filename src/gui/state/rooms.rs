//! What the window shows beside the list of runs.

use crate::config::words;
use crate::protocol::Level;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// The next run: what to train, how long, and whether it fits.
    #[default]
    Start,
    /// The training of the shown run.
    Run,
    /// The model of the shown run, or a model without a run.
    Model,
}

/// The view of the shown run.
#[derive(Default)]
pub struct RunRoom {
    pub tab: RunTab,
    /// True if the log has warnings and errors alone.
    pub only_problems: bool,
    /// How often earlier lines of the log were requested.
    pub earlier_pages: usize,
    /// A budget that was set by hand but not yet sent to the run.
    pub unsent_budget: Option<String>,
    /// The number of lines of the log whose warnings a person has closed.
    pub closed_warnings: usize,
}

words! {
    /// A tab below the loss.
    #[derive(Default)]
    pub enum RunTab {
        #[default]
        Samples = "Samples",
        Log = "Log",
        Rate = "Learning rate",
        Speed = "Speed",
        Memory = "Memory",
        Plan = "Plan and settings",
        Compare = "Differences",
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub level: Level,
    pub text: String,
    /// What to type in a terminal next; empty if nothing.
    pub commands: String,
}

impl Notice {
    pub fn new(level: Level, text: impl Into<String>) -> Self {
        Self { level, text: text.into(), commands: String::new() }
    }
}
