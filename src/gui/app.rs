//! The whole window: what it knows, and how that is drawn.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use eframe::egui;
use egui_tiles::Tree;
use serde::{Deserialize, Serialize};

use super::charts::{self, ChartState, Overlay};
use super::control::{self, ControlState};
use super::fit::{self, FitState};
use super::form::Form;
use super::host::{self, Trainer, Work};
use super::layout::{self, Pane, Panes};
use super::log::{self, LogState};
use super::runs::{self, Kept, RunsState};
use super::samples::{self, SampleState};
use super::setup::{self, Choices, SetupState};
use super::{Intent, Options, theme};
use crate::gpu::DeviceInfo;
use crate::progress::Progress;
use crate::protocol::{Command, Event};
use crate::run_index::RunSummary;

mod act;
mod keys;
#[cfg(not(target_arch = "wasm32"))]
mod picture;
mod run;

/// Under which name the settings are kept.
const STORED: &str = "wgpt";

/// The same for where panels are: what another version cannot read of that takes nothing else along.
const STORED_LAYOUT: &str = "layout";

/// How often the folder with runs is looked at, and what another process trains.
const LOOK_AROUND: Duration = Duration::from_secs(5);
const FOLLOW: Duration = Duration::from_millis(200);

/// What closing the window does to a run that is going on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum WhenClosed {
    /// A question, each time; without an answer the run goes on.
    #[default]
    Ask,
    /// It stops, with a checkpoint.
    Stop,
    /// It goes on.
    GoOn,
}

/// What is kept from one window to the next.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct Settings {
    form: Form,
    device: String,
    charts: ChartState,
    runs: PathBuf,
    when_closed: WhenClosed,
    #[serde(skip, default = "layout::tree")]
    tree: Tree<Pane>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            form: Form::default(),
            device: "auto".into(),
            charts: ChartState::default(),
            runs: PathBuf::from(host::RUNS),
            when_closed: WhenClosed::default(),
            tree: layout::tree(),
        }
    }
}

/// The window.
pub struct App {
    settings: Settings,
    options: Options,
    progress: Progress,
    /// The run whose progress that is.
    shown: Option<PathBuf>,
    trainer: Option<Trainer>,
    /// What the form was given from outside, and what is kept in its place while it is still that.
    given: Option<(Vec<String>, Form)>,
    /// The furthest update after which a trainer that was killed was started again.
    revived: Option<u64>,
    work: Work,
    devices: Vec<DeviceInfo>,
    runs: Vec<RunSummary>,
    overlays: Vec<(PathBuf, Overlay)>,
    setup: SetupState,
    fit: FitState,
    samples: SampleState,
    control: ControlState,
    runs_state: RunsState,
    log: LogState,
    /// What the answers of threads were asked for.
    asked: Asked,
    closing: Closing,
    help: bool,
    frames: Frames,
    /// When runs were looked for last, in seconds of the window's clock.
    looked_around: Option<f64>,
    #[cfg(not(target_arch = "wasm32"))]
    pictured: bool,
    #[cfg(target_arch = "wasm32")]
    mirror: host::Mirror,
}

/// What the window is given beside its own settings: by variables, or by the page's address.
#[derive(Default)]
pub(super) struct FromOutside {
    /// Where the form begins.
    pub preset: Option<String>,
    /// The device as `--device` takes it.
    pub device: Option<String>,
    /// Settings by their names.
    pub settings: Vec<(String, String)>,
    /// Whether nothing else holds: not what was typed in a former window.
    pub is_whole: bool,
    /// What could not be read, and why.
    pub problems: Vec<String>,
}

/// What was asked of threads last, so that it is asked again when it changes.
#[derive(Default)]
struct Asked {
    run: Option<PathBuf>,
    data: Option<String>,
    device: Option<String>,
    difference: Vec<PathBuf>,
}

/// Whether the window is about to close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Closing {
    #[default]
    No,
    Asking,
    Yes,
}

/// Times of the last frames, in seconds.
#[derive(Default)]
struct Frames(VecDeque<f32>);

impl Frames {
    const KEPT: usize = 240;

    fn push(&mut self, seconds: f32) {
        self.0.truncate(Self::KEPT - 1);
        self.0.push_front(seconds);
    }

    fn median_ms(&self) -> Option<f32> {
        let mut sorted: Vec<f32> = self.0.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        sorted.get(sorted.len() / 2).map(|seconds| seconds * 1e3)
    }
}

impl App {
    /// The window's contents, with the settings of the last one.
    pub fn new(creation: &eframe::CreationContext<'_>, options: Options) -> Self {
        theme::apply(&creation.egui_ctx);
        let stored = creation.storage.filter(|_| options.screenshot.is_none());
        let settings = stored.and_then(|storage| eframe::get_value::<Settings>(storage, STORED));
        let mut app = Self {
            settings: settings.unwrap_or_default(),
            progress: Progress::default(),
            shown: None,
            trainer: None,
            given: None,
            revived: None,
            work: Work::new(creation.egui_ctx.clone()),
            devices: Vec::new(),
            runs: Vec::new(),
            overlays: Vec::new(),
            setup: SetupState::default(),
            fit: FitState::default(),
            samples: SampleState::default(),
            control: ControlState::default(),
            runs_state: RunsState::default(),
            log: LogState::default(),
            asked: Asked::default(),
            closing: Closing::No,
            help: false,
            frames: Frames::default(),
            looked_around: None,
            #[cfg(not(target_arch = "wasm32"))]
            pictured: false,
            #[cfg(target_arch = "wasm32")]
            mirror: host::Mirror::default(),
            options,
        };
        let layout = stored.and_then(|storage| eframe::get_value(storage, STORED_LAYOUT));
        app.settings.tree = layout.unwrap_or_else(layout::tree);
        app.setup.device.clone_from(&app.settings.device);
        app.begin();
        app
    }

    /// Takes in events as if they came from a trainer.
    pub fn apply(&mut self, events: &[Event]) {
        for event in events {
            self.progress.apply(event);
            if matches!(event, Event::Error { .. }) {
                // What failed, and what to do, stands there.
                layout::bring_up(&mut self.settings.tree, Pane::Log);
            }
        }
    }

    /// Tells the page how things stand, and takes in what its address says.
    #[cfg(target_arch = "wasm32")]
    fn mirror(&mut self, ctx: &egui::Context) {
        if let Some(given) = self.mirror.address(&self.settings.form) {
            self.take_from_outside(given);
        }
        self.mirror.say(ctx, &self.progress, self.work.pace());
    }

    /// Sets where runs are looked for and begun.
    pub fn look_for_runs_in(&mut self, folder: &std::path::Path) {
        self.settings.runs = folder.to_path_buf();
        self.looked_around = None;
    }

    /// Puts the panel of this title in front of those that share its place.
    pub fn bring_up(&mut self, title: &str) {
        if let Some(pane) = layout::titled(title) {
            layout::bring_up(&mut self.settings.tree, pane);
        }
    }

    /// Types a setting, as if into its field.
    pub fn set(&mut self, key: &'static str, text: &str) {
        self.settings.form.set(key, text);
    }

    /// The median time that the last frames took, without waiting for the display, in milliseconds.
    pub fn frame_ms(&self) -> Option<f32> {
        self.frames.median_ms()
    }

    /// Whether the run that is shown is going on.
    fn is_live(&self) -> bool {
        self.trainer.as_ref().is_some_and(|trainer| self.shown.as_ref() == Some(&trainer.run))
    }

    fn draw(&mut self, ui: &mut egui::Ui) -> Vec<Intent> {
        let mut intents = Vec::new();
        egui::Panel::top("headline").show(ui, |ui| {
            ui.horizontal(|ui| {
                ui.strong("wgpt");
                ui.separator();
                control::headline(ui, &self.progress);
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    self.menu(ui);
                });
            });
        });
        for (level, text, hint) in self.work.obstacles() {
            egui::Panel::top(egui::Id::unique(text)).show(ui, |ui| {
                control::obstacle(ui, *level, text, hint);
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
        let (live, busy) = (self.is_live(), self.trains_itself());
        let Self { settings, progress, setup, fit, samples, runs_state, log, .. } = self;
        let Settings { form, charts, tree, .. } = settings;
        let running = progress.config.as_deref().filter(|_| live);
        let overlays: Vec<&Overlay> = self.overlays.iter().map(|(_, overlay)| overlay).collect();
        let mut intents = Vec::new();
        let mut panes = Panes(|ui: &mut egui::Ui, pane: Pane| {
            intents.extend(match pane {
                Pane::Setup => {
                    let choices = Choices {
                        devices: &self.devices,
                        only_device: self.work.only_device(),
                        data: self.work.stored_data(),
                    };
                    setup::show(ui, form, setup, &choices, progress, running, busy)
                }
                Pane::Fit => fit::show(ui, form, fit, progress),
                Pane::Loss => {
                    charts::loss(ui, progress, &overlays, charts);
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
                    let kept =
                        Kept { where_to: self.work.storage(), models: self.work.stored_models() };
                    runs::show(ui, &self.runs, &kept, runs_state, self.shown.as_deref())
                }
                Pane::Log => log::show(ui, progress, log),
            });
        });
        tree.ui(&mut panes, ui);
        intents
    }

    fn menu(&mut self, ui: &mut egui::Ui) {
        ui.menu_button("View", |ui| {
            egui::widgets::global_theme_preference_buttons(ui);
            ui.separator();
            ui.label("Size of everything");
            ui.horizontal(|ui| {
                for percent in [80, 100, 125, 150, 200] {
                    let factor = percent as f32 / 100.0;
                    let is_set = (ui.ctx().zoom_factor() - factor).abs() < 0.01;
                    if ui.selectable_label(is_set, format!("{percent}%")).clicked() {
                        ui.ctx().set_zoom_factor(factor);
                    }
                }
            });
            ui.separator();
            if ui.button("Reset layout").clicked() {
                self.settings.tree = layout::tree();
                ui.close();
            }
            ui.separator();
            #[cfg(not(target_arch = "wasm32"))]
            self.when_closed(ui);
            #[cfg(target_arch = "wasm32")]
            if ui.button("Copy a link with these settings").clicked() {
                ui.ctx().copy_text(host::address());
            }
            if let Some(median) = self.frames.median_ms() {
                ui.separator();
                ui.weak(format!("a frame takes {median:.1} ms"));
            }
        });
        if ui.button("Help").on_hover_text("F1").clicked() {
            self.help = !self.help;
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn when_closed(&mut self, ui: &mut egui::Ui) {
        ui.label("When the window closes, a run");
        let when = &mut self.settings.when_closed;
        let before = *when;
        ui.radio_value(when, WhenClosed::Ask, "asks what to do");
        ui.radio_value(when, WhenClosed::Stop, "stops with a checkpoint");
        ui.radio_value(when, WhenClosed::GoOn, "goes on");
        let now = *when;
        if now != before {
            self.set_leash(now == WhenClosed::Stop);
        }
    }

    fn ask_before_closing(&mut self, ui: &egui::Ui) {
        if self.closing != Closing::Asking {
            return;
        }
        egui::Modal::new(egui::Id::unique("closing")).show(ui.ctx(), |ui| {
            ui.heading("A run is going on");
            ui.label("It can go on without the window, and be shown again later.");
            ui.add_space(6.0);
            ui.horizontal(|ui| {
                if ui.button("Stop with a checkpoint").clicked() {
                    self.tell(&Command::Stop);
                    self.closing = Closing::Yes;
                }
                if ui.button("Let it go on").clicked() {
                    self.set_leash(false);
                    self.closing = Closing::Yes;
                }
                if ui.button("Keep the window").clicked() {
                    self.closing = Closing::No;
                }
            });
        });
        if self.closing == Closing::Yes {
            ui.ctx().send_viewport_cmd(egui::ViewportCommand::Close);
        }
    }

    /// Closing the window with a run that it has started.
    fn on_close(&mut self, ctx: &egui::Context) {
        let own = self.trains_itself();
        if !ctx.input(|input| input.viewport().close_requested()) || !own {
            return;
        }
        match (self.closing, self.settings.when_closed) {
            (Closing::Yes, _) | (_, WhenClosed::GoOn) => {}
            (_, WhenClosed::Stop) => self.tell(&Command::Stop),
            (_, WhenClosed::Ask) => {
                ctx.send_viewport_cmd(egui::ViewportCommand::CancelClose);
                // Nobody sees a question in a window that is minimized.
                ctx.send_viewport_cmd(egui::ViewportCommand::Minimized(false));
                ctx.send_viewport_cmd(egui::ViewportCommand::Focus);
                self.closing = Closing::Asking;
            }
        }
    }
}

impl eframe::App for App {
    fn logic(&mut self, ctx: &egui::Context, frame: &mut eframe::Frame) {
        if let Some(seconds) = frame.info().cpu_usage {
            self.frames.push(seconds);
        }
        self.listen(ctx);
        self.on_close(ctx);
        #[cfg(not(target_arch = "wasm32"))]
        self.picture(ctx);
        #[cfg(target_arch = "wasm32")]
        self.mirror(ctx);
    }

    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        let mut intents = self.shortcuts(ui);
        intents.extend(self.draw(ui));
        self.show_help(ui);
        self.ask_before_closing(ui);
        for intent in intents {
            self.act(intent, ui.ctx());
        }
    }

    fn save(&mut self, storage: &mut dyn eframe::Storage) {
        if self.options.screenshot.is_some() {
            return;
        }
        self.settings.device.clone_from(&self.setup.device);
        let given = self.given.take().filter(|(given, _)| *given == self.settings.form.flags());
        match given {
            Some((given, kept)) => {
                let shown = std::mem::replace(&mut self.settings.form, kept);
                eframe::set_value(storage, STORED, &self.settings);
                let kept = std::mem::replace(&mut self.settings.form, shown);
                self.given = Some((given, kept));
            }
            None => eframe::set_value(storage, STORED, &self.settings),
        }
        eframe::set_value(storage, STORED_LAYOUT, &self.settings.tree);
    }
}
