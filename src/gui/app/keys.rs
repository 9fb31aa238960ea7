//! Keyboard shortcuts, and the help that lists them.

use eframe::egui::{self, Key, KeyboardShortcut, Modifiers};

use super::App;
use crate::gui::platform::IS_PAGE;
use crate::gui::{Intent, control};
use crate::protocol::Command;

const CTRL: Modifiers = Modifiers::COMMAND;

/// Keys and their actions, for the help.
const KEYS: &[(&str, &str)] = &[
    ("Ctrl+Enter", "start training"),
    ("Space", "pause or resume; continue the shown run"),
    ("Ctrl+.", "stop, with a checkpoint"),
    ("Ctrl+S", "write a checkpoint now"),
    ("Ctrl+E", "export the newest checkpoint"),
    ("Ctrl+O", "choose texts to train on"),
    ("Escape", "close a dialog, or this help"),
    ("F1", "this help"),
];

impl App {
    /// Returns the actions of pressed keys. Space goes to the widget that has the focus, if any.
    pub(super) fn shortcuts(&mut self, ui: &egui::Ui) -> Vec<Intent> {
        let ctx = ui.ctx();
        let pressed = |modifiers, key| {
            ctx.input_mut(|input| input.consume_shortcut(&KeyboardShortcut::new(modifiers, key)))
        };
        let live = self.is_live();
        let mut intents = Vec::new();
        if pressed(Modifiers::NONE, Key::F1) {
            self.help = !self.help;
        }
        // A menu or a dialog above the help comes first.
        let has_dialog = ctx.memory(|memory| memory.top_modal_layer().is_some());
        let is_above = self.help && !has_dialog && !egui::Popup::is_any_open(ctx);
        if is_above && pressed(Modifiers::NONE, Key::Escape) {
            self.help = false;
        }
        if pressed(CTRL, Key::Enter) {
            intents.push(Intent::Start);
        }
        if pressed(CTRL, Key::O) {
            intents.push(Intent::ChooseTexts);
        }
        if live && pressed(CTRL, Key::S) {
            intents.push(Intent::Send(Command::Checkpoint));
        }
        if live && pressed(CTRL, Key::Period) {
            intents.push(Intent::Send(Command::Stop));
        }
        if pressed(CTRL, Key::E) {
            intents
                .extend(self.progress.checkpoints.last().map(|c| Intent::Export(c.path.clone())));
        }
        let no_focus = ctx.memory(|memory| memory.focused().is_none());
        let next = control::pause_or_continue(&self.progress, live).filter(|_| no_focus);
        if next.is_some() && pressed(Modifiers::NONE, Key::Space) {
            intents.extend(next);
        }
        intents
    }

    /// Draws the help, if it is open.
    pub(super) fn show_help(&mut self, ui: &egui::Ui) {
        let mut is_open = self.help;
        egui::Window::new("Help").open(&mut is_open).resizable(false).show(ui.ctx(), |ui| {
            ui.label("Drop a text on the window, check that it fits, and start.");
            ui.add_space(4.0);
            egui::Grid::new("keys").striped(true).show(ui, |ui| {
                for (key, action) in KEYS {
                    ui.monospace(*key);
                    ui.label(*action);
                    ui.end_row();
                }
            });
            ui.add_space(4.0);
            ui.label(match IS_PAGE {
                true => {
                    "Everything stays on this machine: the texts, the runs, the models. An export is \
                     a Hugging Face folder in a zip, which this page and wgpt on the desktop \
                     import."
                }
                false => {
                    "Everything here also works without a window: wgpt --help lists the commands. A \
                     run is a folder, and commands continue, sample and export it by its path."
                }
            });
            ui.separator();
            self.show_details(ui);
        });
        self.help &= is_open;
    }
}
