//! Carries out the intents of rooms, dialogs and the system.

use std::path::{Path, PathBuf};

use web_time::SystemTime;

use super::controller::Controller;
use crate::disk::absolute;
use crate::gui::intent::{Intent, Overrides};
use crate::gui::state::{
    Before, Closing, DataJob, Overlay, PathEntry, Room, SettingsForm, Shared, TextOptions, What,
    model_before,
};
use crate::gui::target::IS_PAGE;
use crate::protocol::{Progress, Request, RunView, Sample, SampleInput, SampleRequest, Texts};

/// The CPU, as a value of `--device`.
const CPU: &str = "cpu";

impl Controller {
    pub fn carry_out(&mut self, intent: Intent) {
        match intent {
            Intent::Send(_) if !self.shared.shown.is_live() => {
                self.warn("the shown run is not training");
            }
            Intent::Send(command) => self.send_command(&command),
            Intent::SendToOwnRun(command) => self.send_to_own_run(&command),
            Intent::Ask(request) => {
                if request == Request::StopSample {
                    self.shared.samples.end_before();
                }
                self.requests.client.send(request);
            }
            // What is not seen is not started.
            Intent::Start if self.shared.room != Room::Start => self.carry_out(Intent::New),
            Intent::Start if !self.shared.is_set_up() => {
                self.warn("choose what to train and for how long, then start");
            }
            Intent::Start => self.start_run(&self.shared.settings.form.clone()),
            Intent::New => {
                // A run that is still being read does not leave this room again.
                (self.requests.run, self.requests.shows_newest) = (None, false);
                self.shared.room = Room::Start;
            }
            Intent::Enter(room) => self.shared.room = room,
            Intent::FineTune(model) => {
                let checkpoint = absolute(&model);
                self.requests.client.send(Request::Fork { checkpoint });
            }
            Intent::List(catalog) => self.shared.dialogs.list = Some(catalog),
            Intent::Demo => self.start_run(&SettingsForm::of_preset("demo")),
            Intent::Continue(run) => self.continue_run(absolute(&run)),
            // Reading its record again would miss what arrives meanwhile.
            Intent::Show(run)
                if self.shared.shown.is_live()
                    && self.shared.shown.folder.as_ref() == Some(&absolute(&run)) =>
            {
                self.shared.room = Room::Run;
            }
            Intent::Show(run) => self.requests.show(absolute(&run)),
            Intent::Overlay(runs) => self.overlay(runs),
            Intent::Try => {
                let Shared { room, samples, .. } = &mut self.shared;
                *room = Room::Model;
                samples.open_texts(true);
                samples.focus = true;
            }
            Intent::Generate(input) => self.generate(input),
            Intent::Choose(choice) => self.platform.choose(choice),
            Intent::TypePath(choice) => {
                let entry = PathEntry { choice, text: String::new(), error: None };
                self.shared.dialogs.path = Some(entry);
            }
            Intent::UseData(_) | Intent::Prepare(_) if self.shared.lacks_model() => {
                self.shared.start.data.job = None;
                self.warn("choose the model first: its tokenizer prepares the texts");
            }
            Intent::UseData(data) => {
                self.use_data(&data.display().to_string());
                self.shared.room = Room::Start;
            }
            Intent::Reading(name) => {
                self.shared.start.data.job = Some(DataJob::preparing(name, 0.0));
            }
            Intent::Prepare(texts) => self.prepare(texts),
            Intent::ListRuns(folder) => {
                self.shared.settings.runs = folder;
                self.requests.listed = None;
            }
            Intent::Override(overrides) => self.apply_overrides(overrides),
            Intent::Unreadable(problem) => {
                self.shared.start.data.job = None;
                self.warn(&problem);
            }
            Intent::OpenFolder(folder) => {
                if let Err(error) = self.platform.open_folder(&absolute(&folder)) {
                    self.warn(&format!("{} could not be opened: {error}", folder.display()));
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
            self.shared.settings.replace_form(SettingsForm::of_preset("demo"));
        }
        self.requests.stored_data = Some(self.shared.settings.form.text("data"));
        let overrides = std::mem::take(&mut self.options.overrides);
        self.apply_overrides(overrides);
        let Shared { start, settings, .. } = &mut self.shared;
        // The form of a new window is the demo's, which has a button of its own.
        let is_new = settings.form.settings() == SettingsForm::default().settings();
        start.what = What::of(&settings.form).filter(|_| !is_new || self.options.demo);
    }

    /// Puts data into the form. A folder has its whole path, so that a window in another folder finds it.
    pub fn use_data(&mut self, spec: &str) {
        let Shared { start, settings, .. } = &mut self.shared;
        let path = Path::new(spec);
        let is_folder = !IS_PAGE && path.components().count() > 1 && path.is_relative();
        let spec = if is_folder { absolute(path).display().to_string() } else { spec.into() };
        settings.form.set("data", spec);
        start.what = What::of(&settings.form);
    }

    /// Puts overrides into the form, where they can be seen and changed.
    pub fn apply_overrides(&mut self, overrides: Overrides) {
        let Shared { settings, start, .. } = &mut self.shared;
        if overrides.replace_all {
            settings.replace_form(SettingsForm::default());
        }
        if overrides.preset.is_some() || !overrides.settings.is_empty() {
            start.times.leave_to_settings();
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
        start.what = What::of(&settings.form).or(start.what);
        overrides.problems.iter().for_each(|problem| self.warn(problem));
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
        if !library.overlays.is_empty() && self.shared.shown.progress.config.is_some() {
            self.shared.room = Room::Run;
        }
    }

    fn prepare(&mut self, texts: Texts) {
        let name = match &texts {
            Texts::Files(files) => files.first().and_then(|file| file.file_name()),
            Texts::Text { name, .. } => Some(name.as_ref()),
        };
        let name = name.map(|name| name.to_string_lossy().into_owned());
        let Shared { start, settings, room, .. } = &mut self.shared;
        start.data.job = name.map(|name| DataJob::preparing(name, 0.0));
        *room = Room::Start;
        // A trained model reads its own tokens.
        let model = settings.form.model().map(PathBuf::from);
        let model = model.filter(|_| start.what == Some(What::FineTune));
        if start.what.is_none() {
            // The demo's data.
            settings.form.set("data", "");
            start.what = Some(What::Text);
        }
        let folder = settings.data_folder();
        self.requests.client.send(Request::Prepare { texts, folder, model });
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
        let TextOptions { temperature, top_k, tokens, probabilities, before } =
            samples.prompt.options;
        let trained =
            SampleRequest { path, input, tokens, temperature, top_k, seed, device, probabilities };
        let model = model_before(&self.shared.shown.progress);
        let model = model.filter(|_| before && !matches!(trained.input, SampleInput::Text(_)));
        samples.before = model.is_some().then(|| Before::new(trained.clone()));
        let request = match model {
            Some(path) => SampleRequest { path, ..trained },
            None => trained,
        };
        self.requests.client.send(Request::Sample(request));
    }
}
