//! The card of a run that has just finished: what came of it, and what can follow.

use eframe::egui::{self, RichText};

use super::{Intent, theme};
use crate::protocol::Progress;
use crate::text::grouped;

/// A click on the card.
#[derive(Debug, PartialEq)]
pub(super) enum Click {
    /// Closes the card.
    Close,
    /// Carries this out, and closes the card.
    Do(Intent),
}

/// Draws the card. `name` is the display name of the run.
pub(super) fn show(ui: &mut egui::Ui, name: &str, progress: &Progress) -> Option<Click> {
    let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color);
    let frame = frame.stroke((1.0, theme::good(ui))).corner_radius(4.0).inner_margin(8.0);
    let mut click = None;
    frame.show(ui, |ui| {
        ui.set_min_width(ui.available_width());
        ui.horizontal_wrapped(|ui| {
            ui.label(RichText::new(format!("{name} has finished")).strong().color(theme::good(ui)));
            ui.label(result(progress));
        });
        ui.horizontal_wrapped(|ui| {
            let mut button = |text: &str, help: &str, action: Option<Click>| {
                let button = ui.add_enabled(action.is_some(), egui::Button::new(text));
                let button = button.on_hover_text(help);
                if button.on_disabled_hover_text("The run has no checkpoint.").clicked() {
                    click = action;
                }
            };
            let best = progress.checkpoints.iter().rev().find(|checkpoint| checkpoint.best);
            let checkpoint = best.or(progress.checkpoints.last());
            let has_model = checkpoint.map(|_| Click::Do(Intent::Try));
            button("Try it", "Type a prompt, and the model continues it", has_model);
            let export = checkpoint.map(|best| Click::Do(Intent::Export(best.path.clone())));
            let help = "Export the best checkpoint as a Hugging Face folder";
            button("Export...", help, export);
            let help = "Choose text files of yours for the next run";
            button("Train on your text...", help, Some(Click::Do(Intent::ChooseTexts)));
            button("Close", "Close this card", Some(Click::Close));
        });
    });
    click
}

/// Describes what came of the run.
pub(super) fn result(progress: &Progress) -> String {
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
