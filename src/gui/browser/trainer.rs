//! The worker that trains, as the window sees it: events out, commands in.

use std::io;
use std::path::{Path, PathBuf};

use super::Work;
use super::line::Line;
use crate::gui::trainer::{Begin, Ended};
use crate::protocol::{Command, Event};
use crate::web::messages::{Ask, Reply};

/// A run that is going on in the page's worker.
pub(in crate::gui) struct Trainer {
    /// The run's folder in the worker's storage.
    pub run: PathBuf,
    /// Whether it is set up.
    pub started: bool,
    line: Line,
    ended: bool,
}

/// What gives the events of somebody else's run: pages follow none.
pub(in crate::gui) struct Tail;

/// Whether somebody else trains in a run folder: not in a page's storage.
pub(in crate::gui) fn is_training(_: &Path) -> bool {
    false
}

impl Trainer {
    /// Has the worker begin or continue a run.
    pub fn start(run: &Path, begin: &Begin, work: &Work) -> io::Result<Self> {
        let line = work.line();
        let config = begin.form.as_ref().and_then(|form| form.config().ok());
        line.ask(&Ask::Start {
            run: run.display().to_string(),
            config: config.cloned().map(Box::new),
            resume: begin.form.is_none(),
            less: None,
        });
        Ok(Self { run: run.to_path_buf(), started: false, line, ended: false })
    }

    /// Never called: [`is_training`] says so.
    pub fn attach(run: &Path, _: Tail, work: &Work) -> Self {
        let (run, line) = (run.to_path_buf(), work.line());
        Self { run, started: true, line, ended: true }
    }

    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let mut found = Vec::new();
        for reply in self.line.of_the_run() {
            match reply {
                Reply::Event { run, event } if Path::new(&run) == self.run => found.push(*event),
                Reply::Ended { run } if Path::new(&run) == self.run => self.ended = true,
                _ => {}
            }
        }
        self.started |= found.iter().any(|event| matches!(event, Event::Start { .. }));
        found
    }

    /// Passes a command on.
    ///
    /// # Errors
    /// Never: the worker listens, or another takes its place.
    pub fn tell(&mut self, command: &Command) -> io::Result<()> {
        self.line.ask(&Ask::Tell { command: command.clone() });
        Ok(())
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<Ended> {
        let talk = "the run ended and has not said why".to_string();
        self.ended.then_some(Ended { code: Some(0), talk, resumable: false })
    }

    /// Whether this window has started it.
    pub fn is_own(&self) -> bool {
        true
    }
}
