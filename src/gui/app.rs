//! The state of the window, and how it is drawn.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use eframe::egui;

use super::charts::{self, Overlay};
use super::control::{self, ControlState};
use super::finished::{self, Click};
use super::fit::{self, FitState};
use super::form::Form;
use super::layout::{self, Pane, Panes};
use super::log::{self, LogState};
use super::platform::{self, Platform};
use super::runs::{self, BrowserStorage, RunsState};
use super::samples::{self, SampleState};
use super::setup::{self, Choices, Runs, SetupState};
use super::{Intent, Options, theme};
use crate::protocol::{DeviceLine, Event, Level, Obstacle, Progress, StopReason};
use crate::runs::RunSummary;
use crate::worker::{Client, Trainer};

mod actions;
mod closing;
mod details;
mod keys;
mod menu;
mod path_dialog;
mod replies;
mod run;
mod settings;
mod stored;
#[cfg(test)]
mod tests;

use closing::Closing;
use details::Details;
use path_dialog::PathDialog;
use settings::{Settings, WhenClosed};
use stored::Stored;

/// The time between two lists of the runs.
const LIST_RUNS: Duration = Duration::from_secs(5);

/// The time between two reads of the record of another process's run.
const FOLLOW: Duration = Duration::from_millis(200);

/// The window.
pub struct App {
    settings: Settings,
    options: Options,
    /// The progress of the run that is shown.
    progress: Progress,
    /// The folder of that run.
    shown: Option<PathBuf>,
    trainer: Option<Trainer>,
    client: Client,
    platform: Platform,
    pace: Pace,
    /// The flags of the form with its overrides, and the form that is stored as long as they are
    /// unchanged.
    overridden: Option<(Vec<String>, Form)>,
    devices: Vec<DeviceLine>,
    obstacles: Vec<Obstacle>,
    runs: Vec<RunSummary>,
    stored: Stored,
    overlays: Vec<(PathBuf, Overlay)>,
    setup: SetupState,
    fit: FitState,
    samples: SampleState,
    control: ControlState,
    runs_state: RunsState,
    log: LogState,
    requested: Requested,
    closing: Closing,
    path_dialog: Option<PathDialog>,
    help: bool,
    details: Details,
    /// True from the end of the shown run until its card is closed.
    has_finished: bool,
    /// The title of the window.
    title: String,
    frames: FrameTimes,
    /// When runs were listed last, in seconds of the window's clock.
    listed: Option<f64>,
}

/// The last request of each kind, which is sent again when its subject changes.
#[derive(Default)]
struct Requested {
    run: Option<PathBuf>,
    data: Option<String>,
    device: Option<String>,
    /// When the device was requested, in seconds of the window's clock.
    device_at: f64,
    comparison: Vec<PathBuf>,
}

/// The delay between a reply or an event and the frame that draws it; threads of the service read
/// it.
#[derive(Clone)]
struct Pace(Arc<AtomicU64>);

impl Pace {
    const USUAL: Duration = Duration::from_millis(50);
    /// The pace of a browser that draws in software: a frame takes a fifth of a second from
    /// training, which took five times as long at the usual pace.
    const SLOW: Duration = Duration::from_secs(2);

    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(Self::USUAL.as_millis() as u64)))
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, pace: Duration) {
        self.0.store(pace.as_millis() as u64, Ordering::Relaxed);
    }
}

/// Times of the last frames, in seconds.
#[derive(Default)]
struct FrameTimes(VecDeque<f32>);

impl FrameTimes {
    const COUNT: usize = 240;

    fn push(&mut self, seconds: f32) {
        self.0.truncate(Self::COUNT - 1);
        self.0.push_front(seconds);
    }

    /// The median, without waiting for the display, in milliseconds.
    fn median_ms(&self) -> Option<f32> {
        let mut sorted: Vec<f32> = self.0.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        sorted.get(sorted.len() / 2).map(|seconds| seconds * 1e3)
    }
}

impl App {
    /// The window with the settings of the last one.
    pub fn new(creation: &eframe::CreationContext<'_>, options: Options) -> Self {
        theme::apply(&creation.egui_ctx);
        let storage = creation.storage.filter(|_| options.screenshot.is_none());
        let (ctx, pace) = (creation.egui_ctx.clone(), Pace::new());
        let waking = pace.clone();
        let mut app = Self {
            settings: Settings::load(storage),
            progress: Progress::default(),
            shown: None,
            trainer: None,
            client: Client::new(move || ctx.request_repaint_after(waking.get())),
            platform: Platform::new(&creation.egui_ctx, &options),
            pace,
            overridden: None,
            devices: Vec::new(),
            obstacles: Vec::new(),
            runs: Vec::new(),
            stored: Stored::default(),
            overlays: Vec::new(),
            setup: SetupState::default(),
            fit: FitState::default(),
            samples: SampleState::default(),
            control: ControlState::default(),
            runs_state: RunsState::default(),
            log: LogState::default(),
            requested: Requested::default(),
            closing: Closing::No,
            path_dialog: None,
            help: false,
            details: Details::default(),
            has_finished: false,
            title: String::new(),
            frames: FrameTimes::default(),
            listed: None,
            options,
        };
        app.setup.device.clone_from(&app.settings.device);
        app.begin();
        app
    }

    /// Applies events as if they came from a trainer.
    pub fn apply(&mut self, events: &[Event]) {
        for event in events {
            self.progress.apply(event);
            match event {
                // The log has the error and what to do next.
                Event::Error { .. } => layout::bring_up(&mut self.settings.tree, Pane::Log),
                Event::Done { reason, .. } => {
                    self.has_finished =
                        matches!(reason, StopReason::Finished | StopReason::MaxTime);
                    self.request_model();
                }
                Event::Start { .. } => self.has_finished = false,
                Event::Paused { .. } | Event::Resumed { .. } => {}
                _ => continue,
            }
            // The list of the runs has their states.
            self.listed = None;
        }
    }

    /// Sets the folder in which runs are created and listed.
    pub fn look_for_runs_in(&mut self, folder: &Path) {
        self.settings.runs = folder.to_path_buf();
        self.listed = None;
    }

    /// Brings the panel of this title to the front of its tabs.
    pub fn bring_up(&mut self, title: &str) {
        if let Some(pane) = layout::titled(title) {
            layout::bring_up(&mut self.settings.tree, pane);
        }
    }

    /// Types a setting, as if into its field.
    pub fn set(&mut self, key: &'static str, text: &str) {
        self.settings.form.set(key, text);
    }

    /// Returns true if the shown run trains.
    fn is_live(&self) -> bool {
        let trained = self.trainer.as_ref().map(Trainer::run);
        trained.is_some() && trained == self.shown.as_deref()
    }

    fn draw(&mut self, ui: &mut egui::Ui) -> Vec<Intent> {
        let mut intents = Vec::new();
        egui::Panel::top("headline").show(ui, |ui| {
            ui.horizontal(|ui| {
                ui.strong("wgpt");
                ui.separator();
                control::headline(ui, &self.progress, &mut self.control);
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    self.menu(ui);
                });
            });
        });
        for Obstacle { can_train, text, hint, .. } in &self.obstacles {
            let level = if *can_train { Level::Warning } else { Level::Error };
            egui::Panel::top(egui::Id::unique(text)).show(ui, |ui| {
                control::obstacle(ui, level, text, hint);
            });
        }
        if self.has_finished {
            egui::Panel::top("finished").show(ui, |ui| {
                let name = self.shown_name().unwrap_or("The run");
                match finished::show(ui, name, &self.progress) {
                    Some(Click::Do(intent)) => {
                        intents.push(intent);
                        self.has_finished = false;
                    }
                    Some(Click::Close) => self.has_finished = false,
                    None => {}
                }
            });
        }
        let live = self.is_live();
        egui::Panel::bottom("control").show(ui, |ui| {
            intents.extend(control::show(ui, &self.progress, &mut self.control, live));
        });
        egui::CentralPanel::no_frame().show(ui, |ui| intents.extend(self.panes(ui)));
        intents
    }

    fn panes(&mut self, ui: &mut egui::Ui) -> Vec<Intent> {
        let (live, busy) = (self.is_live(), self.has_own_run());
        // The worker of a page refuses texts while a run trains: it has one device.
        self.samples.prompt.on_cpu = !platform::IS_PAGE && self.trainer.is_some();
        let Self { settings, progress, setup, fit, samples, runs_state, log, .. } = self;
        let Settings { form, charts, tree, .. } = settings;
        let running = progress.config.as_deref().filter(|_| live);
        let shown = Runs { progress, running, busy };
        let overlays: Vec<&Overlay> = self.overlays.iter().map(|(_, overlay)| overlay).collect();
        let mut intents = Vec::new();
        let mut panes = Panes(|ui: &mut egui::Ui, pane: Pane| {
            intents.extend(match pane {
                Pane::Setup => {
                    let choices = Choices { devices: &self.devices, data: &self.stored.data };
                    setup::show(ui, form, setup, fit, &choices, &shown)
                }
                Pane::Fit => fit::show(ui, form, fit, progress),
                Pane::Loss => {
                    charts::loss(ui, progress, &overlays, charts, &mut samples.selection);
                    None
                }
                Pane::Rate => {
                    charts::rate(ui, progress, charts);
                    None
                }
                Pane::Speed => {
                    charts::speed(ui, progress, charts);
                    None
                }
                Pane::Memory => {
                    charts::memory(ui, progress, charts);
                    None
                }
                Pane::Samples => samples::show(ui, progress, samples),
                Pane::Runs => {
                    let Stored { usage, models, .. } = &self.stored;
                    let storage = BrowserStorage { usage, models };
                    runs::show(ui, &self.runs, &storage, runs_state, self.shown.as_deref())
                }
                Pane::Log => log::show(ui, progress, log),
            });
        });
        tree.ui(&mut panes, ui);
        self.samples.selection.end_pass(ui.ctx());
        intents
    }

    /// Returns the display name of the shown run.
    fn shown_name(&self) -> Option<&str> {
        let shown = self.shown.as_ref()?;
        let listed = self.runs.iter().find(|run| run.path == *shown);
        listed.map(RunSummary::title).or_else(|| shown.file_name()?.to_str())
    }
}

impl eframe::App for App {
    fn logic(&mut self, ctx: &egui::Context, frame: &mut eframe::Frame) {
        if let Some(seconds) = frame.info().cpu_usage {
            self.frames.push(seconds);
        }
        self.take_replies();
        self.take_events(ctx);
        self.take_inputs();
        if !self.options.still {
            self.send_requests(ctx.input(|input| input.time));
            ctx.request_repaint_after(LIST_RUNS);
        }
        self.on_close(ctx);
        let title = control::title(&self.progress, self.shown_name());
        if title != self.title {
            self.platform.set_title(&title);
            self.title = title;
        }
        self.platform.report(&platform::Frame {
            ctx,
            form: &self.settings.form,
            progress: &self.progress,
            pace: self.pace.get(),
        });
    }

    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        let mut intents = self.shortcuts(ui);
        intents.extend(self.draw(ui));
        self.show_help(ui);
        self.ask_before_closing(ui);
        self.ask_for_path(ui);
        for intent in intents {
            self.carry_out(intent, ui.ctx());
        }
    }

    fn save(&mut self, storage: &mut dyn eframe::Storage) {
        if self.options.screenshot.is_some() {
            return;
        }
        self.settings.device.clone_from(&self.setup.device);
        let form = &self.settings.form;
        let overridden = self.overridden.take().filter(|(flags, _)| *flags == form.flags());
        match overridden {
            Some((flags, own)) => {
                let shown = std::mem::replace(&mut self.settings.form, own);
                self.settings.store(storage);
                let own = std::mem::replace(&mut self.settings.form, shown);
                self.overridden = Some((flags, own));
            }
            None => self.settings.store(storage),
        }
    }
}
