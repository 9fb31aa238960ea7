//! Carrying out what panels ask for, and taking in what threads and trainers tell.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use eframe::egui;

use super::{App, FOLLOW, LOOK_AROUND};
use crate::catalogue;
use crate::config::VARIABLE_PREFIX;
use crate::gui::Intent;
use crate::gui::charts::Overlay;
use crate::gui::form::Form;
use crate::gui::layout::{self, Pane};
use crate::gui::work::{Chosen, Found};
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
        if let Ok(preset) = std::env::var("WGPT_PRESET") {
            self.settings.form.set_preset(&preset);
        }
        for (name, text) in std::env::vars_os() {
            // What is set outside is seen in the form, and changed there.
            if let (Some(name), Some(text)) = (name.to_str(), text.to_str())
                && let Some(key) = name.strip_prefix(VARIABLE_PREFIX)
                && !text.is_empty()
            {
                self.settings.form.set(&key.to_ascii_lowercase(), text);
            }
        }
        self.given = (self.settings.form.flags() != kept.flags())
            .then(|| (self.settings.form.flags(), kept));
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
        let dropped: Vec<PathBuf> = ctx.input_mut(|input| {
            let files = std::mem::take(&mut input.raw.dropped_files);
            files.iter().map(|file| file.path().to_path_buf()).collect()
        });
        self.take_in(dropped);
        if !self.options.still {
            self.ask();
            ctx.request_repaint_after(LOOK_AROUND);
        }
    }

    /// Asks threads for what the settings need to be judged.
    fn ask(&mut self) {
        if self.looked_around.is_none_or(|at| at.elapsed() >= LOOK_AROUND) {
            self.looked_around = Some(Instant::now());
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
            self.ask_for_run(absolute(first));
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
            Intent::Tell(_) if !self.is_live() => {
                self.warn("the run that is shown is not going on".into());
            }
            Intent::Tell(command) => {
                match command {
                    Command::Pause => self.progress.paused(true),
                    Command::Resume => self.progress.paused(false),
                    _ => {}
                }
                self.tell(&command);
            }
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
            Intent::Prepare(paths) => self.take_in(paths),
            Intent::PrepareText(text) => self.work.prepare_text(text, self.data_folder()),
            Intent::Copy(text) => ctx.copy_text(text),
            Intent::OpenFolder(folder) => {
                let opened = open_folder(&absolute(&folder));
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

/// In the system's file manager.
fn open_folder(folder: &Path) -> std::io::Result<()> {
    let program = match std::env::consts::OS {
        "windows" => "explorer",
        "macos" => "open",
        _ => "xdg-open",
    };
    let mut opened = std::process::Command::new(program).arg(folder).spawn()?;
    // Until somebody has waited for it, an ended process stays in the system's table.
    std::thread::spawn(move || opened.wait());
    Ok(())
}

/// Whether tokens lie in this folder already, ours, nanoGPT's or llm.c's.
fn holds_tokens(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|e| e.path().extension().is_some_and(|x| x == "bin")))
    })
}
