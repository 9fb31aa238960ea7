//! Carries out the intents of panels, dialogs and the system.

use std::path::PathBuf;

use web_time::SystemTime;

use super::controller::Controller;
use crate::disk::absolute;
use crate::gui::intent::{Intent, Overrides};
use crate::gui::layout::Pane;
use crate::gui::state::{Closing, DataJob, Overlay, PathEntry, SettingsForm, TextOptions};
use crate::protocol::{Progress, Request, RunView, Sample, SampleInput, SampleRequest, Texts};

/// The CPU, as a value of `--device`.
const CPU: &str = "cpu";

impl Controller {
    pub fn carry_out(&mut self, intent: Intent) {
        match intent {
            Intent::Send(_) if !self.shared.shown.is_live() => {
                self.warn("the shown run is not training".into());
            }
            Intent::Send(command) => self.send_command(&command),
            Intent::SendToOwnRun(command) => self.send_to_own_run(&command),
            Intent::Ask(request) => self.requests.client.send(request),
            Intent::Start => self.start_run(),
            Intent::ListTexts => self.shared.dialogs.lists_texts = true,
            Intent::Demo => {
                self.shared.settings.form = SettingsForm::of_preset("demo");
                self.start_run();
            }
            Intent::Continue(run) => self.continue_run(absolute(&run)),
            Intent::Show(run) => self.requests.show(absolute(&run)),
            Intent::Overlay(runs) => self.overlay(runs),
            Intent::Try => {
                self.panels.bring_up(Pane::Samples.title());
                self.shared.samples.focus = true;
            }
            Intent::Generate(input) => self.generate(input),
            Intent::Choose(choice) => self.platform.choose(choice),
            Intent::TypePath(choice) => {
                let entry = PathEntry { choice, text: String::new(), error: None };
                self.shared.dialogs.path = Some(entry);
            }
            Intent::UseData(data) => {
                self.shared.settings.form.set("data", data.display().to_string());
            }
            Intent::Reading(name) => self.shared.data.job = Some(DataJob::preparing(name, 0.0)),
            Intent::Prepare(texts) => self.prepare(texts),
            Intent::ListRuns(folder) => {
                self.shared.settings.runs = folder;
                self.requests.listed = None;
            }
            Intent::Override(overrides) => self.apply_overrides(overrides),
            Intent::Unreadable(problem) => {
                self.shared.data.job = None;
                self.warn(problem);
            }
            Intent::OpenFolder(folder) => {
                if let Err(error) = self.platform.open_folder(&absolute(&folder)) {
                    self.warn(format!("{} could not be opened: {error}", folder.display()));
                }
            }
            Intent::Close => self.shared.dialogs.closing = Closing::Yes,
        }
    }

    /// Requests the devices, and puts what the options have into the form.
    pub fn begin(&mut self) {
        if !self.options.still {
            self.requests.client.send(Request::Devices);
        }
        if self.options.demo {
            self.shared.settings.form = SettingsForm::of_preset("demo");
        }
        let overrides = std::mem::take(&mut self.options.overrides);
        self.apply_overrides(overrides);
    }

    /// Puts overrides into the form, where they can be seen and changed.
    pub fn apply_overrides(&mut self, overrides: Overrides) {
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
                let request = Request::ReadRun { run: run.clone(), view: RunView::Overlay };
                self.requests.client.send(request);
                Overlay { name: library.title(&run).into(), run, progress: Progress::default() }
            });
            library.overlays.push(overlay);
        }
    }

    fn prepare(&mut self, texts: Texts) {
        let name = match &texts {
            Texts::Files(files) => files.first().and_then(|file| file.file_name()),
            Texts::Text { name, .. } => Some(name.as_ref()),
        };
        let name = name.map(|name| name.to_string_lossy().into_owned());
        self.shared.data.job = name.map(|name| DataJob::preparing(name, 0.0));
        let folder = self.shared.settings.data_folder();
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
            samples.prompt.writing = Some(Sample { prompt, ..Sample::default() });
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seed = now.map_or(0, |time| time.as_millis() as u64);
        let on_cpu = self.shared.shown.generates_on_cpu();
        let device = if on_cpu { CPU.into() } else { self.shared.settings.device.clone() };
        let TextOptions { temperature, top_k, tokens, probabilities } = samples.prompt.options;
        let request =
            SampleRequest { path, input, tokens, temperature, top_k, seed, device, probabilities };
        self.requests.client.send(Request::Sample(request));
    }
}
