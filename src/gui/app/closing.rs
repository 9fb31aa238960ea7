//! Closing the window while a run that it has started trains.

use eframe::egui::{self, Ui, ViewportCommand};
use serde::{Deserialize, Serialize};

use crate::protocol::{Command, Setting};

/// The fate of a run when its window closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::gui) enum WhenClosed {
    /// A dialog asks; without an answer the run continues.
    #[default]
    Ask,
    Stop,
    #[serde(rename = "GoOn")]
    Continue,
}

/// A window that is to close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Closing {
    #[default]
    No,
    /// A dialog asks what happens to the run.
    Asking,
    Yes,
}

impl Closing {
    /// Draws the dialog that asks what happens to the run. Returns the answer as a command.
    pub fn ask(&mut self, ui: &Ui) -> Option<Command> {
        if *self != Self::Asking {
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
                *self = Self::Yes;
                ui.ctx().send_viewport_cmd(ViewportCommand::Close);
            }
            None if !modal.should_close() => {}
            _ => *self = Self::No,
        }
        modal.inner.flatten()
    }

    /// Stops the run, asks first, or lets it continue, if the window is to close.
    pub fn handle(&mut self, ctx: &egui::Context, when: WhenClosed) -> Option<Command> {
        let is_requested = ctx.input(|input| input.viewport().close_requested());
        if !is_requested || *self == Self::Yes {
            return None;
        }
        match when {
            WhenClosed::Continue => None,
            WhenClosed::Stop => Some(Command::Stop),
            WhenClosed::Ask => {
                ctx.send_viewport_cmd(ViewportCommand::CancelClose);
                // A minimized window shows no question.
                ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
                ctx.send_viewport_cmd(ViewportCommand::Focus);
                *self = Self::Asking;
                None
            }
        }
    }
}

impl WhenClosed {
    /// Draws the choice of what happens to a run when the window closes. Returns a change as a
    /// command.
    pub fn choice(&mut self, ui: &mut Ui) -> Option<Command> {
        ui.label("When the window closes during a run");
        let before = *self;
        ui.radio_value(self, Self::Ask, "ask what to do");
        ui.radio_value(self, Self::Stop, "stop with a checkpoint");
        ui.radio_value(self, Self::Continue, "let it continue");
        let stop = Command::Set(Setting::StopOnClose(*self == Self::Stop));
        (*self != before).then_some(stop)
    }
}
