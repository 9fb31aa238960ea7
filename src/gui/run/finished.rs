//! The notice about a run that has just finished: its result, and what can follow.

use eframe::egui::{self, RichText, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::Shared;
use crate::gui::widgets::button;
use crate::gui::{export, theme};
use crate::protocol::Progress;
use crate::text::grouped;

/// Draws the notice in a row of tiles. A click in it closes it.
pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let progress = &shared.shown.progress;
    let name = shared.shown_name().unwrap_or("The run");
    let missing = export::no_checkpoint(progress);
    let clicked = ui.vertical(|ui| {
        let text = format!("{name} has finished {}", result(progress));
        let text = RichText::new(text).strong().color(theme::good(ui));
        ui.add(egui::Label::new(text).truncate());
        ui.horizontal(|ui| {
            // All are drawn, also those after the one that is clicked.
            let help = "Type a prompt, and the model continues it";
            let again = button(ui, "Try it", missing, help).then_some(Some(Intent::Try));
            let export = export::menu(ui, progress).map(Some);
            let help = "Set up a run on your own text";
            let texts = button(ui, "Train on your text...", None, help);
            let texts = texts.then_some(Some(Intent::New));
            let close = button(ui, "Close", None, "Back to the figures").then_some(None);
            again.or(export).or(texts).or(close)
        })
        .inner
    });
    let intent = clicked.inner?;
    shared.shown.has_finished = false;
    intent
}

pub fn result(progress: &Progress) -> String {
    let mut text = format!("after {} iterations", grouped(progress.iteration as f64, 0));
    if let Some(loss) = progress.val_loss.or(progress.loss) {
        let name = if progress.val_loss.is_some() { "validation loss" } else { "loss" };
        text += &format!(", {name} {loss:.4}");
    }
    if let (Some(best), Some(last)) = (progress.best_val_loss, progress.val_loss)
        && best < last
    {
        text += &format!(" (best {best:.4})");
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_names_the_best_loss_where_the_last_is_worse() {
        let mut progress = Progress { iteration: 120, ..Progress::default() };
        assert_eq!(result(&progress), "after 120 iterations.");
        progress.loss = Some(2.0);
        assert_eq!(result(&progress), "after 120 iterations, loss 2.0000.");
        (progress.val_loss, progress.best_val_loss) = (Some(1.5), Some(1.5));
        assert_eq!(result(&progress), "after 120 iterations, validation loss 1.5000.");
        progress.best_val_loss = Some(1.25);
        let worse = "after 120 iterations, validation loss 1.5000 (best 1.2500).";
        assert_eq!(result(&progress), worse);
        progress.iteration = 1500;
        assert!(result(&progress).starts_with("after 1,500 iterations, "));
    }
}
