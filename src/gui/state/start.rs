//! The next run, while it is being set up.

use super::fit::FitState;
use super::form::SettingsForm;
use super::times::TimeState;
use crate::text::{bytes, bytes_of};

#[derive(Default)]
pub struct StartState {
    pub what: Option<What>,
    pub data: DataState,
    pub times: TimeState,
    pub fit: FitState,
    /// Search text for the settings; empty shows all.
    pub setting_filter: String,
}

/// The data of the next run.
#[derive(Default)]
pub struct DataState {
    /// No other data can be chosen meanwhile.
    pub job: Option<DataJob>,
    /// Data that was tokenized, and sentences about what was skipped in it.
    pub warnings: (String, Vec<String>),
    pub paste: Paste,
}

/// A download, or text that is being tokenized.
pub struct DataJob {
    pub name: String,
    /// From 0 to 1.
    pub share: f32,
    /// How much of a download has arrived.
    pub fetched: Option<String>,
}

impl DataJob {
    pub fn preparing(name: String, share: f32) -> Self {
        Self { name, share, fetched: None }
    }

    /// `done` is the number of bytes that have arrived, of `all` if the server tells.
    pub fn fetching(name: String, done: u64, all: Option<u64>) -> Self {
        let share = all.map_or(0.0, |all| done as f32 / all.max(1) as f32);
        let fetched = all.map_or_else(|| bytes(done), |all| bytes_of(done, all));
        Self { name, share, fetched: Some(fetched) }
    }
}

/// A request for the text on the clipboard.
#[derive(Default)]
pub struct Paste {
    /// When it was requested, in seconds of egui's clock.
    pub requested: Option<f64>,
    /// True if the last request found no text.
    pub was_empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A new model on a text.
    Text,
    /// A trained model on a text or on conversations.
    FineTune,
}

impl What {
    /// Returns what a form is about that was filled elsewhere; `None` without data.
    pub fn of(form: &SettingsForm) -> Option<Self> {
        match (form.model().is_some(), form.text("data").as_str()) {
            (true, _) => Some(Self::FineTune),
            (false, "") => None,
            (false, _) => Some(Self::Text),
        }
    }
}
