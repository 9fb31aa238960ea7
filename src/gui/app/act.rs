//! Carrying out what panels ask for, and taking in what threads and trainers tell.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eframe::egui;

use super::{App, FOLLOW, FromOutside, LOOK_AROUND};
use crate::gui::charts::Overlay;
use crate::gui::form::Form;
use crate::gui::layout::{self, Pane};
use crate::gui::work::{Found, Given};
use crate::gui::{Intent, host};
#[cfg(target_arch = "wasm32")]
use crate::progress::Sample;
use crate::protocol::{Cause, Command, Event};

impl App {
    /// What the window is opened with.
    pub(super) fn begin(&mut self) {
        if !self.options.still {
            self.work.devices();
        }
        let kept = self.settings.form.clone();
        if self.options.demo {
            self.settings.form = Form::default();
            self.settings.form.set_preset("demo");
        }
        self.take_from_outside(host::given());
        self.given = (self.settings.form.flags() != kept.flags())
            .then(|| (self.settings.form.flags(), kept));
        if self.options.demo {
            self.start_run();
        }
        let inputs = std::mem::take(&mut self.options.inputs);
        self.take_in(host::named(inputs));
    }

    /// What is set outside is seen in the form, and changed there.
    pub(super) fn take_from_outside(&mut self, given: FromOutside) {
        let FromOutside { preset, device, settings, is_whole, problems } = given;
        if is_whole {
            self.settings.form = Form::default();
            self.asked.data = None;
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

    /// Takes in what happened outside since the last frame.
    pub(super) fn listen(&mut self, ctx: &egui::Context) {
        for found in self.work.found() {
            self.take(found);
        }
        if let Some(trainer) = &mut self.trainer {
            let events = trainer.events();
            let ended = trainer.ended();
            let shown = self.shown.as_ref() == Some(&trainer.run);
            // Its end is seen even where nothing wakes the window for it.
            let again = if trainer.is_own() { Duration::from_secs(1) } else { FOLLOW };
            ctx.request_repaint_after(again);
            if shown {
                self.apply(&events);
            }
            if let Some(ended) = ended {
                self.ended(ended);
            }
        }
        self.take_in(host::dropped(ctx));
        if !self.options.still {
            self.ask(ctx.input(|input| input.time));
            ctx.request_repaint_after(LOOK_AROUND);
        }
    }

    /// Asks threads for what the settings need to be judged.
    fn ask(&mut self, now: f64) {
        if self.looked_around.is_none_or(|at| now - at >= LOOK_AROUND.as_secs_f64()) {
            self.looked_around = Some(now);
            self.runs_state.folder.clone_from(&self.settings.runs);
            self.work.runs(absolute(&self.settings.runs));
        }
        let data = self.settings.form.text("data");
        if self.asked.data.as_ref() != Some(&data) {
            self.asked.data = Some(data.clone());
            self.settings.form.data = None;
            if !data.is_empty() {
                self.work.data(data);
            }
        }
        if self.asked.device.as_ref() != Some(&self.setup.device) {
            self.asked.device = Some(self.setup.device.clone());
            self.work.card(&self.setup.device);
        }
        if let [a, b] = &self.runs_state.selected[..]
            && self.asked.difference != self.runs_state.selected
        {
            self.runs_state.difference = None;
            self.work.difference([a.clone(), b.clone()]);
            self.asked.difference.clone_from(&self.runs_state.selected);
        }
    }

    fn take(&mut self, found: Found) {
        match found {
            Found::Devices(devices) => self.devices = devices,
            Found::Card(card) => self.fit.set_card(card),
            Found::Data { spec, info } => {
                if self.asked.data.as_ref() == Some(&spec) {
                    self.settings.form.data = Some(info);
                }
            }
            Found::Preparing { what, share } => self.setup.preparing = Some((what, share)),
            Found::Prepared(result) => {
                self.setup.preparing = None;
                match result {
                    Ok(data) => self.settings.form.set("data", data),
                    Err(error) => self.warn(format!("the text could not be prepared: {error}")),
                }
            }
            // Another folder may have been chosen meanwhile.
            Found::Runs { folder: Some(folder), .. } if folder != absolute(&self.settings.runs) => {
            }
            Found::Runs { runs, .. } => {
                // A page that is loaded again goes on with what it showed.
                let newest = runs.first().filter(|_| host::IS_PAGE && self.asked.run.is_none());
                if let (Some(run), None) = (newest, &self.shown) {
                    self.runs_state.selected = vec![run.path.clone()];
                    self.ask_for_run(run.path.clone());
                }
                self.runs = runs;
            }
            Found::Run { path, progress, tail } => {
                if self.asked.run.as_ref() == Some(&path) {
                    self.show(path, *progress, tail);
                }
            }
            Found::Overlay { path, progress } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.overlays.retain(|(known, _)| *known != path);
                self.overlays.push((path, Overlay { name, progress: *progress }));
                self.runs_state.overlaid = self.overlays.iter().map(|(p, _)| p.clone()).collect();
            }
            Found::Difference(difference) => self.runs_state.difference = Some(difference),
            Found::Fork { checkpoint, config } => {
                let form = &mut self.settings.form;
                form.take_over(&config);
                form.set("init_from", checkpoint.display().to_string());
            }
            Found::Chosen(inputs) => self.take_in(inputs),
            Found::Folder(folder) => {
                self.settings.runs = folder;
                self.looked_around = None;
            }
            Found::Said(Ok(text)) => self.note(text),
            Found::Said(Err(text)) => self.warn(text),
            #[cfg(target_arch = "wasm32")]
            Found::Sampled { prompt, text, done } => {
                self.samples.writing = (!done).then(|| (prompt.clone(), text.clone()));
                if done {
                    let iter = self.progress.iteration;
                    self.progress.samples.push(Sample { iter, prompt, text });
                }
            }
        }
    }

    /// Texts are prepared, data and runs are taken as they are.
    fn take_in(&mut self, inputs: Vec<host::Input>) {
        match host::recognize(inputs) {
            None => {}
            Some(Given::Run(run)) => self.ask_for_run(absolute(&run)),
            Some(Given::Data(data)) => self.settings.form.set("data", data.display().to_string()),
            Some(Given::Texts(texts)) => {
                let name = self.work.prepare(texts, &self.settings.runs);
                self.setup.preparing = name.map(|name| (name, 0.0));
            }
        }
    }

    /// Carries out what a panel asks for.
    pub(super) fn act(&mut self, intent: Intent, ctx: &egui::Context) {
        match intent {
            #[cfg(target_arch = "wasm32")]
            Intent::Tell(Command::Sample { prompt }) if !self.is_live() => {
                self.work.sample(self.shown.as_deref(), prompt, self.progress.config.as_deref());
            }
            Intent::Tell(_) if !self.is_live() => {
                self.warn("the run that is shown is not going on".into());
            }
            Intent::Tell(command) => self.tell(&command),
            Intent::Start => self.start_run(),
            Intent::Continue(run) => {
                self.revived = None;
                self.continue_run(absolute(&run));
            }
            Intent::Show(run) => self.ask_for_run(absolute(&run)),
            Intent::Overlay(run) => {
                let before = self.overlays.len();
                self.overlays.retain(|(path, _)| *path != run);
                if self.overlays.len() == before {
                    self.work.overlay(run);
                }
                self.runs_state.overlaid = self.overlays.iter().map(|(p, _)| p.clone()).collect();
            }
            Intent::Fork(checkpoint) => self.work.fork(checkpoint),
            Intent::Export(checkpoint) => self.work.export(checkpoint),
            Intent::ChooseTexts => self.work.choose_data(false),
            Intent::ChooseData => self.work.choose_data(true),
            Intent::ChooseRuns => self.work.choose_runs(),
            Intent::PrepareText(text) => self.work.prepare_text(text, &self.settings.runs),
            Intent::Copy(text) => ctx.copy_text(text),
            #[cfg(target_arch = "wasm32")]
            Intent::Remove(path) => self.work.remove(path),
            #[cfg(not(target_arch = "wasm32"))]
            Intent::Remove(_) => {}
            Intent::OpenFolder(folder) => {
                let opened = host::open_folder(&absolute(&folder));
                if let Err(error) = opened {
                    self.warn(format!("{} could not be opened: {error}", folder.display()));
                }
            }
        }
    }

    pub(super) fn tell(&mut self, command: &Command) {
        let told = self.trainer.as_mut().map_or(Ok(()), |trainer| trainer.tell(command));
        if let Err(error) = told {
            self.warn(format!("the trainer does not listen: {error}"));
        }
    }

    pub(super) fn fail(&mut self, text: String, cause: Option<Cause>) {
        let hint = "Copy details has all that is known; a run with a checkpoint can be continued";
        self.apply(&[Event::Error { text, hint: hint.into(), cause }]);
    }

    pub(super) fn warn(&mut self, text: String) {
        layout::bring_up(&mut self.settings.tree, Pane::Log);
        self.apply(&[Event::Warning { text }]);
    }

    fn note(&mut self, text: String) {
        layout::bring_up(&mut self.settings.tree, Pane::Log);
        self.progress.remark(text);
    }
}

/// Runs are told apart by their paths, which must not depend on how they were given.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
