//! The card in the middle of an empty window: three ways to a first run.

use eframe::egui::{self, Button, RichText, Ui};

use super::intent::{FileChoice, Intent};
use super::target::IS_PAGE;

/// The width of a way, in points.
const WIDTH: f32 = 400.0;

struct Way {
    title: &'static str,
    text: &'static str,
    button: &'static str,
    intent: Intent,
}

pub(super) fn show(ui: &mut Ui) -> Option<Intent> {
    let ways = [
        Way {
            title: "Demo, two minutes",
            text: "A tiny model learns to tell simple stories while you watch.",
            button: "Start the demo",
            intent: Intent::Demo,
        },
        Way {
            title: "Your text",
            text: "Drop it here or choose files: a book, notes, code. wgpt suggests a model for it, \
                   for your time and for this computer.",
            button: "Choose files...",
            intent: Intent::Choose(FileChoice::Texts),
        },
        Way {
            title: "Get a text",
            text: "Stories, an encyclopedia, web pages: a list of good texts, with their licences.",
            button: "Show the list...",
            intent: Intent::ListTexts,
        },
    ];
    // A page connects to nothing.
    let ways = ways.into_iter().take(if IS_PAGE { 2 } else { 3 });
    let mut intent = None;
    egui::ScrollArea::vertical().id_salt("welcome").show(ui, |ui| {
        ui.vertical_centered(|ui| {
            ui.add_space((ui.available_height() * 0.12).min(60.0));
            ui.heading("Train a language model on this computer");
            ui.add_space(12.0);
            for (nth, Way { title, text, button, intent: way }) in ways.enumerate() {
                let frame = egui::Frame::group(ui.style()).inner_margin(12.0);
                frame.fill(ui.visuals().faint_bg_color).show(ui, |ui| {
                    ui.set_width(WIDTH.min(ui.available_width()));
                    ui.label(RichText::new(title).strong().size(16.0));
                    ui.label(text);
                    ui.add_space(4.0);
                    let mut button = Button::new(RichText::new(button).strong());
                    if nth == 0 {
                        button = button.fill(ui.visuals().selection.bg_fill);
                    }
                    if ui.add(button).clicked() {
                        intent = Some(way);
                    }
                });
                ui.add_space(8.0);
            }
        });
    });
    intent
}
