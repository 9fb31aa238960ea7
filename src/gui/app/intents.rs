//! Carries out the intents of panels, dialogs and the system.

use std::path::{Path, PathBuf};

use super::{App, Closing, PathDialog, absolute};
use crate::gui::Intent;
use crate::gui::form::SettingsForm;
use crate::gui::layout::Pane;
use crate::gui::platform::{self, Overrides};
use crate::gui::prompt::TextOptions;
use crate::protocol::{Command, Event, Request, RunError, SampleInput, SampleRequest, Texts, View};

/// The CPU as `--device` takes it.
const CPU: &str = "cpu";

impl App {
    /// Carries out the intent of a panel.
    pub(super) fn carry_out(&mut self, intent: Intent) {
        match intent {
            Intent::Send(_) if !self.shared.shown.is_live() => {
                self.warn("the shown run does not train".into());
            }
            Intent::Send(command) => self.send_command(&command),
            Intent::Ask(request) => self.requests.send(request),
            Intent::Start => self.start_run(),
            Intent::Continue(run) => self.continue_run(absolute(&run)),
            Intent::Show(run) => self.requests.show(absolute(&run)),
            Intent::Overlay(runs) => {
                for run in self.shared.library.overlay(runs) {
                    self.requests.send(Request::ReadRun { run, view: View::Overlay });
                }
            }
            Intent::Try => {
                self.show_panel(Pane::Samples);
                self.shared.samples.focus = true;
            }
            Intent::Generate(input) => self.generate(input),
            Intent::Choose(choice) => self.platform.choose(choice),
            Intent::TypePath(choice) => self.path_dialog = Some(PathDialog::new(choice)),
            Intent::UseData(data) => self.shared.choose_data(&data.display().to_string()),
            Intent::Reading(name) => self.shared.data.preparing = Some((name, 0.0)),
            Intent::Prepare(texts) => self.prepare(texts),
            Intent::Import { name, zip } => {
                let folder = self.sibling("models");
                self.requests.send(Request::Import { folder, name, zip });
            }
            Intent::ListRuns(folder) => self.look_for_runs_in(&folder),
            Intent::Override(overrides) => self.apply_overrides(overrides),
            Intent::Unreadable(problem) => {
                self.shared.data.preparing = None;
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

    /// Applies the options and the overrides.
    pub(super) fn begin(&mut self) {
        if !self.options.still {
            self.requests.send(Request::Devices);
        }
        let own = self.shared.settings.form.clone();
        if self.options.demo {
            self.shared.settings.form = SettingsForm::of_preset("demo");
        }
        self.apply_overrides(platform::overrides());
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

    /// Requests the tokenization of texts, into a folder next to the folder of the runs.
    fn prepare(&mut self, texts: Texts) {
        let name = match &texts {
            Texts::Files(files) => files.first().and_then(|file| file.file_name()),
            Texts::Text { name, .. } => Some(name.as_ref()),
        };
        self.shared.data.preparing = name.map(|name| (name.to_string_lossy().into_owned(), 0.0));
        let folder = self.sibling("data");
        self.requests.send(Request::Prepare { texts, folder });
    }

    /// Returns the folder `name` next to the folder of the runs, as nanoGPT's `data` is next to its
    /// `out`.
    fn sibling(&self, name: &str) -> PathBuf {
        self.shared.settings.runs.parent().unwrap_or(Path::new("")).join(name)
    }

    /// Has the shown run or model generate a text.
    fn generate(&mut self, input: SampleInput) {
        let samples = &mut self.shared.samples;
        let Some(path) = self.shared.shown.folder.clone() else {
            samples.chat.take_back();
            return;
        };
        if let SampleInput::Prompt(prompt) = &input {
            samples.prompt.writing = Some((prompt.clone(), String::new()));
        }
        let now = web_time::SystemTime::now().duration_since(web_time::SystemTime::UNIX_EPOCH);
        let seed = now.map_or(0, |time| time.as_millis() as u64);
        let on_cpu = self.shared.shown.generates_on_cpu();
        let device = if on_cpu { CPU.into() } else { self.shared.settings.device.clone() };
        let TextOptions { temperature, top_k, tokens } = samples.prompt.options;
        let request = SampleRequest { path, input, tokens, temperature, top_k, seed, device };
        self.requests.send(Request::Sample(request));
    }

    /// Sends a command to the trainer if this window has started it.
    pub(super) fn send_to_own_run(&mut self, command: Option<Command>) {
        if let Some(command) = command.filter(|_| self.shared.shown.has_own_trainer()) {
            self.send_command(&command);
        }
    }

    /// Sends a command to the trainer.
    fn send_command(&mut self, command: &Command) {
        let trainer = self.shared.shown.trainer.as_mut();
        if let Err(error) = trainer.map_or(Ok(()), |trainer| trainer.send(command)) {
            self.warn(format!("the trainer takes no commands: {error}"));
        }
    }

    /// Shows an error of the run.
    pub(super) fn fail(&mut self, text: String) {
        let hint =
            "Copy details has everything that is known; a run with a checkpoint can be continued";
        self.apply(&[Event::Error(RunError { text, hint: hint.into(), cause: None })]);
    }

    /// Shows a warning in the log.
    pub(super) fn warn(&mut self, text: String) {
        self.show_panel(Pane::Log);
        self.apply(&[Event::Warning { text }]);
    }

    /// Shows a note in the log.
    pub(super) fn note(&mut self, text: String) {
        self.show_panel(Pane::Log);
        self.shared.shown.progress.remark(text);
    }
}
