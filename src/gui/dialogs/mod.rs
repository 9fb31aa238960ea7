//! The dialogs above the rooms.

mod closing;
mod help;
mod path;

use eframe::egui::Ui;

use super::intent::Intent;
use super::platform;
use super::state::Shared;

pub use closing::{handle_close, when_closed};
pub use help::shortcuts;

/// Draws the dialogs that are open.
pub fn show(ui: &mut Ui, shared: &mut Shared) -> Vec<Intent> {
    let dialogs = &mut shared.dialogs;
    let help = help::show(ui, &mut dialogs.help, &shared.settings.runs);
    let closing = closing::ask(ui, &mut dialogs.closing);
    let path = path::show(ui, &mut dialogs.path);
    let texts = platform::texts(ui, shared);
    [help, closing, path, texts].into_iter().flatten().collect()
}
