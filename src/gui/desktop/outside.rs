//! What comes from outside the window, and what it reaches there.

use std::path::{Path, PathBuf};

use eframe::egui;

use crate::config::VARIABLE_PREFIX;
use crate::gui::app::FromOutside;
use crate::gui::work::Given;
use crate::run_index;

/// Whether the window is a page of a browser.
pub(in crate::gui) const IS_PAGE: bool = false;

/// Where runs are begun and looked for at first.
pub(in crate::gui) const RUNS: &str = "out";

/// What texts may be.
pub(in crate::gui) const TEXTS_HINT: &str = "Texts of yours: .txt, .jsonl or .parquet files";

/// What is said below the buttons that choose data.
pub(in crate::gui) fn drop_hint() -> &'static str {
    // winit has no drops on Wayland.
    match std::env::var_os("WAYLAND_DISPLAY") {
        Some(_) => "",
        None => "Files and folders can be dropped on this window too.",
    }
}

/// Something that was dropped, chosen or named.
pub(in crate::gui) type Input = PathBuf;

/// What `WGPT_*` variables say.
pub(in crate::gui) fn given() -> FromOutside {
    let variable = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    let settings = std::env::vars_os().filter_map(|(name, text)| {
        let key = name.to_str()?.strip_prefix(VARIABLE_PREFIX)?.to_ascii_lowercase();
        let text = text.to_str().filter(|text| !text.is_empty())?;
        Some((key, text.to_string()))
    });
    FromOutside {
        preset: variable("WGPT_PRESET"),
        device: variable("WGPT_DEVICE"),
        settings: settings.collect(),
        ..FromOutside::default()
    }
}

/// What was named when the window was opened.
pub(in crate::gui) fn named(paths: Vec<PathBuf>) -> Vec<Input> {
    paths
}

/// What was dropped on the window since the last call.
pub(in crate::gui) fn dropped(ctx: &egui::Context) -> Vec<Input> {
    let files = ctx.input_mut(|input| std::mem::take(&mut input.raw.dropped_files));
    files.iter().map(|file| file.path().to_path_buf()).collect()
}

/// Texts are prepared, data and runs are taken as they are.
pub(in crate::gui) fn recognize(inputs: Vec<Input>) -> Option<Given> {
    let first = inputs.first()?;
    Some(if run_index::is_run(first) {
        Given::Run(first.clone())
    } else if first.is_dir() && holds_tokens(first) {
        Given::Data(first.clone())
    } else {
        Given::Texts(inputs)
    })
}

/// Whether tokens lie in this folder already, ours, nanoGPT's or llm.c's.
fn holds_tokens(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|e| e.path().extension().is_some_and(|x| x == "bin")))
    })
}

/// Shows a folder in the system's file manager.
pub(in crate::gui) fn open_folder(folder: &Path) -> std::io::Result<()> {
    let program = match std::env::consts::OS {
        "windows" => "explorer",
        "macos" => "open",
        _ => "xdg-open",
    };
    let mut opened = std::process::Command::new(program).arg(folder).spawn()?;
    // Until somebody has waited for it, an ended process stays in the system's table.
    std::thread::spawn(move || opened.wait());
    Ok(())
}
