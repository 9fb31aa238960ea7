//! The run that the panels show, and its trainer.

use std::path::PathBuf;

use crate::gui::target::IS_PAGE;
use crate::protocol::{Progress, RunPhase};
use crate::worker::Trainer;

#[derive(Default)]
pub struct ShownRun {
    pub folder: Option<PathBuf>,
    pub progress: Progress,
    /// The connection to the shown run, or to a run of this window that is not shown.
    pub trainer: Option<Trainer>,
    /// True from the end of the run until the notice about it is closed.
    pub has_finished: bool,
}

impl ShownRun {
    /// Returns true if a process trains the shown run.
    pub fn is_live(&self) -> bool {
        let trained = self.trainer.as_ref().map(|trainer| &trainer.run);
        trained.is_some() && trained == self.folder.as_ref()
    }

    /// Returns true if no run and no model is shown.
    pub fn is_empty(&self) -> bool {
        self.folder.is_none() && self.progress.state == RunPhase::Idle
    }

    pub fn has_own_trainer(&self) -> bool {
        self.trainer.as_ref().is_some_and(|trainer| trainer.is_own)
    }

    /// Returns true if the CPU generates texts: a run that trains has planned for the memory of its
    /// device. The worker of a page refuses texts meanwhile, because it has one device.
    pub fn generates_on_cpu(&self) -> bool {
        !IS_PAGE && self.trainer.is_some()
    }
}
