//! Carrying out what panels ask for, and taking in what threads and trainers tell.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use eframe::egui;

use super::{App, FOLLOW, LOOK_AROUND, WhenClosed};
use crate::catalogue;
use crate::config::VARIABLE_PREFIX;
use crate::gui::Intent;
use crate::gui::charts::Overlay;
use crate::gui::form::Form;
use crate::gui::trainer::{Ended, Trainer};
use crate::gui::work::{Chosen, Found};
use crate::progress::Progress;
use crate::protocol::{Cause, Command, Event};
use crate::train::has_checkpoint;

impl App {
    /// What the window is opened with.
    pub(super) fn begin(&mut self) {
        if !self.options.still {
            self.work.devices();
        }
        if self.options.demo {
            self.settings.form = Form::default();
            self.settings.form.set_preset("demo");
        }
        if let Ok(preset) = std::env::var("WGPT_PRESET") {
            self.settings.form.set_preset(&preset);
        }
        for (name, text) in std::env::vars() {
            // What is set outside is seen in the form, and changed there.
            if let Some(key) = name.strip_prefix(VARIABLE_PREFIX)
                && !text.is_empty()
            {
                self.settings.form.set(&key.to_ascii_lowercase(), text);
            }
        }
        if self.options.demo {
            self.start_run();
        }
        let inputs = std::mem::take(&mut self.options.inputs);
        self.take_in(inputs);
    }

    /// Takes in what happened outside since the last frame.
    pub(super) fn listen(&mut self, ctx: &egui::Context) {
        for found in self.work.found() {
            self.take(found);
        }
        if let Some(trainer) = &mut self.trainer {
            let events = trainer.events();
            // Only then: what it said before its end comes first.
            let ended = if events.is_empty() { trainer.ended() } else { None };
            let shown = self.shown.as_ref() == Some(&trainer.run);
            if !trainer.is_own() || !events.is_empty() {
                ctx.request_repaint_after(FOLLOW);
            }
            if shown {
                self.apply(&events);
            }
            if let Some(ended) = ended {
                self.ended(ended);
            }
        }
        let dropped: Vec<PathBuf> = ctx.input_mut(|input| {
            let files = std::mem::take(&mut input.raw.dropped_files);
            files.iter().map(|file| file.path().to_path_buf()).collect()
        });
        self.take_in(dropped);
        if !self.options.still {
            self.ask();
        }
    }

    /// Asks threads for what the settings need to be judged.
    fn ask(&mut self) {
        if self.looked_around.is_none_or(|at| at.elapsed() >= LOOK_AROUND) {
            self.looked_around = Some(Instant::now());
            self.runs_state.folder.clone_from(&self.settings.runs);
            self.work.runs(self.settings.runs.clone());
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
            if let Ok(choice) = self.setup.device.parse() {
                self.work.card(choice);
            }
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
            Found::Card { info, memory } => self.fit.set_device(&info, memory.as_ref()),
            Found::Data { spec, info } => {
                if self.asked.data.as_ref() == Some(&spec) {
                    self.settings.form.data = Some(info);
                }
            }
            Found::Preparing { what, share } => self.setup.preparing = Some((what, share)),
            Found::Prepared(result) => {
                self.setup.preparing = None;
                match result {
                    Ok(folder) => self.settings.form.set("data", folder.display().to_string()),
                    Err(error) => self.warn(format!("the text could not be prepared: {error}")),
                }
            }
            Found::Runs(runs) => self.runs = runs,
            Found::Run { path, progress, tail } => {
                self.progress = *progress;
                if self.trainer.is_none() && catalogue::is_training(&path) {
                    self.trainer = Some(Trainer::attach(&path, tail));
                }
                self.shown = Some(path);
            }
            Found::Overlay { path, progress } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.overlays.push((path, Overlay { name, progress: *progress }));
            }
            Found::Difference(difference) => self.runs_state.difference = Some(difference),
            Found::Fork { checkpoint, config } => {
                let form = &mut self.settings.form;
                form.take_over(&config);
                form.set("init_from", checkpoint.display().to_string());
            }
            Found::Chosen(Chosen::Data(paths)) => self.take_in(paths),
            Found::Chosen(Chosen::Runs(folder)) => {
                self.settings.runs = folder;
                self.looked_around = None;
            }
            Found::Exported(Ok(folder)) => self.note(format!("exported to {}", folder.display())),
            Found::Exported(Err(error)) => self.warn(format!("nothing was exported: {error}")),
        }
    }

    /// Texts are prepared, data and runs are taken as they are.
    fn take_in(&mut self, paths: Vec<PathBuf>) {
        let Some(first) = paths.first() else { return };
        if catalogue::is_run(first) {
            self.work.show(first.clone());
        } else if first.is_dir() && holds_tokens(first) {
            self.settings.form.set("data", first.display().to_string());
        } else {
            self.act_on_texts(paths);
        }
    }

    fn act_on_texts(&mut self, paths: Vec<PathBuf>) {
        let name = paths.first().and_then(|path| path.file_name()).unwrap_or_default();
        self.setup.preparing = Some((name.to_string_lossy().into_owned(), 0.0));
        self.work.prepare(paths, self.data_folder());
    }

    /// Beside the runs, as nanoGPT's `data` is beside its `out`.
    fn data_folder(&self) -> PathBuf {
        self.settings.runs.parent().unwrap_or(Path::new("")).join("data")
    }

    /// Carries out what a panel asks for.
    pub(super) fn act(&mut self, intent: Intent, ctx: &egui::Context) {
        match intent {
            Intent::Tell(command) => {
                match command {
                    Command::Pause => self.progress.paused(true),
                    Command::Resume => self.progress.paused(false),
                    _ => {}
                }
                self.tell(&command);
            }
            Intent::Start => self.start_run(),
            Intent::Continue(run) => self.continue_run(run),
            Intent::Show(run) => self.work.show(run),
            Intent::Overlay(run) => {
                let before = self.overlays.len();
                self.overlays.retain(|(path, _)| *path != run);
                if self.overlays.len() == before {
                    self.work.overlay(run);
                }
            }
            Intent::Fork(checkpoint) => self.work.fork(checkpoint),
            Intent::Export(checkpoint) => self.work.export(checkpoint),
            Intent::ChooseTexts => self.work.choose_data(false),
            Intent::ChooseData => self.work.choose_data(true),
            Intent::ChooseRuns => self.work.choose_runs(),
            Intent::Prepare(paths) => self.take_in(paths),
            Intent::PrepareText(text) => self.work.prepare_text(text, self.data_folder()),
            Intent::Copy(text) => ctx.copy_text(text),
            Intent::OpenFolder(folder) => {
                let folder = std::path::absolute(&folder).unwrap_or(folder);
                let url = format!("file://{}", folder.display());
                ctx.open_url(egui::OpenUrl::new_tab(url));
            }
        }
    }

    pub(super) fn tell(&mut self, command: &Command) {
        let told = self.trainer.as_mut().map_or(Ok(()), |trainer| trainer.tell(command));
        if let Err(error) = told {
            self.warn(format!("the trainer does not listen: {error}"));
        }
    }

    /// Begins the run that the form describes, in a folder of its own.
    pub(super) fn start_run(&mut self) {
        if self.trainer.is_some() {
            return;
        }
        if let Some(problem) = self.settings.form.problem() {
            self.warn(format!("not started: {problem}"));
            return;
        }
        let name = self.settings.form.run_name();
        let folder = |number: u32| self.settings.runs.join(format!("{name}-{number}"));
        let Some(run) = (1..).map(folder).find(|run| !run.exists()) else { return };
        let mut args: Vec<OsString> =
            self.settings.form.flags().into_iter().map(OsString::from).collect();
        args.push(format!("--device={}", self.setup.device).into());
        self.progress = Progress::default();
        self.launch(run, args);
    }

    /// Continues a run from its newest checkpoint.
    fn continue_run(&mut self, run: PathBuf) {
        if self.trainer.is_some() {
            return;
        }
        if self.shown.as_ref() != Some(&run) {
            self.progress = Progress::default();
            self.work.show(run.clone());
        }
        let args = vec!["--resume".into(), format!("--device={}", self.setup.device).into()];
        self.launch(run, args);
    }

    fn launch(&mut self, run: PathBuf, mut args: Vec<OsString>) {
        if self.settings.when_closed == WhenClosed::Stop {
            // Whatever ends the window ends its pipes.
            args.push("--stop-on-eof".into());
        }
        self.progress.starting();
        match Trainer::start(&run, &args, self.work.ctx()) {
            Ok(trainer) => self.trainer = Some(trainer),
            Err(error) => self.fail(format!("the trainer could not be started: {error}"), None),
        }
        self.shown = Some(run);
        self.looked_around = None;
    }

    /// The process of the run is gone.
    fn ended(&mut self, ended: Ended) {
        let Some(trainer) = self.trainer.take() else { return };
        self.looked_around = None;
        // What is free now is no longer what it was.
        self.asked.device = None;
        if self.shown.as_ref() != Some(&trainer.run) || self.progress.has_ended() {
            return;
        }
        let Some(code) = ended.code else {
            // Killed from outside: once for each stretch of the run it is started again.
            let iteration = self.progress.iteration;
            let text = "the training process was ended from outside".to_string();
            if has_checkpoint(&trainer.run) && self.revived != Some(iteration) {
                self.revived = Some(iteration);
                self.warn(format!("{text}; continuing from the last checkpoint"));
                self.continue_run(trainer.run);
            } else {
                self.fail(text, Some(Cause::DeviceLost));
            }
            return;
        };
        let text = match ended.talk.trim() {
            "" => format!("the trainer ended with code {code}"),
            talk => talk.to_string(),
        };
        self.fail(text, None);
    }

    fn fail(&mut self, text: String, cause: Option<Cause>) {
        let hint = "Copy details has all that is known; a run with a checkpoint can be continued";
        self.apply(&[Event::Error { text, hint: hint.into(), cause }]);
    }

    fn warn(&mut self, text: String) {
        self.apply(&[Event::Warning { text }]);
    }

    fn note(&mut self, text: String) {
        self.progress.remark(text);
    }
}

/// Whether tokens lie in this folder already, ours, nanoGPT's or llm.c's.
fn holds_tokens(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|e| e.path().extension().is_some_and(|x| x == "bin")))
    })
}
