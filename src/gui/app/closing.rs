//! Closing the window while a run that it has started trains.

use eframe::egui;

use super::{App, WhenClosed};
use crate::protocol::{Command, Setting};

/// The state of a window that is to close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Closing {
    #[default]
    No,
    /// A dialog asks what happens to the run.
    Asking,
    Yes,
}

impl App {
    /// Draws the menu's choice of what happens to a run when the window closes.
    pub(super) fn when_closed_menu(&mut self, ui: &mut egui::Ui) {
        ui.label("When the window closes, a run");
        let when = &mut self.shared.settings.when_closed;
        let before = *when;
        ui.radio_value(when, WhenClosed::Ask, "asks what to do");
        ui.radio_value(when, WhenClosed::Stop, "stops with a checkpoint");
        ui.radio_value(when, WhenClosed::Continue, "continues");
        let now = *when;
        if now != before {
            self.set_stop_on_close(now == WhenClosed::Stop);
        }
    }

    /// Draws the dialog that asks what happens to the run.
    pub(super) fn ask_before_closing(&mut self, ui: &egui::Ui) {
        if self.closing != Closing::Asking {
            return;
        }
        let modal = egui::Modal::new(egui::Id::unique("closing")).show(ui.ctx(), |ui| {
            ui.heading("A run is training");
            ui.label("It can continue without the window, and be shown again later.");
            ui.add_space(6.0);
            ui.horizontal(|ui| {
                if ui.button("Stop with a checkpoint").clicked() {
                    self.send_command(&Command::Stop);
                    self.closing = Closing::Yes;
                }
                if ui.button("Let it continue").clicked() {
                    self.set_stop_on_close(false);
                    self.closing = Closing::Yes;
                }
                if ui.button("Keep the window").clicked() {
                    self.closing = Closing::No;
                }
            });
        });
        if self.closing == Closing::Asking && modal.should_close() {
            self.closing = Closing::No;
        }
        if self.closing == Closing::Yes {
            ui.ctx().send_viewport_cmd(egui::ViewportCommand::Close);
        }
    }

    /// Stops the run, asks first, or lets it continue, when the window is to close.
    pub(super) fn on_close(&mut self, ctx: &egui::Context) {
        let is_requested = ctx.input(|input| input.viewport().close_requested());
        if !is_requested || !self.shared.shown.has_own_trainer() {
            return;
        }
        match (self.closing, self.shared.settings.when_closed) {
            (Closing::Yes, _) | (_, WhenClosed::Continue) => {}
            (_, WhenClosed::Stop) => self.send_command(&Command::Stop),
            (_, WhenClosed::Ask) => {
                ctx.send_viewport_cmd(egui::ViewportCommand::CancelClose);
                // A minimized window shows no question.
                ctx.send_viewport_cmd(egui::ViewportCommand::Minimized(false));
                ctx.send_viewport_cmd(egui::ViewportCommand::Focus);
                self.closing = Closing::Asking;
            }
        }
    }

    /// Sets whether the run stops when the window closes.
    fn set_stop_on_close(&mut self, stop: bool) {
        if self.shared.shown.has_own_trainer() {
            self.send_command(&Command::Set(Setting::StopOnClose(stop)));
        }
    }
}
