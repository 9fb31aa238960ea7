//! Messages above the room: what is wrong with this machine, and what has just happened.

use eframe::egui::{self, Frame, Label, Margin, RichText, Ui};

use super::state::{Notice, Shared};
use super::theme;
use super::widgets::button;
use crate::protocol::{Level, Obstacle};
use crate::text::capitalize;

/// Draws the obstacles, and the notices until they are closed.
pub fn show(ui: &mut Ui, shared: &mut Shared) {
    for obstacle @ Obstacle { text, hint, .. } in &shared.obstacles {
        let color = if obstacle.can_train() { theme::warning(ui) } else { theme::error(ui) };
        let sentence = |text: &str| capitalize(text) + ".";
        bar(ui, text, |ui| {
            ui.horizontal_wrapped(|ui| {
                ui.colored_label(color, RichText::new(sentence(text)).strong());
                ui.label(sentence(hint));
            });
        });
    }
    shared.notices.retain(|notice| !bar(ui, &notice.text, |ui| draw(ui, notice)));
}

fn bar<R>(ui: &mut Ui, id: &str, add: impl FnOnce(&mut Ui) -> R) -> R {
    let frame = Frame::new().fill(ui.visuals().faint_bg_color);
    let panel = egui::Panel::top(egui::Id::unique(("notice", id)));
    panel.frame(frame.inner_margin(Margin::symmetric(12, 6))).show(ui, add).inner
}

/// Draws a notice. Returns true if it was closed.
fn draw(ui: &mut Ui, Notice { level, text, commands }: &Notice) -> bool {
    let color = match level {
        Level::Info => ui.visuals().strong_text_color(),
        level => theme::level_color(ui, *level),
    };
    let close = |ui: &mut Ui| button(ui, "Close", None, "Close this notice");
    let words = |ui: &mut Ui| ui.add(Label::new(RichText::new(text).color(color)).wrap());
    let (_, is_closed) = egui::Sides::new().shrink_left().show(ui, words, close);
    if !commands.is_empty() {
        ui.horizontal_top(|ui| {
            ui.add(Label::new(RichText::new(commands).monospace()).wrap().selectable(true));
            if button(ui, "Copy", None, "Copy these commands") {
                ui.ctx().copy_text(commands.clone());
            }
        });
    }
    is_closed
}
