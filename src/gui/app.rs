//! The window: its parts, and how they are drawn.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use eframe::egui::{self, RichText, Ui};

use super::control::{self, ControlBar};
use super::form::{SettingsForm, capitalize};
use super::layout::{Pane, PanelLayout};
use super::platform::{Outbox, Platform};
use super::{Intent, Options, Shared, finished, theme, tiles};
use crate::protocol::{Command, Event, Obstacle, RunSettings, StopReason};
use crate::worker::Client;

mod closing;
mod help;
mod intents;
mod path_dialog;
mod replies;
#[cfg(test)]
mod tests;

use closing::Closing;
pub(super) use closing::WhenClosed;
use help::Help;
use path_dialog::PathDialog;
use replies::Requests;

const SETTINGS: &str = "wgpt";

/// The key of the layout. It is stored separately, so that another version's layout does not lose
/// the settings.
const LAYOUT: &str = "panels";

/// The time between two lists of the runs.
const LIST_RUNS: Duration = Duration::from_secs(5);

const USUAL_PACE: u64 = 50;

/// The pace of a browser that draws in software. A frame takes a fifth of a second there, and at the
/// usual pace training took five times as long.
const SLOW_PACE: u64 = 2000;

pub struct App {
    options: Options,
    shared: Shared,
    panels: PanelLayout,
    requests: Requests,
    platform: Platform,
    /// What the platform requests: files that were chosen or dropped.
    queue: Receiver<Intent>,
    /// The delay between a reply or an event and the frame that draws it, in milliseconds; threads
    /// of the service read it.
    pace: Arc<AtomicU64>,
    /// The settings of the form with its overrides, and the form that is stored as long as they are
    /// unchanged.
    overridden: Option<(RunSettings, SettingsForm)>,
    obstacles: Vec<Obstacle>,
    control: ControlBar,
    closing: Closing,
    path_dialog: Option<PathDialog>,
    help: Help,
    title: String,
}

impl App {
    /// Creates the window with the settings of the last one.
    pub fn new(creation: &eframe::CreationContext<'_>, options: Options) -> Self {
        theme::apply(&creation.egui_ctx);
        let storage = creation.storage.filter(|_| options.screenshot.is_none());
        // What another version wrote may not be readable.
        let settings = storage.and_then(|storage| eframe::get_value(storage, SETTINGS));
        let panels = storage.and_then(|storage| eframe::get_value(storage, LAYOUT));
        let (ctx, pace) = (creation.egui_ctx.clone(), Arc::new(AtomicU64::new(USUAL_PACE)));
        let waking = pace.clone();
        let client = Client::new(move || ctx.request_repaint_after(delay(&waking)));
        let (sender, queue) = channel();
        let outbox = Outbox { ctx: creation.egui_ctx.clone(), sender };
        let mut app = Self {
            shared: Shared { settings: settings.unwrap_or_default(), ..Shared::default() },
            panels: panels.unwrap_or_default(),
            requests: Requests::new(client),
            platform: Platform::new(outbox, &options),
            queue,
            pace,
            overridden: None,
            obstacles: Vec::new(),
            control: ControlBar::default(),
            closing: Closing::No,
            path_dialog: None,
            help: Help::default(),
            title: String::new(),
            options,
        };
        app.begin();
        app
    }

    /// Applies events as if they came from a trainer.
    pub fn apply(&mut self, events: &[Event]) {
        for event in events {
            let shown = &mut self.shared.shown;
            shown.progress.apply(event);
            match event {
                Event::Start { .. } => shown.has_finished = false,
                Event::Paused { .. } | Event::Resumed { .. } => {}
                Event::Error(error) => {
                    // The log has the error and what to do next.
                    self.bring_up(Pane::Log.title());
                    self.notify("has failed", &error.text);
                }
                Event::Done { reason: StopReason::Finished | StopReason::MaxTime, .. } => {
                    shown.has_finished = true;
                    let result = finished::result(&shown.progress);
                    self.notify("has finished", &result);
                    self.request_model();
                }
                Event::Done { .. } => self.request_model(),
                _ => continue,
            }
            // The list shows the state of each run.
            self.requests.listed = None;
        }
    }

    /// Tells a person who looks at something else about the run that a process trains.
    fn notify(&self, what: &str, text: &str) {
        if self.shared.shown.is_live() {
            let name = self.shared.shown_name().unwrap_or("the run");
            self.platform.notify(&format!("{name} {what}"), &capitalize(text));
        }
    }

    /// Sets the folder in which runs are created and listed.
    pub fn look_for_runs_in(&mut self, folder: &Path) {
        self.shared.settings.runs = folder.to_path_buf();
        self.requests.listed = None;
    }

    /// Brings the panel of this title to the front of its tabs.
    pub fn bring_up(&mut self, title: &str) {
        self.panels.bring_up(title);
    }

    /// Types a setting, as if into its field.
    pub fn set(&mut self, key: &'static str, text: &str) {
        self.shared.settings.form.set(key, text);
    }

    fn draw(&mut self, ui: &mut Ui) -> Vec<Intent> {
        let (mut intents, mut command) = (Vec::new(), None);
        egui::Panel::top("headline").show(ui, |ui| {
            ui.horizontal(|ui| {
                ui.strong("wgpt");
                ui.separator();
                control::headline(ui, &self.shared.shown.progress, &mut self.control);
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    command = ui.menu_button("View", |ui| self.menu(ui)).inner.flatten();
                    if ui.button("Help").on_hover_text("F1").clicked() {
                        self.help.is_open = !self.help.is_open;
                    }
                });
            });
        });
        self.send_to_own_run(command);
        for obstacle @ Obstacle { text, hint, .. } in &self.obstacles {
            let color = if obstacle.can_train() { theme::warning(ui) } else { theme::error(ui) };
            let sentence = |text: &str| capitalize(text) + ".";
            egui::Panel::top(egui::Id::unique(text)).show(ui, |ui| {
                ui.horizontal_wrapped(|ui| {
                    ui.colored_label(color, RichText::new(sentence(text)).strong());
                    ui.label(sentence(hint));
                });
            });
        }
        if !self.shared.shown.is_empty() {
            let figures = egui::Panel::top("figures").exact_size(tiles::HEIGHT);
            intents.extend(figures.show(ui, |ui| tiles::show(ui, &mut self.shared)).inner);
            egui::Panel::bottom("control").show(ui, |ui| {
                let shown = &self.shared.shown;
                intents.extend(self.control.show(ui, &shown.progress, shown.is_live()));
            });
        }
        egui::CentralPanel::no_frame().show(ui, |ui| {
            intents.extend(self.panels.show(ui, &mut self.shared));
        });
        self.shared.samples.selection.end_pass(ui.ctx());
        intents
    }

    /// Draws the menu: theme, zoom, layout, and the end of the window. Returns a command for the run.
    fn menu(&mut self, ui: &mut Ui) -> Option<Command> {
        theme::choice(ui);
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
            self.panels = PanelLayout::default();
            ui.close();
        }
        ui.separator();
        match self.platform.link() {
            Some(link) => {
                if ui.button("Copy a link with these settings").clicked() {
                    ui.ctx().copy_text(link);
                }
                // A page ends its run when it closes.
                None
            }
            None => self.shared.settings.when_closed.choice(ui),
        }
    }
}

impl eframe::App for App {
    fn logic(&mut self, ctx: &egui::Context, _frame: &mut eframe::Frame) {
        for reply in self.requests.client.replies() {
            self.take(reply);
        }
        self.take_events(ctx);
        self.platform.read_dropped();
        for intent in self.queue.try_iter().collect::<Vec<_>>() {
            self.carry_out(intent);
        }
        if !self.options.still {
            self.requests.update(&mut self.shared, ctx.input(|input| input.time));
            ctx.request_repaint_after(LIST_RUNS);
        }
        if self.shared.shown.has_own_trainer() {
            let command = self.closing.handle(ctx, self.shared.settings.when_closed);
            self.send_to_own_run(command);
        }
        let title = control::title(&self.shared.shown.progress, self.shared.shown_name());
        if title != self.title {
            self.platform.set_title(&title);
            self.title = title;
        }
        self.platform.report(&self.shared, delay(&self.pace));
    }

    fn ui(&mut self, ui: &mut Ui, _frame: &mut eframe::Frame) {
        let mut intents = help::shortcuts(ui, &mut self.help, &self.shared.shown);
        intents.extend(self.draw(ui));
        intents.extend(self.help.show(ui, &self.shared.settings.runs));
        let command = self.closing.ask(ui);
        self.send_to_own_run(command);
        intents.extend(PathDialog::show(&mut self.path_dialog, ui));
        #[cfg(not(target_arch = "wasm32"))]
        intents.extend(super::get_list::show(ui, &mut self.shared));
        for intent in intents {
            self.carry_out(intent);
        }
    }

    fn save(&mut self, storage: &mut dyn eframe::Storage) {
        if self.options.screenshot.is_some() {
            return;
        }
        let form = &mut self.shared.settings.form;
        self.overridden.take_if(|(settings, _)| *settings != form.settings());
        let own = self.overridden.as_ref().map(|(_, own)| own.clone());
        let edited = own.map(|own| std::mem::replace(form, own));
        eframe::set_value(storage, SETTINGS, &self.shared.settings);
        eframe::set_value(storage, LAYOUT, &self.panels);
        if let Some(edited) = edited {
            self.shared.settings.form = edited;
        }
    }
}

fn delay(pace: &AtomicU64) -> Duration {
    Duration::from_millis(pace.load(Relaxed))
}
