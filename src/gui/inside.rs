//! "Look inside a text": the loss of each token of a text that the person gives.

use eframe::egui::{Button, ScrollArea, TextEdit, Ui, text::LayoutJob};

use super::Intent;
use super::token_text;
use super::widgets::{action, button};
use crate::protocol::{Request, SampleInput, ScoredToken};

#[derive(Debug, Default)]
pub(super) struct InsideState {
    /// True if this is shown in place of the samples.
    pub is_open: bool,
    text: String,
    tokens: Vec<ScoredToken>,
    is_reading: bool,
}

impl InsideState {
    /// Adds tokens. Those of a text that is no longer read are left out.
    pub fn scored(&mut self, tokens: Vec<ScoredToken>, done: bool) {
        if self.is_reading {
            self.tokens.extend(tokens);
            self.is_reading = !done;
        }
    }

    /// Ends the reading; the tokens so far stay. Returns true if a text was being read.
    pub fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_reading)
    }

    /// Forgets the tokens: another model is shown.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Opens this with a text, and requests its tokens.
    pub fn look_into(&mut self, text: String) -> Intent {
        (self.is_open, self.is_reading, self.text) = (true, true, text);
        self.tokens.clear();
        Intent::Generate(SampleInput::Text(self.text.clone()))
    }

    #[cfg(test)]
    pub fn tokens(&self) -> &[ScoredToken] {
        &self.tokens
    }

    /// Draws the field for the text, and its tokens. `obstacle` is why the model cannot read it now.
    pub fn show(&mut self, ui: &mut Ui, obstacle: Option<&str>) -> Option<Intent> {
        let label = ui.weak("Paste a text to see how likely each part of it is to the model.");
        let field = ScrollArea::vertical().id_salt("text to read").max_height(110.0);
        field.show(ui, |ui| {
            let edit = TextEdit::multiline(&mut self.text).desired_rows(3).hint_text("Text");
            ui.add(edit.desired_width(f32::INFINITY)).labelled_by(label.id);
        });
        let mut intent = None;
        ui.horizontal_wrapped(|ui| {
            if self.is_reading {
                if button(ui, "Stop", None, "Keep the tokens so far") {
                    intent = Some(Intent::Ask(Request::StopSample));
                }
                ui.weak("The model is reading the text.");
                return;
            }
            let reason = obstacle.or(self.text.is_empty().then_some("Paste a text first."));
            if action(ui, Button::new("Look inside"), reason, "Compute the loss of each token") {
                intent = Some(self.look_into(self.text.clone()));
            }
            token_text::loss(ui, &self.tokens);
        });
        if !self.tokens.is_empty() {
            ui.horizontal_wrapped(token_text::legend);
            ui.separator();
            let texts = ScrollArea::vertical().id_salt("tokens").auto_shrink(false);
            texts.show(ui, |ui| token_text::show(ui, LayoutJob::default(), &self.tokens));
        }
        intent
    }
}
