//! What the keyboard does.

use eframe::egui::{self, Key, KeyboardShortcut, Modifiers};

use super::App;
use crate::gui::{Intent, control, host};
use crate::protocol::Command;

const CTRL: Modifiers = Modifiers::COMMAND;

/// Keys, and what they do, for the help.
const KEYS: &[(&str, &str)] = &[
    ("Ctrl+Enter", "start training"),
    ("Space", "pause, go on; continue the run that is shown"),
    ("Ctrl+.", "stop, with a checkpoint"),
    ("Ctrl+S", "write a checkpoint now"),
    ("Ctrl+E", "export the newest checkpoint"),
    ("Ctrl+O", "choose texts to train on"),
    ("F1", "this help"),
];

impl App {
    /// What keys ask for. Space belongs to whatever has the focus, if anything has.
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
        if pressed(CTRL, Key::Enter) {
            intents.push(Intent::Start);
        }
        if pressed(CTRL, Key::O) {
            intents.push(Intent::ChooseTexts);
        }
        if live && pressed(CTRL, Key::S) {
            intents.push(Intent::Tell(Command::Checkpoint));
        }
        if live && pressed(CTRL, Key::Period) {
            intents.push(Intent::Tell(Command::Stop));
        }
        if pressed(CTRL, Key::E) {
            intents
                .extend(self.progress.checkpoints.last().map(|c| Intent::Export(c.path.clone())));
        }
        let free = ctx.memory(|memory| memory.focused().is_none());
        let next = control::pause_or_continue(&self.progress, live).filter(|_| free);
        if next.is_some() && pressed(Modifiers::NONE, Key::Space) {
            intents.extend(next);
        }
        intents
    }

    pub(super) fn show_help(&mut self, ui: &egui::Ui) {
        egui::Window::new("Help").open(&mut self.help).resizable(false).show(ui.ctx(), |ui| {
            ui.label("Drop a text on the window, look whether it fits, and start.");
            ui.add_space(4.0);
            egui::Grid::new("keys").striped(true).show(ui, |ui| {
                for (key, what) in KEYS {
                    ui.monospace(*key);
                    ui.label(*what);
                    ui.end_row();
                }
            });
            ui.add_space(4.0);
            ui.label(match host::IS_PAGE {
                true => {
                    "Everything stays on this machine: the texts, the runs, the models. An export is \
                     a Hugging Face folder in a zip, which wgpt on a desktop reads, and the other \
                     way round."
                }
                false => {
                    "Everything here can be done without a window: wgpt --help lists the commands. A \
                     run is a folder; it is continued, sampled and exported by its path."
                }
            });
        });
    }
}
