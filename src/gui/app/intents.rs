//! Carries out the intents of panels, dialogs and the system: shows, starts and continues runs.

use std::path::{Path, PathBuf};

use super::{App, Closing, PathDialog, WhenClosed};
use crate::disk::absolute;
use crate::gui::charts::Overlay;
use crate::gui::conversation::ChatState;
use crate::gui::form::SettingsForm;
use crate::gui::layout::Pane;
use crate::gui::platform::{self, IS_PAGE, Overrides};
use crate::gui::prompt::{TextOptions, Written};
use crate::gui::setup::Busy;
use crate::gui::{Intent, Shared};
use crate::protocol::{
    Command, Event, Progress, Request, RunError, RunPhase, RunSettings, SampleInput, SampleRequest,
    SelfTestOptions, StartRun, Texts, View,
};
use crate::runs::Tail;
use crate::worker::Ended;

/// The CPU as `--device` takes it.
const CPU: &str = "cpu";

impl App {
    pub(super) fn carry_out(&mut self, intent: Intent) {
        match intent {
            Intent::Send(_) if !self.shared.shown.is_live() => {
                self.warn("the shown run is not training".into());
            }
            Intent::Send(command) => self.send_command(&command),
            Intent::Ask(request) => self.requests.client.send(request),
            Intent::Start => self.start_run(),
            Intent::ListTexts => self.shared.lists_texts = true,
            Intent::Demo => {
                self.shared.settings.form = SettingsForm::of_preset("demo");
                self.start_run();
            }
            Intent::Continue(run) => self.continue_run(absolute(&run)),
            Intent::Show(run) => self.requests.show(absolute(&run)),
            Intent::Overlay(runs) => self.overlay(runs),
            Intent::Try => {
                self.bring_up(Pane::Samples.title());
                self.shared.samples.focus = true;
            }
            Intent::Generate(input) => self.generate(input),
            Intent::Choose(choice) => self.platform.choose(choice),
            Intent::TypePath(choice) => self.path_dialog = Some(PathDialog::new(choice)),
            Intent::UseData(data) => self.set("data", &data.display().to_string()),
            Intent::Reading(name) => self.shared.data.busy = Some(Busy::Preparing(name, 0.0)),
            #[cfg(not(target_arch = "wasm32"))]
            Intent::Get(name) => {
                let busy = Busy::Fetching { name: name.clone(), done: 0, all: None };
                self.shared.data.busy = Some(busy);
                let folder = self.data_folder();
                self.requests.client.send(Request::Get { name, folder });
            }
            Intent::Prepare(texts) => self.prepare(texts),
            Intent::ListRuns(folder) => self.look_for_runs_in(&folder),
            Intent::Override(overrides) => self.apply_overrides(overrides),
            Intent::Unreadable(problem) => {
                self.shared.data.busy = None;
                self.warn(problem);
            }
            Intent::OpenFolder(folder) => {
                if let Err(error) = self.platform.open_folder(&absolute(&folder)) {
                    self.warn(format!("{} could not be opened: {error}", folder.display()));
                }
            }
            Intent::Close => self.closing = Closing::Yes,
        }
    }

    pub(super) fn begin(&mut self) {
        if !self.options.still {
            self.requests.client.send(Request::Devices);
        }
        let own = self.shared.settings.form.clone();
        if self.options.demo {
            self.shared.settings.form = SettingsForm::of_preset("demo");
        }
        let mut overrides = platform::overrides();
        overrides.device = self.options.device.take().or(overrides.device);
        self.apply_overrides(overrides);
        let settings = self.shared.settings.form.settings();
        self.overridden = (settings != own.settings()).then_some((settings, own));
        if self.options.demo {
            self.start_run();
        }
        if let Some(intent) = platform::recognize(std::mem::take(&mut self.options.inputs)) {
            self.carry_out(intent);
        }
    }

    /// Puts overrides into the form, where they can be seen and changed.
    fn apply_overrides(&mut self, overrides: Overrides) {
        let settings = &mut self.shared.settings;
        if overrides.replace_all {
            settings.form = SettingsForm::default();
            self.requests.data = None;
        }
        if let Some(device) = overrides.device {
            settings.device = device;
        }
        if let Some(preset) = overrides.preset {
            settings.form.set_preset(&preset);
        }
        for (key, text) in overrides.settings {
            settings.form.set(&key, text);
        }
        overrides.problems.into_iter().for_each(|problem| self.warn(problem));
    }

    /// Overlays the curves of these runs and no others. Requests those that are not known.
    fn overlay(&mut self, runs: Vec<PathBuf>) {
        let library = &mut self.shared.library;
        let mut known = std::mem::take(&mut library.overlays);
        for run in runs {
            let found = known.iter().position(|overlay| overlay.run == run);
            let overlay = found.map(|at| known.swap_remove(at)).unwrap_or_else(|| {
                let request = Request::ReadRun { run: run.clone(), view: View::Overlay };
                self.requests.client.send(request);
                Overlay { name: library.title(&run).into(), run, progress: Progress::default() }
            });
            library.overlays.push(overlay);
        }
    }

    /// Returns the folder of data: next to the folder of the runs, as nanoGPT's `data` is next to its `out`.
    fn data_folder(&self) -> PathBuf {
        self.shared.settings.runs.parent().unwrap_or(Path::new("")).join("data")
    }

    fn prepare(&mut self, texts: Texts) {
        let name = match &texts {
            Texts::Files(files) => files.first().and_then(|file| file.file_name()),
            Texts::Text { name, .. } => Some(name.as_ref()),
        };
        let name = name.map(|name| name.to_string_lossy().into_owned());
        self.shared.data.busy = name.map(|name| Busy::Preparing(name, 0.0));
        let folder = self.data_folder();
        self.requests.client.send(Request::Prepare { texts, folder });
    }

    fn generate(&mut self, input: SampleInput) {
        let samples = &mut self.shared.samples;
        let Some(path) = self.shared.shown.folder.clone() else {
            samples.chat.take_back();
            return;
        };
        if let SampleInput::Prompt(prompt) = &input {
            let prompt = prompt.clone();
            samples.prompt.writing = Some(Written { prompt, ..Written::default() });
        }
        let now = web_time::SystemTime::now().duration_since(web_time::SystemTime::UNIX_EPOCH);
        let seed = now.map_or(0, |time| time.as_millis() as u64);
        let on_cpu = self.shared.shown.generates_on_cpu();
        let device = if on_cpu { CPU.into() } else { self.shared.settings.device.clone() };
        let TextOptions { temperature, top_k, tokens, probabilities } = samples.prompt.options;
        let request =
            SampleRequest { path, input, tokens, temperature, top_k, seed, device, probabilities };
        self.requests.client.send(Request::Sample(request));
    }

    /// Sends a command to the trainer if this window has started it.
    pub(super) fn send_to_own_run(&mut self, command: Option<Command>) {
        if let Some(command) = command.filter(|_| self.shared.shown.has_own_trainer()) {
            self.send_command(&command);
        }
    }

    fn send_command(&mut self, command: &Command) {
        let trainer = self.shared.shown.trainer.as_mut();
        if let Err(error) = trainer.map_or(Ok(()), |trainer| trainer.send(command)) {
            self.warn(format!("the trainer did not receive the command: {error}"));
        }
    }

    pub(super) fn fail(&mut self, text: String) {
        let hint = "\"Copy details\" in the log copies what a bug report needs; Continue resumes a run that has a checkpoint";
        self.apply(&[Event::Error(RunError { text, hint: hint.into(), cause: None })]);
    }

    pub(super) fn warn(&mut self, text: String) {
        self.bring_up(Pane::Log.title());
        self.apply(&[Event::Warning { text }]);
    }

    pub(super) fn note(&mut self, text: String) {
        self.bring_up(Pane::Log.title());
        self.shared.shown.progress.remark(text);
    }

    /// Shows a run as it is recorded, and follows it if another process trains it.
    pub(super) fn show(&mut self, run: PathBuf, progress: Progress, tail: Tail) {
        if self.shared.shown.folder.as_ref() != Some(&run) {
            self.end_text();
            self.shared.samples.chat.clear();
            self.shared.samples.inside.clear();
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
        (shown.has_finished, shown.folder) = (false, Some(run.clone()));
        // Its curves are drawn in any case.
        self.shared.library.overlays.retain(|overlay| overlay.run != run);
        self.request_model();
        match self.shared.shown.progress.state {
            RunPhase::Idle => {
                // A model without a record can only be tried.
                self.bring_up(Pane::Samples.title());
                self.shared.samples.focus = true;
            }
            RunPhase::Interrupted if self.options.resume => self.continue_run(run),
            _ => {}
        }
        self.options.resume = false;
    }

    /// Returns true if another run can start, and warns if not. Stops following the run of another
    /// process.
    fn can_start(&mut self) -> bool {
        if self.shared.shown.has_own_trainer() {
            self.warn("a run of this window is training: stop it first".into());
            return false;
        }
        self.shared.shown.trainer = None;
        true
    }

    /// Ends the text that the shown run generates: another run is about to be shown, or this one to
    /// train.
    fn end_text(&mut self) {
        let samples = &mut self.shared.samples;
        let is_writing = samples.prompt.writing.take().is_some();
        if samples.chat.take_back() | is_writing | samples.inside.end() {
            self.requests.client.send(Request::StopSample);
        }
    }

    pub(super) fn request_model(&mut self) {
        if let Some(path) = self.shared.shown.folder.clone() {
            self.requests.client.send(Request::DescribeModel { path });
        }
    }

    pub(super) fn start_run(&mut self) {
        let Shared { settings, shown, fit, .. } = &mut self.shared;
        let form = &settings.form;
        // A run of this window holds memory, which is not why no other can start.
        let refusal = if shown.has_own_trainer() { None } else { fit.refusal(form) };
        if let Some(problem) = form.problem().or(refusal.map(|refusal| refusal.reason)) {
            return self.warn(format!("not started: {problem}"));
        }
        let settings = form.settings();
        if !self.can_start() {
            return;
        }
        let Some(run) = self.new_run_folder() else { return };
        self.shared.shown.progress = Progress::default();
        self.requests.run = None;
        self.launch(absolute(&run), settings);
    }

    /// Returns the folder that `out_dir` names, else one that does not exist yet.
    fn new_run_folder(&self) -> Option<PathBuf> {
        let Shared { settings, library, .. } = &self.shared;
        let name = settings.form.run_name();
        let numbered = |number: u32| settings.runs.join(format!("{name}-{number}"));
        let is_listed = |run: &Path| library.runs.iter().any(|known| known.path == run);
        match settings.form.text("out_dir").trim() {
            "" => (1..).map(numbered).find(|run| !run.exists() && !is_listed(run)),
            // The storage of a page has one folder for all runs.
            name if IS_PAGE => Some(settings.runs.join(name.replace('/', "-"))),
            path => Some(PathBuf::from(path)),
        }
    }

    pub(super) fn continue_run(&mut self, run: PathBuf) {
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
        let Shared { settings, shown, .. } = &mut self.shared;
        let device = settings.device.clone();
        let stop_on_close = settings.when_closed == WhenClosed::Stop;
        shown.progress.starting();
        shown.has_finished = false;
        let self_test =
            SelfTestOptions { skip: self.options.no_self_test, ..SelfTestOptions::default() };
        let start = StartRun::new(run.clone(), run_settings);
        let start = StartRun { device, self_test, quiet: true, ..start };
        match self.requests.client.start(start, stop_on_close) {
            Ok(trainer) => shown.trainer = Some(trainer),
            Err(error) => self.fail(format!("the trainer could not be started: {error}")),
        }
        if self.shared.shown.folder.as_ref() != Some(&run) {
            self.shared.samples.chat = ChatState::default();
        }
        self.shared.shown.folder = Some(run);
        self.requests.listed = None;
    }

    /// Takes the end of the trainer. Its events have the reason, unless it was killed.
    pub(super) fn ended(&mut self, ended: Ended) {
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
            self.warn(text);
        }
    }
}
