//! The window: its parts, and how they are drawn.

use std::sync::mpsc::{Receiver, channel};

use eframe::egui::{self, RichText, Ui};

use super::control::{self, ControlBar};
use super::dialogs;
use super::intent::Intent;
use super::layout::PanelLayout;
use super::options::WindowOptions;
use super::platform::{self, Outbox, Platform};
use super::state::Shared;
use super::{status, theme, tiles};
use crate::protocol::{Event, Obstacle};
use crate::text::capitalize;

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
        let (mut settings, panels) = stored::load(storage);
        if settings.runs.as_os_str().is_empty() {
            settings.runs = std::mem::take(&mut options.runs);
        }
        let (sender, queue) = channel();
        let ctx = creation.egui_ctx.clone();
        let own = settings.form.clone();
        let mut controller = Controller {
            shared: Shared { settings, no_drop: options.no_drop, ..Shared::default() },
            panels,
            requests: Requests::new(ctx.clone()),
            platform: Platform::new(Outbox { ctx, sender }, &options),
            options,
        };
        controller.begin();
        let replaced = ReplacedForm::new(own, &controller.shared.settings.form);
        if controller.options.demo {
            controller.start_run();
        }
        if let Some(intent) = platform::recognize(std::mem::take(&mut controller.options.inputs)) {
            controller.carry_out(intent);
        }
        Self { controller, queue, control: ControlBar::default(), title: String::new(), replaced }
    }

    /// Applies events as if they came from a trainer.
    pub fn apply(&mut self, events: &[Event]) {
        self.controller.apply(events);
    }

    /// Brings the panel of this title to the front of its tabs.
    pub fn bring_up(&mut self, title: &str) {
        self.controller.panels.bring_up(title);
    }

    /// Types a setting, as if into its field.
    pub fn set(&mut self, key: &'static str, text: &str) {
        self.controller.shared.settings.form.set(key, text);
    }

    fn draw(&mut self, ui: &mut Ui) -> Vec<Intent> {
        let mut intents = Vec::new();
        egui::Panel::top("headline").show(ui, |ui| {
            ui.horizontal(|ui| {
                ui.strong("wgpt");
                ui.separator();
                control::headline(ui, &self.controller.shared.shown.progress, &mut self.control);
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    let view = ui.menu_button("View", |ui| menu(ui, &mut self.controller));
                    intents.extend(view.inner.flatten());
                    if ui.button("Help").on_hover_text("F1").clicked() {
                        self.controller.shared.dialogs.help.is_open ^= true;
                    }
                });
            });
        });
        let Controller { shared, panels, .. } = &mut self.controller;
        for obstacle @ Obstacle { text, hint, .. } in &shared.obstacles {
            let color = if obstacle.can_train() { theme::warning(ui) } else { theme::error(ui) };
            let sentence = |text: &str| capitalize(text) + ".";
            egui::Panel::top(egui::Id::unique(text)).show(ui, |ui| {
                ui.horizontal_wrapped(|ui| {
                    ui.colored_label(color, RichText::new(sentence(text)).strong());
                    ui.label(sentence(hint));
                });
            });
        }
        if !shared.shown.is_empty() {
            let figures = egui::Panel::top("figures").exact_size(tiles::HEIGHT);
            intents.extend(figures.show(ui, |ui| tiles::show(ui, shared)).inner);
            egui::Panel::bottom("control").show(ui, |ui| {
                let shown = &shared.shown;
                intents.extend(self.control.show(ui, &shown.progress, shown.is_live()));
            });
        }
        egui::CentralPanel::no_frame().show(ui, |ui| intents.extend(panels.show(ui, shared)));
        shared.samples.selection.end_pass(ui.ctx());
        intents
    }
}

/// Draws the menu: theme, zoom, layout, and the end of the window.
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
    if ui.button("Reset layout").clicked() {
        controller.panels = PanelLayout::default();
        ui.close();
    }
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
            requests.describe(&mut shared.settings, &mut shared.fit, now);
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
        let mut intents = dialogs::shortcuts(ui, &mut shared.dialogs.help, &shared.shown);
        intents.extend(self.draw(ui));
        intents.extend(dialogs::show(ui, &mut self.controller.shared));
        for intent in intents {
            self.controller.carry_out(intent);
        }
    }

    fn save(&mut self, storage: &mut dyn eframe::Storage) {
        if self.controller.options.screenshot.is_none() {
            let Controller { shared, panels, .. } = &mut self.controller;
            stored::save(storage, &mut shared.settings, panels, &mut self.replaced);
        }
    }
}
