//! "Look inside a text": the loss of each token of pasted text.

use eframe::egui::{Button, ScrollArea, TextEdit, Ui, text::LayoutJob};

use super::token_text;
use crate::gui::intent::Intent;
use crate::gui::state::InsideState;
use crate::gui::widgets::{action, button};
use crate::protocol::Request;

/// Draws the field for the text, and its tokens. `obstacle` is why the model cannot read it now.
pub(super) fn show(ui: &mut Ui, state: &mut InsideState, obstacle: Option<&str>) -> Option<Intent> {
    let label = ui.weak("Paste a text to see how likely each part of it is to the model.");
    let field = ScrollArea::vertical().id_salt("text to read").max_height(110.0);
    field.show(ui, |ui| {
        let edit = TextEdit::multiline(&mut state.text).desired_rows(3).hint_text("Text");
        ui.add(edit.desired_width(f32::INFINITY)).labelled_by(label.id);
    });
    let mut intent = None;
    ui.horizontal_wrapped(|ui| {
        if state.is_reading {
            if button(ui, "Stop", None, "Keep the tokens so far") {
                intent = Some(Intent::Ask(Request::StopSample));
            }
            ui.weak("The model is reading the text.");
            return;
        }
        let reason = obstacle.or(state.text.is_empty().then_some("Paste a text first."));
        if action(ui, Button::new("Look inside"), reason, "Compute the loss of each token") {
            intent = Some(state.look_into(state.text.clone()));
        }
        token_text::loss(ui, &state.tokens);
    });
    if !state.tokens.is_empty() {
        ui.horizontal_wrapped(token_text::legend);
        ui.separator();
        let texts = ScrollArea::vertical().id_salt("tokens").auto_shrink(false);
        texts.show(ui, |ui| token_text::show(ui, LayoutJob::default(), &state.tokens));
    }
    intent
}
