//! The next run, while it is being set up.

use super::data::DataState;
use super::fit::FitState;
use super::form::SettingsForm;
use super::times::TimeState;

#[derive(Default)]
pub struct StartState {
    pub what: Option<What>,
    pub data: DataState,
    pub times: TimeState,
    pub fit: FitState,
    /// Search text for the settings; empty shows all.
    pub setting_filter: String,
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
