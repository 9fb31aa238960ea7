//! What the window shows beside the list of runs.

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
    pub log: LogView,
    /// A budget that was set by hand but not yet sent to the run.
    pub unsent_budget: Option<String>,
    /// The number of lines of the log whose warnings a person has closed.
    pub closed_warnings: usize,
}

/// What is shown below the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunTab {
    #[default]
    Samples,
    Log,
    Rate,
    Speed,
    Memory,
    Plan,
    Compare,
}

impl RunTab {
    pub const ALL: [Self; 7] = [
        Self::Samples,
        Self::Log,
        Self::Rate,
        Self::Speed,
        Self::Memory,
        Self::Plan,
        Self::Compare,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Samples => "Samples",
            Self::Log => "Log",
            Self::Rate => "Learning rate",
            Self::Speed => "Speed",
            Self::Memory => "Memory",
            Self::Plan => "Plan and settings",
            Self::Compare => "Differences",
        }
    }
}

/// The lines of the log that are drawn.
#[derive(Default)]
pub struct LogView {
    pub only_problems: bool,
    pub earlier_pages: usize,
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
