//! The run that is shown, and the process that trains.

use std::path::PathBuf;

use super::act::absolute;
use super::{App, WhenClosed};
use crate::gui::form::Form;
use crate::gui::host::{self, Tail, Trainer};
use crate::gui::trainer::{Begin, Ended};
use crate::progress::{Progress, State};
use crate::protocol::{Cause, Command, Setting};

impl App {
    /// Has a run looked up, to show it.
    pub(super) fn ask_for_run(&mut self, run: PathBuf) {
        self.asked.run = Some(run.clone());
        self.work.show(run);
    }

    /// Shows a run as its record tells it, and follows it if a process trains there.
    pub(super) fn show(&mut self, run: PathBuf, mut progress: Progress, tail: Tail) {
        progress.run = Some(run.clone());
        self.progress = progress;
        if !self.trains_itself() {
            let training = host::is_training(&run);
            self.trainer = training.then(|| Trainer::attach(&run, tail, &self.work));
        }
        match self.trainer.as_ref().filter(|trainer| trainer.run == run) {
            Some(trainer) if !trainer.started => self.progress.starting(),
            Some(_) => {}
            None if host::is_training(&run) => {}
            None if self.progress.has_ended() || self.progress.state == State::Idle => {}
            None => self.progress.interrupted(),
        }
        self.shown = Some(run.clone());
        if std::mem::take(&mut self.options.resume) && self.progress.state == State::Interrupted {
            self.continue_run(run);
        }
    }

    /// Whether a process of this window trains.
    pub(super) fn trains_itself(&self) -> bool {
        self.trainer.as_ref().is_some_and(Trainer::is_own)
    }

    /// Whether another run may begin; says so if not. A run that was merely followed is let go.
    fn may_begin(&mut self) -> bool {
        if self.trains_itself() {
            self.warn("a run of this window is going on: stop it first".into());
            return false;
        }
        self.trainer = None;
        true
    }

    /// Begins the run that the form describes, in a folder of its own.
    pub(super) fn start_run(&mut self) {
        if let Some(problem) = self.settings.form.problem() {
            self.warn(format!("not started: {problem}"));
            return;
        }
        if !self.may_begin() {
            return;
        }
        let name = self.settings.form.run_name();
        let folder = |number: u32| self.settings.runs.join(format!("{name}-{number}"));
        let typed = self.settings.form.text("out_dir");
        let run = match typed.trim() {
            "" => (1..).map(folder).find(|run| !self.work.is_taken(run)),
            // There all runs lie in one folder.
            typed if host::IS_PAGE => Some(self.settings.runs.join(typed.replace('/', "-"))),
            typed => Some(PathBuf::from(typed)),
        };
        let Some(run) = run else { return };
        let form = self.settings.form.clone();
        self.progress = Progress::default();
        (self.asked.run, self.revived) = (None, None);
        self.launch(absolute(&run), Some(form));
    }

    /// Continues a run from its newest checkpoint.
    pub(super) fn continue_run(&mut self, run: PathBuf) {
        if !self.may_begin() {
            return;
        }
        let known = self.shown.as_ref() == Some(&run);
        if !known {
            self.progress = Progress::default();
        }
        self.launch(run.clone(), None);
        if !known {
            self.ask_for_run(run);
        }
    }

    fn launch(&mut self, run: PathBuf, form: Option<Form>) {
        let device = self.setup.device.clone();
        let ends_with_window = self.settings.when_closed == WhenClosed::Stop;
        self.progress.starting();
        match Trainer::start(&run, &Begin { form, device, ends_with_window }, &self.work) {
            Ok(trainer) => self.trainer = Some(trainer),
            Err(error) => self.fail(format!("the trainer could not be started: {error}"), None),
        }
        self.shown = Some(run);
        self.looked_around = None;
    }

    /// Tells the trainer what the end of the window means.
    pub(super) fn set_leash(&mut self, stop: bool) {
        if self.trains_itself() {
            self.tell(&Command::Set(Setting::StopOnClose(stop)));
        }
    }

    /// The process of the run is gone.
    pub(super) fn ended(&mut self, ended: Ended) {
        let Some(trainer) = self.trainer.take() else { return };
        self.looked_around = None;
        // What is free now is no longer what it was.
        self.asked.device = None;
        let shown = self.shown.as_ref() == Some(&trainer.run);
        if shown && self.progress.has_ended() {
            return;
        }
        let name = trainer.run.display();
        let Some(code) = ended.code else {
            // Killed from outside. It is started again, as long as it gets further each time.
            let iteration = if shown { self.progress.iteration } else { 0 };
            let further = self.revived.is_none_or(|furthest| iteration > furthest);
            let text = format!("the training process of {name} was ended from outside");
            if ended.resumable && further {
                self.revived = Some(iteration);
                self.warn(format!("{text}; continuing from the last checkpoint"));
                self.continue_run(trainer.run);
            } else if shown {
                self.fail(text, Some(Cause::DeviceLost));
            } else {
                self.warn(text);
            }
            return;
        };
        let text = match ended.talk.trim() {
            "" => format!("the trainer of {name} ended with code {code}"),
            talk => talk.to_string(),
        };
        match (shown, code) {
            (true, _) => self.fail(text, None),
            (false, 0) => {}
            (false, _) => self.warn(format!("{name}: {text}")),
        }
    }
}
