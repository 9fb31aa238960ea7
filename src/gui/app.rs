//! The window: its parts, and how they are drawn.

use std::sync::mpsc::{Receiver, channel};

use eframe::egui::{self, Frame, Margin, Ui};

use super::intent::{Intent, Overrides};
use super::options::WindowOptions;
use super::platform::{self, Outbox, Platform};
use super::run::control::ControlBar;
use super::state::{Room, RunTab, Shared};
use super::widgets::focus_ring;
use super::{dialogs, list, model, notices, run, start, status, theme};
use crate::protocol::Event;

mod controller;
mod intents;
mod replies;
mod requests;
mod stored;
#[cfg(test)]
mod tests;
mod training;

use controller::Controller;
use requests::{LIST_RUNS, Requests};
use stored::ReplacedForm;

pub struct App {
    controller: Controller,
    /// What the platform requests: files that were chosen or dropped.
    queue: Receiver<Intent>,
    control: ControlBar,
    title: String,
    replaced: Option<ReplacedForm>,
}

impl App {
    /// Creates the window with the settings of the last one.
    pub fn new(creation: &eframe::CreationContext<'_>, mut options: WindowOptions) -> Self {
        theme::apply(&creation.egui_ctx, options.is_dark);
        let storage = creation.storage.filter(|_| options.screenshot.is_none());
        let mut settings = stored::load(storage);
        if settings.runs.as_os_str().is_empty() {
            settings.runs = std::mem::take(&mut options.runs);
        }
        let (sender, queue) = channel();
        let ctx = creation.egui_ctx.clone();
        let own = settings.form.clone();
        let mut controller = Controller {
            shared: Shared { settings, no_drop: options.no_drop, ..Shared::default() },
            requests: Requests::new(ctx.clone()),
            platform: Platform::new(Outbox { ctx, sender }, &options),
            options,
        };
        controller.begin();
        let replaced = ReplacedForm::new(own, &controller.shared.settings.form);
        if controller.options.demo {
            controller.start_run(&controller.shared.settings.form.clone());
        }
        if let Some(intent) = platform::recognize(std::mem::take(&mut controller.options.inputs)) {
            controller.requests.shows_newest = false;
            controller.carry_out(intent);
        }
        Self { controller, queue, control: ControlBar::default(), title: String::new(), replaced }
    }

    /// Shows the room of a run, and applies events as if they came from its trainer.
    pub fn apply(&mut self, events: &[Event]) {
        self.controller.shared.room = Room::Run;
        self.controller.apply(events);
    }

    /// Shows the part of a run with this title.
    pub fn bring_up(&mut self, title: &str) {
        let tab = RunTab::ALL.iter().find(|tab| tab.to_string() == title);
        self.controller.shared.run.tab = tab.copied().unwrap_or_default();
    }

    /// Types a setting, as if into its field.
    pub fn set(&mut self, key: &'static str, text: &str) {
        let overrides = [(key.to_string(), text.to_string())].into();
        self.controller.apply_overrides(Overrides { settings: overrides, ..Overrides::default() });
    }

    fn draw(&mut self, ui: &mut Ui) -> Vec<Intent> {
        let mut intents = Vec::new();
        let frame = Frame::side_top_panel(ui.style()).inner_margin(Margin::same(8));
        let list = egui::Panel::left("list").frame(frame).resizable(true);
        list.default_size(LIST).size_range(170.0..=360.0).show(ui, |ui| {
            let foot = egui::Panel::bottom("menus").frame(Frame::NONE).show_separator_line(false);
            foot.show(ui, |ui| {
                ui.add_space(4.0);
                ui.horizontal(|ui| {
                    let view = ui.menu_button("View", |ui| menu(ui, &mut self.controller));
                    intents.extend(view.inner.flatten());
                    if ui.button("Help").on_hover_text("F1").clicked() {
                        self.controller.shared.dialogs.help.is_open ^= true;
                    }
                });
            });
            intents.extend(list::show(ui, &mut self.controller.shared));
        });
        let shared = &mut self.controller.shared;
        let frame = Frame::central_panel(ui.style()).inner_margin(Margin::ZERO);
        egui::CentralPanel::default().frame(frame).show(ui, |ui| {
            notices::show(ui, shared);
            intents.extend(match shared.room {
                Room::Start => {
                    let margin = Frame::new().inner_margin(Margin::symmetric(12, 4));
                    margin.show(ui, |ui| start::show(ui, shared)).inner
                }
                Room::Run => run::show(ui, shared, &mut self.control),
                Room::Model => model::show(ui, shared),
            });
        });
        // The handles of panels, for which egui draws no focus, are as thin as this.
        let focused =
            ui.memory(|memory| memory.focused()).and_then(|id| ui.ctx().read_response(id));
        if let Some(handle) = focused.filter(|widget| widget.rect.size().min_elem() <= HANDLE) {
            focus_ring(ui, &handle);
        }
        shared.samples.selection.end_pass(ui.ctx());
        intents
    }
}

/// The width of the list of a new window, in points.
const LIST: f32 = 220.0;

/// The width of a handle between panels, in points.
const HANDLE: f32 = 8.0;

/// Draws the menu: theme, zoom, and the end of the window.
fn menu(ui: &mut Ui, controller: &mut Controller) -> Option<Intent> {
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
    let Some(link) = controller.platform.link() else {
        return dialogs::when_closed(ui, &mut controller.shared.settings.when_closed);
    };
    // A page ends its run when it closes.
    if ui.button("Copy a link with these settings").clicked() {
        ui.ctx().copy_text(link);
    }
    None
}

impl eframe::App for App {
    fn logic(&mut self, ctx: &egui::Context, _frame: &mut eframe::Frame) {
        let controller = &mut self.controller;
        for reply in controller.requests.client.replies() {
            controller.take(reply);
        }
        controller.take_events(ctx);
        controller.platform.read_dropped();
        for intent in self.queue.try_iter() {
            controller.carry_out(intent);
        }
        let Controller { shared, requests, .. } = controller;
        let now = ctx.input(|input| input.time);
        requests.list_runs(&shared.settings, now);
        if !controller.options.still {
            requests.describe(&mut shared.settings, &mut shared.start.fit, now);
            requests.compare(&shared.shown, &mut shared.library);
            ctx.request_repaint_after(LIST_RUNS);
        }
        if shared.shown.has_own_trainer() {
            let when_closed = shared.settings.when_closed;
            let intent = dialogs::handle_close(ctx, &mut shared.dialogs.closing, when_closed);
            intent.into_iter().for_each(|intent| controller.carry_out(intent));
        }
        let Controller { shared, requests, platform, .. } = controller;
        let progress = &shared.shown.progress;
        let title = status::title(progress, shared.shown_name());
        if title != self.title {
            platform.set_title(&title);
            self.title = title;
        }
        platform.report(&shared.settings.form, progress, requests.pace());
    }

    fn ui(&mut self, ui: &mut Ui, _frame: &mut eframe::Frame) {
        let shared = &mut self.controller.shared;
        let room = shared.room;
        let mut intents = dialogs::shortcuts(ui, &mut shared.dialogs.help, &shared.shown, room);
        intents.extend(self.draw(ui));
        intents.extend(dialogs::show(ui, &mut self.controller.shared));
        for intent in intents {
            self.controller.carry_out(intent);
        }
    }

    fn save(&mut self, storage: &mut dyn eframe::Storage) {
        if self.controller.options.screenshot.is_none() {
            stored::save(storage, &mut self.controller.shared, &mut self.replaced);
        }
    }
}
