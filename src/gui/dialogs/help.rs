//! Keyboard shortcuts, and the help: a list of them, and the text of `wgpt doctor` for a bug report.

use std::path::Path;

use eframe::egui::{self, Grid, Key, KeyboardShortcut, Label, Modifiers, RichText, ScrollArea, Ui};

use crate::gui::intent::{FileChoice, Intent};
use crate::gui::run::control;
use crate::gui::state::{HelpState, Room, ShownRun};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::button;
use crate::gui::{export, platform};
use crate::protocol::{Command, Request};

const HEIGHT: f32 = 240.0;

const DESKTOP: &str = "Everything here also works without a window: \"wgpt help\" lists the commands. \
                       A run is a folder, and commands continue, sample and export it by its path.";
const PAGE: &str = "Everything stays on this machine: the texts, the runs, the models. An export is \
                    a Hugging Face folder in a zip, which this page and wgpt on the desktop import.";

const CTRL: Modifiers = Modifiers::COMMAND;

const KEYS: &[(&str, &str)] = &[
    ("Ctrl+N", "set up a run"),
    ("Ctrl+Enter", "start the run that is set up"),
    ("Space", "pause or resume; continue the shown run"),
    ("Ctrl+.", "stop, with a checkpoint"),
    ("Ctrl+S", "write a checkpoint now"),
    ("Ctrl+E", "export the shown run"),
    ("Ctrl+O", "choose texts to train on"),
    ("Escape", "close a dialog, or this help"),
    ("F1", "this help"),
];

/// Returns the intents of pressed keys. Space goes to the widget that has the focus, if any.
pub fn shortcuts(ui: &Ui, help: &mut HelpState, shown: &ShownRun, room: Room) -> Vec<Intent> {
    let ctx = ui.ctx();
    let pressed = |modifiers, key| {
        ctx.input_mut(|input| input.consume_shortcut(&KeyboardShortcut::new(modifiers, key)))
    };
    if pressed(Modifiers::NONE, Key::F1) {
        help.is_open = !help.is_open;
    }
    // A menu or a dialog above the help comes first.
    let has_dialog = ctx.memory(|memory| memory.top_modal_layer().is_some());
    let is_top = help.is_open && !has_dialog && !egui::Popup::is_any_open(ctx);
    if is_top && pressed(Modifiers::NONE, Key::Escape) {
        help.is_open = false;
    }
    if has_dialog {
        return Vec::new();
    }
    let live = |command: Command| shown.is_live().then_some(Intent::Send(command));
    let run = shown.folder.clone().filter(|_| !shown.progress.checkpoints.is_empty());
    let has_focus = ctx.memory(|memory| memory.focused().is_some());
    let space = control::pause_or_continue(&shown.progress, shown.is_live());
    let keys = [
        // Browsers open a window with it.
        (CTRL, Key::N, (!IS_PAGE).then_some(Intent::New)),
        (CTRL, Key::Enter, Some(Intent::Start)),
        (CTRL, Key::O, Some(Intent::Choose(FileChoice::Texts))),
        (CTRL, Key::S, live(Command::Checkpoint)),
        (CTRL, Key::Period, live(Command::Stop)),
        (CTRL, Key::E, run.map(export::hugging_face)),
        (Modifiers::NONE, Key::Space, space.filter(|_| !has_focus && room != Room::Start)),
    ];
    let of_pressed = |(modifiers, key, intent): (_, _, Option<Intent>)| {
        intent.filter(|_| pressed(modifiers, key))
    };
    keys.into_iter().filter_map(of_pressed).collect()
}

/// Draws the help, if it is open. `runs` is the folder of the runs.
pub fn show(ui: &Ui, help: &mut HelpState, runs: &Path) -> Option<Intent> {
    let mut is_open = help.is_open;
    let window = egui::Window::new("Help")
        .open(&mut is_open)
        .resizable(false)
        .anchor(egui::Align2::CENTER_CENTER, [0.0, 0.0])
        .show(ui.ctx(), |ui| {
            Grid::new("keys").striped(true).show(ui, |ui| {
                for (key, action) in KEYS.iter().filter(|(key, _)| !IS_PAGE || *key != "Ctrl+N") {
                    ui.monospace(*key);
                    ui.label(*action);
                    ui.end_row();
                }
            });
            ui.add_space(4.0);
            ui.label(if IS_PAGE { PAGE } else { DESKTOP });
            ui.separator();
            details(ui, help, runs)
        });
    help.is_open = is_open;
    window?.inner?
}

/// Draws the details with a button that copies them. They are read on request only, because
/// listing the devices takes a moment.
fn details(ui: &mut Ui, state: &mut HelpState, runs: &Path) -> Option<Intent> {
    let help = "Version, devices, drivers, limits and folders, as wgpt doctor prints them, for \
                a bug report";
    match &state.details {
        None if state.is_requested => {
            ui.horizontal(|ui| {
                ui.spinner();
                ui.label("Looking at the devices...");
            });
        }
        None => {
            if button(ui, "Show details of this machine", None, help) {
                state.is_requested = true;
                let front_end = platform::open_front_end(runs);
                return Some(Intent::Ask(Request::Doctor { front_end }));
            }
        }
        Some(text) => {
            ui.horizontal(|ui| {
                ui.label("For a bug report:");
                if button(ui, "Copy", None, "Copy the details of this machine") {
                    ui.ctx().copy_text(text.clone());
                }
            });
            let area = ScrollArea::both().id_salt("details").max_height(HEIGHT);
            area.show(ui, |ui| {
                ui.add(Label::new(RichText::new(text).monospace().small()).extend());
            });
        }
    }
    None
}
