//! Closing the window while a run that it has started trains.

use eframe::egui::{self, Ui, ViewportCommand};

use crate::gui::intent::Intent;
use crate::gui::state::{Closing, WhenClosed};
use crate::protocol::{Command, Setting};

/// Draws the dialog that asks what happens to the run.
pub fn ask(ui: &Ui, closing: &mut Closing) -> Option<Intent> {
    if *closing != Closing::Asking {
        return None;
    }
    let modal = egui::Modal::new(egui::Id::unique("closing")).show(ui.ctx(), |ui| {
        ui.heading("A run is training");
        ui.label("It can continue without the window, and be shown again later.");
        ui.add_space(6.0);
        let answers = [
            ("Stop with a checkpoint", Some(Command::Stop)),
            ("Let it continue", Some(Command::Set(Setting::StopOnClose(false)))),
            ("Keep the window", None),
        ];
        let row = ui.horizontal(|ui| {
            answers.map(|(text, command)| ui.button(text).clicked().then_some(command))
        });
        row.inner.into_iter().flatten().next()
    });
    match modal.inner {
        Some(Some(_)) => {
            *closing = Closing::Yes;
            ui.ctx().send_viewport_cmd(ViewportCommand::Close);
        }
        None if !modal.should_close() => {}
        _ => *closing = Closing::No,
    }
    modal.inner.flatten().map(Intent::SendToOwnRun)
}

/// Stops the run, asks first, or lets it continue, if the window is to close.
pub fn handle_close(
    ctx: &egui::Context,
    closing: &mut Closing,
    when_closed: WhenClosed,
) -> Option<Intent> {
    let is_requested = ctx.input(|input| input.viewport().close_requested());
    if !is_requested || *closing == Closing::Yes {
        return None;
    }
    match when_closed {
        WhenClosed::Continue => None,
        WhenClosed::Stop => Some(Intent::SendToOwnRun(Command::Stop)),
        WhenClosed::Ask => {
            ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            // A minimized window shows no question.
            ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
            ctx.send_viewport_cmd(ViewportCommand::Focus);
            *closing = Closing::Asking;
            None
        }
    }
}

/// Draws the choice of what happens to a run when the window closes.
pub fn when_closed(ui: &mut Ui, chosen: &mut WhenClosed) -> Option<Intent> {
    ui.label("When the window closes during a run");
    let before = *chosen;
    ui.radio_value(chosen, WhenClosed::Ask, "ask what to do");
    ui.radio_value(chosen, WhenClosed::Stop, "stop with a checkpoint");
    ui.radio_value(chosen, WhenClosed::Continue, "let it continue");
    let stop = Setting::StopOnClose(*chosen == WhenClosed::Stop);
    (*chosen != before).then_some(Intent::SendToOwnRun(Command::Set(stop)))
}
