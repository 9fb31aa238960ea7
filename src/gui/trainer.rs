//! How a run is begun, and how it ends, as the window sees it.

use super::form::Form;

/// What a trainer begins with.
pub(super) struct Begin {
    /// What a new run is to do; `None` continues a run from its newest checkpoint.
    pub form: Option<Form>,
    /// The device as `--device` takes it.
    pub device: String,
    /// Whether the run stops when the window is gone.
    pub ends_with_window: bool,
}

/// How a trainer of this window's ended.
pub(super) struct Ended {
    /// Its exit code; `None` if it was ended from outside.
    pub code: Option<i32>,
    /// What it said last, beside events.
    pub talk: String,
    /// Whether the run has a checkpoint.
    pub resumable: bool,
}
