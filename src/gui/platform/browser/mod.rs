//! What comes from outside the page: its address, files that are dropped.

use std::path::{Path, PathBuf};

use eframe::egui;

use super::mirror;
use crate::gui::app::FromOutside;
use crate::gui::work::Given;

/// Whether the window is a page of a browser.
pub(in crate::gui) const IS_PAGE: bool = true;

/// Where runs are begun and looked for.
pub(in crate::gui) use crate::web::messages::RUNS;

/// What texts may be.
pub(in crate::gui) const TEXTS_HINT: &str =
    "Texts of yours, in UTF-8. They are read here and sent nowhere.";

/// Something that was dropped or chosen.
pub(in crate::gui) type Input = web_sys::File;

/// What is said below the buttons that choose data.
pub(in crate::gui) fn drop_hint() -> &'static str {
    "Texts can be dropped on this page too, or pasted with Ctrl+V."
}

/// What the page's address says.
pub(in crate::gui) fn given() -> FromOutside {
    mirror::read_address()
}

/// Nothing is named when a page is opened.
pub(in crate::gui) fn named(_: Vec<PathBuf>) -> Vec<Input> {
    Vec::new()
}

/// What was dropped on the page since the last call.
pub(in crate::gui) fn dropped(ctx: &egui::Context) -> Vec<Input> {
    let files = ctx.input_mut(|input| std::mem::take(&mut input.raw.dropped_files));
    files.iter().filter_map(|file| file.web_file().cloned()).collect()
}

/// Texts, or the zip of a model, which is told apart where it is read.
pub(in crate::gui) fn recognize(inputs: Vec<Input>) -> Option<Given> {
    (!inputs.is_empty()).then_some(Given::Texts(inputs))
}

/// Pages have no folders to show.
pub(in crate::gui) fn open_folder(_: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
