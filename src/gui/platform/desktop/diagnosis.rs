//! The window's part of `wgpt doctor`: its display and its folders.

use std::path::Path;

use super::RUNS;
use super::window::{APP, connect};
use crate::doctor::{Check, FrontEnd};

/// Describes the window of a process that has not opened one. Connects to the display to try it.
pub(crate) fn front_end() -> FrontEnd {
    let open = open_front_end(RUNS.as_ref());
    let Err(error) = connect() else { return open };
    FrontEnd { display: Some(Check { works: false, detail: error.to_string() }), ..open }
}

/// Describes the window that is open, which creates runs in `runs`.
pub(in crate::gui) fn open_front_end(runs: &Path) -> FrontEnd {
    let display = Some(Check { works: true, detail: display_server() });
    FrontEnd { display, runs: runs.to_path_buf(), settings: eframe::storage_dir(APP) }
}

/// Names the display server. Where both are set, the window takes Wayland.
fn display_server() -> String {
    let variable = |name: &str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some(format!("{name}={value}"))
    };
    if cfg!(any(windows, target_os = "macos")) {
        return "the desktop".into();
    }
    let wayland = variable("WAYLAND_DISPLAY").or_else(|| variable("WAYLAND_SOCKET"));
    match (wayland, variable("DISPLAY")) {
        (Some(socket), _) => format!("Wayland, {socket}"),
        (None, Some(server)) => format!("X11, {server}"),
        (None, None) => "unknown".into(),
    }
}
