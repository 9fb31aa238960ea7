//! Keyboard shortcuts.

use eframe::egui::{self, Key, KeyboardShortcut, Modifiers, Ui};

use super::Help;
use crate::gui::platform::Choice;
use crate::gui::shared::ShownRun;
use crate::gui::{Intent, control};
use crate::protocol::Command;

const CTRL: Modifiers = Modifiers::COMMAND;

/// Keys and their actions, for the help.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("Ctrl+Enter", "start training"),
    ("Space", "pause or resume; continue the shown run"),
    ("Ctrl+.", "stop, with a checkpoint"),
    ("Ctrl+S", "write a checkpoint now"),
    ("Ctrl+E", "export the newest checkpoint"),
    ("Ctrl+O", "choose texts to train on"),
    ("Escape", "close a dialog, or this help"),
    ("F1", "this help"),
];

/// Returns the intents of pressed keys. Space goes to the widget that has the focus, if any.
pub(super) fn intents(ui: &Ui, help: &mut Help, shown: &ShownRun) -> Vec<Intent> {
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
    let live = |command: Command| shown.is_live().then_some(Intent::Send(command));
    let newest = shown.progress.checkpoints.last();
    let mut intents = Vec::new();
    for (modifiers, key, intent) in [
        (CTRL, Key::Enter, Some(Intent::Start)),
        (CTRL, Key::O, Some(Intent::Choose(Choice::Texts))),
        (CTRL, Key::S, live(Command::Checkpoint)),
        (CTRL, Key::Period, live(Command::Stop)),
        (CTRL, Key::E, newest.map(|newest| Intent::Choose(Choice::Export(newest.path.clone())))),
        (
            Modifiers::NONE,
            Key::Space,
            control::pause_or_continue(&shown.progress, shown.is_live())
                .filter(|_| ctx.memory(|memory| memory.focused().is_none())),
        ),
    ] {
        if intent.is_some() && pressed(modifiers, key) {
            intents.extend(intent);
        }
    }
    intents
}
