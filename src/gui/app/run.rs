//! The run that is shown, and the trainer.

use std::path::{Path, PathBuf};

use super::actions::absolute;
use super::{App, WhenClosed};
use crate::gui::chat::ChatState;
use crate::gui::layout::{self, Pane};
use crate::gui::platform::IS_PAGE;
use crate::gui::samples::SampleState;
use crate::protocol::{Progress, Request, RunPhase, View};
use crate::runs::Tail;
use crate::worker::{Ended, Launch, Start, Trainer};

impl App {
    /// Requests the record of a run, to show it.
    pub(super) fn request_run(&mut self, run: PathBuf) {
        self.requested.run = Some(run.clone());
        self.client.send(Request::ReadRun { run, view: View::Main });
    }

    /// Shows a run as it is recorded, and follows it if another process trains it.
    pub(super) fn show(&mut self, run: PathBuf, mut progress: Progress, tail: Tail) {
        if self.shown.as_ref() != Some(&run) {
            self.end_text();
            self.samples.chat.clear();
        }
        progress.run = Some(run.clone());
        self.progress = progress;
        let followed = self.client.follow(&run, tail);
        let is_followed = followed.is_some();
        if !self.has_own_run() {
            self.trainer = followed;
        }
        match self.trainer.as_ref().filter(|trainer| trainer.run() == run) {
            Some(trainer) if !trainer.is_set_up() => self.progress.starting(),
            Some(_) => {}
            None if is_followed => {}
            None if self.progress.has_ended() || self.progress.state == RunPhase::Idle => {}
            None => self.progress.interrupted(),
        }
        self.has_finished = false;
        // Its curves are drawn in any case.
        self.overlays.retain(|(overlaid, _)| *overlaid != run);
        self.runs_state.overlaid.retain(|overlaid| *overlaid != run);
        self.shown = Some(run.clone());
        self.request_model();
        if self.progress.state == RunPhase::Idle {
            // A model without a record can only be tried.
            layout::bring_up(&mut self.settings.tree, Pane::Samples);
            self.focus_prompt();
        }
        if std::mem::take(&mut self.options.resume) && self.progress.state == RunPhase::Interrupted
        {
            self.continue_run(run);
        }
    }

    /// Returns true if a run that this window has started trains.
    pub(super) fn has_own_run(&self) -> bool {
        self.trainer.as_ref().is_some_and(Trainer::is_own)
    }

    /// Returns true if another run can start, and warns if not. Stops following the run of another
    /// process.
    fn can_start(&mut self) -> bool {
        if self.has_own_run() {
            self.warn("a run of this window is training: stop it first".into());
            return false;
        }
        self.trainer = None;
        true
    }

    /// Ends the text that the shown run generates: another run is about to be shown, or this one to
    /// train.
    fn end_text(&mut self) {
        let is_writing = self.samples.chat.is_writing();
        self.samples.chat.take_back();
        if self.samples.prompt.writing.take().is_some() || is_writing {
            self.client.send(Request::StopSample);
        }
    }

    /// Requests what the shown model can do.
    pub(super) fn request_model(&mut self) {
        if let Some(path) = self.shown.clone() {
            self.client.send(Request::DescribeModel { path });
        }
    }

    /// Gives the field for a prompt or a message the focus, whichever is shown.
    pub(super) fn focus_prompt(&mut self) {
        let SampleState { prompt, chat, .. } = &mut self.samples;
        match chat.is_open {
            true => chat.focus = true,
            false => prompt.focus = true,
        }
    }

    /// Starts the run that the form describes, in a new folder.
    pub(super) fn start_run(&mut self) {
        let form = &self.settings.form;
        // A run of this window holds memory, which is not why no other can start.
        let refusal = if self.has_own_run() { None } else { self.fit.refusal(form) };
        if let Some(problem) = form.problem().or(refusal.map(|refusal| refusal.reason)) {
            self.warn(format!("not started: {problem}"));
            return;
        }
        let form = &self.settings.form;
        let (Ok(config), flags) = (form.config().cloned(), form.flags()) else { return };
        if !self.can_start() {
            return;
        }
        let Some(run) = self.new_run_folder() else { return };
        self.progress = Progress::default();
        self.requested.run = None;
        self.launch(absolute(&run), Start::New { flags, config: Box::new(config) });
    }

    /// The folder that `out_dir` names, else one that does not exist yet.
    fn new_run_folder(&self) -> Option<PathBuf> {
        let form = &self.settings.form;
        let name = form.run_name();
        let numbered = |number: u32| self.settings.runs.join(format!("{name}-{number}"));
        let exists = |run: &Path| run.exists() || self.runs.iter().any(|known| known.path == run);
        match form.text("out_dir").trim() {
            "" => (1..).map(numbered).find(|run| !exists(run)),
            // The storage of a page has one folder for all runs.
            name if IS_PAGE => Some(self.settings.runs.join(name.replace('/', "-"))),
            path => Some(PathBuf::from(path)),
        }
    }

    /// Continues a run from its newest checkpoint.
    pub(super) fn continue_run(&mut self, run: PathBuf) {
        if !self.can_start() {
            return;
        }
        let is_shown = self.shown.as_ref() == Some(&run);
        if !is_shown {
            self.progress = Progress::default();
        }
        self.launch(run.clone(), Start::Resume);
        if !is_shown {
            self.request_run(run);
        }
    }

    fn launch(&mut self, run: PathBuf, start: Start) {
        let device = self.setup.device.clone();
        let stop_on_close = self.settings.when_closed == WhenClosed::Stop;
        self.end_text();
        self.progress.starting();
        self.has_finished = false;
        match self.client.start(&run, Launch { start, device, stop_on_close }) {
            Ok(trainer) => self.trainer = Some(trainer),
            Err(error) => self.fail(format!("the trainer could not be started: {error}")),
        }
        if self.shown.as_ref() != Some(&run) {
            self.samples.chat = ChatState::default();
        }
        self.shown = Some(run);
        self.listed = None;
    }

    /// Takes the end of the trainer. It says by itself why it ended, unless it was killed.
    pub(super) fn ended(&mut self, ended: Ended) {
        let Some(trainer) = self.trainer.take() else { return };
        self.listed = None;
        // Other memory of the device is free now.
        self.requested.device = None;
        let is_shown = self.shown.as_deref() == Some(trainer.run());
        if is_shown && self.progress.has_ended() {
            return;
        }
        let name = trainer.run().display();
        let text = match (ended.code, ended.output.trim()) {
            (None, _) => format!("the process of {name} was killed"),
            (Some(code), "") => format!("the trainer of {name} exited with code {code}"),
            (Some(_), output) => output.to_string(),
        };
        match (is_shown, ended.code) {
            (true, _) => self.fail(text),
            (false, Some(0)) => {}
            (false, None) => self.warn(text),
            (false, Some(_)) => self.warn(format!("{name}: {text}")),
        }
    }
}
