//! Input from files, dialogs and the environment.

use super::requests::sibling;
use super::{App, Closing, PathDialog, absolute};
use crate::gui::form::Form;
use crate::gui::platform::{self, Input, Overrides};
use crate::protocol::{Request, Texts};

impl App {
    /// Applies the options and the overrides.
    pub(super) fn begin(&mut self) {
        if !self.options.still {
            self.requests.send(Request::Devices);
        }
        let own = self.shared.settings.form.clone();
        if self.options.demo {
            self.shared.settings.form = Form::of_preset("demo");
        }
        self.apply_overrides(platform::overrides());
        let flags = self.shared.settings.form.flags();
        self.overridden = (flags != own.flags()).then_some((flags, own));
        if self.options.demo {
            self.start_run();
        }
        if let Some(input) = platform::recognize(std::mem::take(&mut self.options.inputs)) {
            self.take_input(input);
        }
    }

    /// Puts overrides into the form, where they can be seen and changed.
    fn apply_overrides(&mut self, overrides: Overrides) {
        let settings = &mut self.shared.settings;
        if overrides.replace_all {
            settings.form = Form::default();
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

    /// Takes files that were dropped or chosen, and other input of the platform.
    pub(super) fn take_input(&mut self, input: Input) {
        match input {
            Input::Run(run) => self.requests.show(absolute(&run)),
            Input::Data(data) => self.shared.choose_data(&data.display().to_string()),
            Input::Reading(name) => self.shared.data.preparing = Some((name, 0.0)),
            Input::Texts(texts) => self.prepare(texts),
            Input::Model { name, zip } => {
                let folder = sibling(&self.shared.settings.runs, "models");
                self.requests.send(Request::Import { folder, name, zip });
            }
            Input::RunsFolder(folder) => self.look_for_runs_in(&folder),
            Input::Export { checkpoint, to } => {
                self.requests.send(Request::Export { checkpoint, to });
            }
            Input::NoDialog(choice) => self.path_dialog = Some(PathDialog::new(choice)),
            Input::Overrides(overrides) => self.apply_overrides(overrides),
            Input::Unreadable(problem) => {
                self.shared.data.preparing = None;
                self.warn(problem);
            }
            Input::Close => self.closing = Closing::Yes,
        }
    }

    /// Requests the tokenization of texts, into a folder next to the folder of the runs.
    pub(super) fn prepare(&mut self, texts: Texts) {
        let name = match &texts {
            Texts::Files(files) => files.first().and_then(|file| file.file_name()),
            Texts::Text { name, .. } => Some(name.as_ref()),
        };
        self.shared.data.preparing = name.map(|name| (name.to_string_lossy().into_owned(), 0.0));
        let folder = sibling(&self.shared.settings.runs, "data");
        self.requests.send(Request::Prepare { texts, folder });
    }
}
