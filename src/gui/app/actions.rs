//! Carries out the intents of panels, and handles input from files and the environment.

use std::path::{Path, PathBuf};

use eframe::egui;

use super::path_dialog::PathDialog;
use super::{App, LIST_RUNS};
use crate::gui::form::Form;
use crate::gui::layout::{self, Pane};
use crate::gui::platform::{self, Choice, Input, Overrides};
use crate::gui::{Intent, Options, TextOptions};
use crate::protocol::{Command, Event, Request, SampleInput, SampleRequest, Texts, View};

/// The time between two reads of a device's memory while the run does not fit, in seconds: other
/// programs may have closed.
const READ_DEVICE: f64 = 10.0;

/// The CPU as `--device` takes it.
const CPU: &str = "cpu";

impl App {
    /// Applies the options and the overrides.
    pub(super) fn begin(&mut self) {
        if !self.options.still {
            self.client.send(Request::Devices);
        }
        let own = self.settings.form.clone();
        if self.options.demo {
            self.settings.form = Form::default();
            self.settings.form.set_preset("demo");
        }
        self.apply_overrides(platform::overrides());
        let flags = self.settings.form.flags();
        self.overridden = (flags != own.flags()).then_some((flags, own));
        if self.options.demo {
            self.start_run();
        }
        let Options { inputs, .. } = &mut self.options;
        if let Some(input) = platform::recognize(std::mem::take(inputs)) {
            self.take_input(input);
        }
    }

    /// Puts overrides into the form, where they can be seen and changed.
    fn apply_overrides(&mut self, overrides: Overrides) {
        let Overrides { preset, device, settings, replace_all, problems } = overrides;
        if replace_all {
            self.settings.form = Form::default();
            self.requested.data = None;
        }
        if let Some(device) = device {
            self.setup.device = device;
        }
        if let Some(preset) = preset {
            self.settings.form.set_preset(&preset);
        }
        for (key, text) in settings {
            self.settings.form.set(&key, text);
        }
        problems.into_iter().for_each(|problem| self.warn(problem));
    }

    /// Sends requests for what has changed since they were sent last. `now` is in seconds.
    pub(super) fn send_requests(&mut self, now: f64) {
        if self.listed.is_none_or(|at| now - at >= LIST_RUNS.as_secs_f64()) {
            self.listed = Some(now);
            self.runs_state.folder.clone_from(&self.settings.runs);
            self.client.send(Request::ListRuns { folder: absolute(&self.settings.runs) });
        }
        let data = self.settings.form.text("data");
        if self.requested.data.as_ref() != Some(&data) {
            self.requested.data = Some(data.clone());
            self.settings.form.data = None;
            if !data.is_empty() {
                self.client.send(Request::DescribeData { spec: data });
            }
        }
        let is_refused = self.fit.refusal(&self.settings.form).is_some();
        let is_old = is_refused && now - self.requested.device_at >= READ_DEVICE;
        if is_old || self.requested.device.as_ref() != Some(&self.setup.device) {
            self.requested.device = Some(self.setup.device.clone());
            self.requested.device_at = now;
            self.client.send(Request::Device { choice: self.setup.device.clone() });
        }
        if let [a, b] = &self.runs_state.selected[..]
            && self.requested.comparison != self.runs_state.selected
        {
            self.runs_state.difference = None;
            self.client.send(Request::Compare { runs: [a.clone(), b.clone()] });
            self.requested.comparison.clone_from(&self.runs_state.selected);
        }
    }

    /// Takes files that were dropped or chosen, and other input of the platform.
    pub(super) fn take_inputs(&mut self) {
        for input in self.platform.inputs() {
            self.take_input(input);
        }
    }

    pub(super) fn take_input(&mut self, input: Input) {
        match input {
            Input::Run(run) => self.request_run(absolute(&run)),
            Input::Data(data) => self.choose_data(&data.display().to_string()),
            Input::Reading(name) => self.setup.preparing = Some((name, 0.0)),
            Input::Texts(texts) => self.prepare(texts),
            Input::Model { name, zip } => {
                self.client.send(Request::Import { folder: self.sibling("models"), name, zip });
            }
            Input::RunsFolder(folder) => self.look_for_runs_in(&folder),
            Input::Export { checkpoint, to } => {
                self.client.send(Request::Export { checkpoint, to });
            }
            Input::NoDialog(choice) => self.path_dialog = Some(PathDialog::new(choice)),
            Input::Overrides(overrides) => self.apply_overrides(overrides),
            Input::Unreadable(problem) => {
                self.setup.preparing = None;
                self.warn(problem);
            }
            Input::Close => self.closing = super::Closing::Yes,
        }
    }

    /// Requests the tokenization of texts, into a folder beside the runs.
    fn prepare(&mut self, texts: Texts) {
        let name = match &texts {
            Texts::Files(files) => files.first().and_then(|file| file.file_name()),
            Texts::Text { name, .. } => Some(name.as_ref()),
        };
        self.setup.preparing = name.map(|name| (name.to_string_lossy().into_owned(), 0.0));
        self.client.send(Request::Prepare { texts, folder: self.sibling("data") });
    }

    /// Puts data into the form that a person has chosen.
    pub(super) fn choose_data(&mut self, spec: &str) {
        self.setup.choose_data(&mut self.settings.form, spec);
    }

    /// A folder beside that of the runs, as nanoGPT's `data` is beside its `out`.
    fn sibling(&self, name: &str) -> PathBuf {
        self.settings.runs.parent().unwrap_or(Path::new("")).join(name)
    }

    /// Carries out the intent of a panel.
    pub(super) fn carry_out(&mut self, intent: Intent, ctx: &egui::Context) {
        match intent {
            Intent::Send(_) if !self.is_live() => self.warn("the shown run does not train".into()),
            Intent::Send(command) => self.send_command(&command),
            Intent::Start => self.start_run(),
            Intent::Continue(run) => self.continue_run(absolute(&run)),
            Intent::Show(run) => self.request_run(absolute(&run)),
            Intent::Overlay(runs) => self.overlay(runs),
            Intent::Try => {
                layout::bring_up(&mut self.settings.tree, Pane::Samples);
                self.focus_prompt();
            }
            Intent::GenerateText { prompt, options } => {
                self.generate(SampleInput::Prompt(prompt), options);
            }
            Intent::Answer { messages, options } => {
                self.generate(SampleInput::Conversation(messages), options);
            }
            Intent::StopText => self.client.send(Request::StopSample),
            Intent::Fork(checkpoint) => self.client.send(Request::Fork { checkpoint }),
            Intent::Export(checkpoint) => self.platform.choose(Choice::Export(checkpoint)),
            Intent::ChooseTexts => self.platform.choose(Choice::Texts),
            Intent::ChooseData => self.platform.choose(Choice::DataFolder),
            Intent::ChooseRuns => self.platform.choose(Choice::RunsFolder),
            Intent::ChooseModel => self.platform.choose(Choice::Model),
            Intent::PrepareText(text) => {
                self.prepare(Texts::Text { name: "pasted".into(), text });
            }
            Intent::Copy(text) => ctx.copy_text(text),
            Intent::Describe { run, about } => self.client.send(Request::Describe { run, about }),
            Intent::Remove(path) => self.client.send(Request::Remove { path }),
            Intent::OpenFolder(folder) => {
                if let Err(error) = self.platform.open_folder(&absolute(&folder)) {
                    self.warn(format!("{} could not be opened: {error}", folder.display()));
                }
            }
        }
    }

    /// Draws the curves of these runs with those of the shown one.
    fn overlay(&mut self, runs: Vec<PathBuf>) {
        self.overlays.retain(|(path, _)| runs.contains(path));
        for run in &runs {
            if self.overlays.iter().all(|(path, _)| path != run) {
                self.client.send(Request::ReadRun { run: run.clone(), view: View::Overlay });
            }
        }
        self.runs_state.overlaid = runs;
    }

    /// Has the shown run or model generate a text.
    fn generate(&mut self, input: SampleInput, options: TextOptions) {
        let Some(path) = self.shown.clone() else { return self.samples.chat.take_back() };
        if let SampleInput::Prompt(prompt) = &input {
            self.samples.prompt.writing = Some((prompt.clone(), String::new()));
        }
        let now = web_time::SystemTime::now().duration_since(web_time::SystemTime::UNIX_EPOCH);
        let seed = now.map_or(0, |time| time.as_millis() as u64);
        let on_cpu = self.samples.prompt.on_cpu;
        let device = if on_cpu { CPU.into() } else { self.setup.device.clone() };
        let TextOptions { temperature, top_k, tokens } = options;
        let request = SampleRequest { path, input, tokens, temperature, top_k, seed, device };
        self.client.send(Request::Sample(request));
    }

    /// Sends a command to the trainer.
    pub(super) fn send_command(&mut self, command: &Command) {
        let sent = self.trainer.as_mut().map_or(Ok(()), |trainer| trainer.send(command));
        if let Err(error) = sent {
            self.warn(format!("the trainer takes no commands: {error}"));
        }
    }

    /// Shows an error of the run.
    pub(super) fn fail(&mut self, text: String) {
        let hint =
            "Copy details has everything that is known; a run with a checkpoint can be continued";
        self.apply(&[Event::Error { text, hint: hint.into(), cause: None }]);
    }

    /// Shows a warning in the log.
    pub(super) fn warn(&mut self, text: String) {
        layout::bring_up(&mut self.settings.tree, Pane::Log);
        self.apply(&[Event::Warning { text }]);
    }

    /// Shows a note in the log.
    pub(super) fn note(&mut self, text: String) {
        layout::bring_up(&mut self.settings.tree, Pane::Log);
        self.progress.remark(text);
    }
}

/// The absolute path: runs are compared by path, however it was given. A page has no other.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
