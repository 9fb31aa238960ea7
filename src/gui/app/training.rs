//! Shows, starts and continues runs, and follows their trainers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eframe::egui;

use super::controller::Controller;
use crate::disk::absolute;
use crate::gui::state::{Room, RunRoom, SettingsForm, Shared, WhenClosed};
use crate::gui::target::IS_PAGE;
use crate::protocol::{
    Event, Progress, RunPhase, RunSettings, SelfTestOptions, StartRun, StopReason,
};
use crate::runs::Tail;
use crate::worker::Ended;

/// The time between two reads of the record of another process's run.
const FOLLOW: Duration = Duration::from_millis(200);

impl Controller {
    /// Applies the events of the trainer since the last frame, and notices its end.
    pub fn take_events(&mut self, ctx: &egui::Context) {
        let Some(trainer) = &mut self.shared.shown.trainer else { return };
        let (events, ended) = trainer.receive();
        // The end of a process is noticed even where nothing wakes the window for it.
        let again = if trainer.is_own { Duration::from_secs(1) } else { FOLLOW };
        ctx.request_repaint_after(again);
        if self.shared.shown.is_live() {
            self.apply(&events);
        } else {
            events.iter().for_each(|event| self.announce(event));
        }
        if let Some(ended) = ended {
            self.ended(ended);
        }
    }

    /// Says that the run of this window has ended while another one is shown.
    fn announce(&mut self, event: &Event) {
        let Shared { shown, library, .. } = &self.shared;
        let Some(trainer) = &shown.trainer else { return };
        let name = library.title(&trainer.run);
        let (title, text) = match event {
            Event::Error(error) => (format!("{name} has failed"), error.text.clone()),
            Event::Done { reason: StopReason::Finished | StopReason::MaxTime, .. } => {
                (format!("{name} has finished"), String::new())
            }
            _ => return,
        };
        self.platform.notify(&title, &text);
        self.note(&if text.is_empty() { title } else { format!("{title}: {text}") });
    }

    /// Shows the record of a run, and follows the run if another process trains it.
    pub fn show(&mut self, run: PathBuf, progress: Progress, tail: Tail) {
        if self.shared.shown.folder.as_ref() != Some(&run) {
            self.end_text();
            self.shared.samples.forget();
            self.shared.run = RunRoom { tab: self.shared.run.tab, ..RunRoom::default() };
        }
        let followed = self.requests.client.follow(&run, tail);
        let is_followed = followed.is_some();
        let shown = &mut self.shared.shown;
        shown.progress = Progress { run: Some(run.clone()), ..progress };
        if !shown.has_own_trainer() {
            shown.trainer = followed;
        }
        let has_ended = shown.progress.has_ended() || shown.progress.state == RunPhase::Idle;
        match shown.trainer.as_ref().filter(|trainer| trainer.run == run) {
            Some(trainer) if !trainer.is_set_up => shown.progress.starting(),
            None if !is_followed && !has_ended => shown.progress.interrupted(),
            _ => {}
        }
        shown.has_finished = false;
        shown.folder = Some(run.clone());
        // Its curves are drawn in any case.
        self.shared.library.overlays.retain(|overlay| overlay.run != run);
        self.requests.describe_model(&self.shared.shown);
        let Shared { shown, room, samples, library, settings, .. } = &mut self.shared;
        *room = match shown.progress.state {
            RunPhase::Idle if !shown.is_live() => {
                // A model without a record.
                samples.focus = true;
                let is_listed = library.runs.iter().any(|known| known.path == run)
                    || library.models.iter().any(|known| known.path == run);
                if !is_listed {
                    settings.list(run.clone());
                }
                Room::Model
            }
            RunPhase::Finished(StopReason::Finished) => Room::Model,
            _ => Room::Run,
        };
        let is_interrupted = shown.progress.state == RunPhase::Interrupted;
        if std::mem::take(&mut self.options.resume) && is_interrupted {
            self.continue_run(run);
        }
    }

    /// Returns true if another run can start, and warns if not.
    fn can_start(&mut self) -> bool {
        if self.shared.shown.has_own_trainer() {
            self.warn("a run of this window is training: stop it first");
            return false;
        }
        true
    }

    /// Starts a run with the settings of `form`.
    pub fn start_run(&mut self, form: &SettingsForm) {
        if !self.can_start() {
            return;
        }
        let problem = form.problem().or_else(|| Some(self.shared.start.fit.refusal(form)?.reason));
        if let Some(reason) = problem {
            return self.warn(&format!("not started: {reason}"));
        }
        let settings = form.settings();
        let Some(run) = self.new_run_folder(form) else { return };
        self.shared.shown.progress = Progress::default();
        self.requests.run = None;
        self.launch(absolute(&run), settings);
    }

    /// Returns the folder that `out_dir` names, else one that does not exist yet.
    fn new_run_folder(&self, form: &SettingsForm) -> Option<PathBuf> {
        let Shared { settings, library, .. } = &self.shared;
        let name = form.run_name();
        let numbered = |number: u32| settings.runs.join(format!("{name}-{number}"));
        let is_listed = |run: &Path| library.runs.iter().any(|known| known.path == run);
        match form.text("out_dir").trim() {
            "" => (1..).map(numbered).find(|run| !run.exists() && !is_listed(run)),
            // The storage of a page has one folder for all runs.
            name if IS_PAGE => Some(settings.runs.join(name.replace('/', "-"))),
            path => Some(PathBuf::from(path)),
        }
    }

    pub fn continue_run(&mut self, run: PathBuf) {
        if !self.can_start() {
            return;
        }
        if self.shared.shown.folder.as_ref() == Some(&run) {
            return self.launch(run, RunSettings::Recorded);
        }
        self.shared.shown.progress = Progress::default();
        self.launch(run.clone(), RunSettings::Recorded);
        self.requests.show(run);
    }

    fn launch(&mut self, run: PathBuf, run_settings: RunSettings) {
        self.end_text();
        let Shared { settings, shown, room, run: view, .. } = &mut self.shared;
        *room = Room::Run;
        *view = RunRoom::default();
        let device = settings.device.clone();
        let stop_on_close = settings.when_closed == WhenClosed::Stop;
        shown.progress.starting();
        shown.progress.run = Some(run.clone());
        shown.has_finished = false;
        // Another process's run is no longer followed.
        shown.trainer = None;
        let self_test =
            SelfTestOptions { skip: self.options.no_self_test, ..SelfTestOptions::default() };
        let start = StartRun::new(run.clone(), run_settings);
        let start = StartRun { device, self_test, quiet: true, ..start };
        match self.requests.client.start(start, stop_on_close) {
            Ok(trainer) => shown.trainer = Some(trainer),
            Err(error) => self.fail(format!("the trainer could not be started: {error}")),
        }
        if self.shared.shown.folder.as_ref() != Some(&run) {
            self.shared.samples.forget();
        }
        self.shared.shown.folder = Some(run);
        self.requests.listed = None;
    }

    /// Takes the end of the trainer. Its events have the reason, unless it was killed.
    fn ended(&mut self, ended: Ended) {
        let shown = &mut self.shared.shown;
        let Some(trainer) = shown.trainer.take() else { return };
        self.requests.listed = None;
        // More memory of the device is free now.
        self.requests.device = None;
        let is_shown = shown.folder.as_ref() == Some(&trainer.run);
        if is_shown && shown.progress.has_ended() {
            return;
        }
        let name = trainer.run.display();
        let text = match ended {
            Ended::Killed => format!("the process of {name} was killed"),
            Ended::Code(code) => format!("the trainer of {name} exited with code {code}"),
            Ended::Silent => format!("the process of {name} ended without saying why"),
        };
        if is_shown {
            self.fail(text);
        } else if !matches!(ended, Ended::Code(0) | Ended::Silent) {
            self.warn(&text);
        }
    }
}
