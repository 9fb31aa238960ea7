//! The room of a model: how good it is, what can be done with it, and the place to write to it.

use eframe::egui::{self, Frame, Label, Margin, RichText, Ui};

use crate::gui::export;
use crate::gui::intent::Intent;
use crate::gui::run::control;
use crate::gui::state::{Room, Shared};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::{button, room_switch, weak_note};
use crate::protocol::Progress;
use crate::text::{count, grouped};

mod conversation;
mod inside;
mod prompt;
pub mod samples;
pub mod token_text;

pub fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let margin = Frame::new().inner_margin(Margin::symmetric(12, 8));
    let in_head = egui::Panel::top("model").frame(margin).show(ui, |ui| head(ui, shared)).inner;
    let center = egui::CentralPanel::default().frame(margin);
    in_head.or(center.show(ui, |ui| samples::show(ui, shared)).inner)
}

/// Draws the name of the model, how good it is, and the buttons.
fn head(ui: &mut Ui, shared: &Shared) -> Option<Intent> {
    let Shared { shown, library, .. } = shared;
    let progress = &shown.progress;
    let folder = shown.folder.as_deref()?;
    let has_record = progress.config.is_some();
    let name = library.title(folder);
    let left = |ui: &mut Ui| {
        let name = ui.add(Label::new(RichText::new(name).heading().strong()).truncate());
        name.on_hover_text(folder.display().to_string());
    };
    let right = |ui: &mut Ui| {
        if has_record { room_switch(ui, Room::Model, None) } else { None }
    };
    let entered = egui::Sides::new().shrink_left().truncate().show(ui, left, right).1;
    match result(progress) {
        Some(result) => weak_note(ui, result),
        None => weak_note(ui, folder.display().to_string()),
    }
    ui.add_space(4.0);
    let clicked = ui.horizontal_wrapped(|ui| {
        let missing = export::no_checkpoint(progress);
        let exported = export::menu(ui, progress);
        let help = "Set up a run that begins with these weights";
        let tuned = button(ui, "Train it further...", missing, help);
        let tuned = tuned.then(|| Intent::FineTune(folder.into()));
        let continued = control::continue_button(ui, progress, shown.is_live());
        let opened = !IS_PAGE && button(ui, "Open folder", None, "Show its files");
        let opened = opened.then(|| Intent::OpenFolder(folder.into()));
        exported.or(tuned).or(continued).or(opened)
    });
    clicked.inner.or(entered)
}

/// Describes what came of a run: its size, its loss, and the lowest one that is possible where that is known.
fn result(progress: &Progress) -> Option<String> {
    let config = progress.config.as_ref()?;
    let mut text = format!(
        "{} parameters, {} layers of width {}, context {}, {} updates",
        count(progress.params),
        config.n_layer,
        config.n_embd,
        config.block_size,
        grouped(progress.iteration as f64, 0)
    );
    if let Some(loss) = progress.best_val_loss.or(progress.val_loss) {
        text += &format!("; validation loss {loss:.4}");
        if let Some(bytes) = progress.bytes_per_token {
            let bits = loss / (bytes * std::f64::consts::LN_2);
            text += &format!(" ({bits:.3} bits per byte)");
        }
        if let Some(floor) = progress.entropy_floor {
            text += &format!(", where {floor:.4} is the lowest possible");
        }
    }
    Some(text + ".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_result_compares_with_the_lowest_possible_loss() {
        let mut progress = Progress::default();
        assert_eq!(result(&progress), None);
        let config = Config::of_preset("demo", &[]);
        progress.config = Some(Box::new(config));
        (progress.params, progress.iteration, progress.best_val_loss) = (237_800, 500, Some(0.5));
        let text = result(&progress).unwrap();
        assert!(text.ends_with("500 updates; validation loss 0.5000."), "{text}");
        progress.bytes_per_token = Some(1.0);
        progress.entropy_floor = Some(0.25);
        let text = result(&progress).unwrap();
        let end = "0.5000 (0.721 bits per byte), where 0.2500 is the lowest possible.";
        assert!(text.ends_with(end), "{text}");
    }
}
