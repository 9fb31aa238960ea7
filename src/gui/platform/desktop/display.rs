//! The display that a window opens on, and the window's part of `wgpt doctor`.

use std::any::Any;
use std::panic::catch_unwind;
use std::path::Path;

use eframe::UserEvent;
use winit::event_loop::EventLoop;

use super::RUNS;
use crate::doctor::{FeatureCheck, FrontEnd};
use crate::protocol::Failure;

/// The name under which the system knows the window and keeps its settings.
pub(super) const APP: &str = "wgpt";

/// The hint for a missing shared library, which winit loads at run time.
const LIBRARIES: &str = "install the libraries of the display (on Debian and Ubuntu: libx11-6, \
                         libx11-xcb1, libxcursor1, libxi6, libxkbcommon-x11-0); `wgpt train` needs \
                         none of them";

/// The first commands for somebody who has no display.
pub(super) const FIRST_COMMANDS: &str = "the command line trains without a window. To start with:\n\
         \x20   wgpt train --preset=demo                 train a first model, in minutes\n\
         \x20   wgpt prepare my.txt -o data/mine         prepare your own text\n\
         \x20   wgpt plan --preset=gpt2 --target 12GiB   see what fits a GPU";

/// Describes an error of winit without the path of its source file on the machine that built it.
pub(super) fn reason(error: &impl ToString) -> String {
    let text = error.to_string();
    match text.strip_prefix("os error at ").and_then(|rest| rest.split_once(": ")) {
        Some((_, reason)) => reason.to_string(),
        None => text,
    }
}

pub(super) fn cannot_open(reason: &str, hint: &str) -> Failure {
    Failure::new(format!("cannot open a window: {reason}"), hint)
}

pub(super) fn connect() -> Result<EventLoop<UserEvent>, Failure> {
    match catch_unwind(|| EventLoop::<UserEvent>::with_user_event().build()) {
        Ok(built) => built.map_err(|error| unconnected(&reason(&error))),
        Err(panic) => Err(cannot_open(panic_text(panic.as_ref()), LIBRARIES)),
    }
}

/// Returns the error of a display that winit cannot connect to. Only winit's text distinguishes a missing
/// library from a missing display.
fn unconnected(reason: &str) -> Failure {
    if reason.contains("shared librar") {
        cannot_open(reason, LIBRARIES)
    } else {
        Failure::new(format!("no display to open a window on: {reason}"), FIRST_COMMANDS)
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("winit panicked")
}

/// Describes the window of a process that has not opened one. Connects to the display to try it.
pub fn front_end() -> FrontEnd {
    let open = open_front_end(RUNS.as_ref());
    let Err(error) = connect() else { return open };
    FrontEnd { display: Some(FeatureCheck { works: false, detail: error.text }), ..open }
}

/// Describes the window that is open, which creates runs in `runs`.
pub fn open_front_end(runs: &Path) -> FrontEnd {
    let display = Some(FeatureCheck { works: true, detail: display_server() });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_from_a_missing_display() {
        let missing = unconnected("Failed to load one of xlib's shared libraries");
        assert!(missing.text.starts_with("cannot open a window: Failed to load one of xlib's"));
        assert!(missing.hint.contains("libx11-6"));
        let display = unconnected("neither DISPLAY is set");
        assert_eq!(display.text, "no display to open a window on: neither DISPLAY is set");
        assert!(display.hint.contains("wgpt plan"));
    }

    #[test]
    fn a_panic_has_its_text() {
        assert_eq!(panic_text(&"no library"), "no library");
        assert_eq!(panic_text(&String::from("no libX11")), "no libX11");
        assert_eq!(panic_text(&5), "winit panicked");
    }

    #[test]
    fn errors_do_not_show_the_build_machine() {
        let text = "os error at /home/a/.cargo/winit/src/linux/mod.rs:756: neither DISPLAY is set";
        assert_eq!(reason(&text), "neither DISPLAY is set");
        assert_eq!(reason(&"the driver: is missing"), "the driver: is missing");
    }
}
