//! Opening the window, and its part of `wgpt doctor`: its display and its folders.

use std::any::Any;
use std::cell::Cell;
use std::panic::catch_unwind;
use std::path::Path;
use std::rc::Rc;

use eframe::{UserEvent, egui};
use thiserror::Error;
use winit::event_loop::{ControlFlow, EventLoop};

use super::RUNS;
use crate::doctor::{Check, FrontEnd};
use crate::gui::{App, Options};

/// A window that could not be opened.
#[derive(Debug, Error)]
pub enum GuiError {
    #[error("no display to open a window on: {0}")]
    NoDisplay(String),
    /// A shared library that is loaded at run time is missing.
    #[error("cannot open a window: {0}")]
    Library(String),
    /// No graphics driver can draw to the display.
    #[error("cannot open a window: no graphics driver can draw to this display")]
    NoDriver,
    #[error("cannot open a window: {0}")]
    Window(String),
}

impl GuiError {
    pub fn hint(&self) -> &'static str {
        match self {
            GuiError::Library(_) => {
                "install the libraries of the display (on Debian and Ubuntu: libx11-6, libx11-xcb1, \
                 libxcursor1, libxi6, libxkbcommon-x11-0); `wgpt train` needs none of them"
            }
            GuiError::NoDriver => {
                "install the driver of the graphics card, or a software renderer (on Debian and \
                 Ubuntu: mesa-vulkan-drivers); `wgpt train` trains without a window"
            }
            _ => FIRST_COMMANDS,
        }
    }
}

/// The first commands for somebody who has no display.
const FIRST_COMMANDS: &str = "the command line trains without a window. To start with:\n\
         \x20   wgpt train --preset=demo                 train a first model, in minutes\n\
         \x20   wgpt prepare my.txt -o data/mine         turn a text of yours into data\n\
         \x20   wgpt plan --preset=gpt2 --target 12GiB   see what fits a GPU";

/// Describes an error of winit without the path of its source file on the machine that built it.
fn reason(error: &impl ToString) -> String {
    let text = error.to_string();
    match text.strip_prefix("os error at ").and_then(|rest| rest.split_once(": ")) {
        Some((_, reason)) => reason.to_string(),
        None => text,
    }
}

/// The icon of the window: `web/icon.svg`, 128 x 128. The file of the program has its own on Windows.
const ICON: &[u8] = include_bytes!("../../../../assets/icon.png");
/// The name under which the system knows the window and keeps its settings.
const APP: &str = "wgpt";

/// The size of the first window and its smallest size, in points.
const SIZE: [f32; 2] = [1360.0, 860.0];
const MIN_SIZE: [f32; 2] = [1024.0, 640.0];

fn connect() -> Result<EventLoop<UserEvent>, GuiError> {
    match catch_unwind(|| EventLoop::<UserEvent>::with_user_event().build()) {
        Ok(built) => built.map_err(|error| unconnected(reason(&error))),
        Err(panic) => Err(GuiError::Library(panic_text(panic.as_ref()))),
    }
}

/// Returns the error of a display that winit cannot connect to. Only winit's text tells a missing
/// library from a missing display.
fn unconnected(reason: String) -> GuiError {
    if reason.contains("shared librar") {
        GuiError::Library(reason)
    } else {
        GuiError::NoDisplay(reason)
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("winit panicked").into()
}

pub fn open(options: Options) -> Result<(), GuiError> {
    // Built here and not by eframe, so that wgpt exits with an error message if the display is
    // missing.
    let event_loop = connect()?;
    event_loop.set_control_flow(ControlFlow::Wait);
    // An icon that does not decode becomes egui's own.
    let icon = eframe::icon_data::from_png_bytes(ICON).unwrap_or_default();
    let viewport = egui::ViewportBuilder::default()
        .with_title("wgpt")
        .with_app_id(APP)
        .with_icon(icon)
        .with_inner_size(SIZE)
        .with_min_inner_size(MIN_SIZE)
        .with_drag_and_drop(true);
    // A screenshot looks the same on every machine: it takes nothing from earlier windows.
    let persist = options.screenshot.is_none();
    let native = eframe::NativeOptions {
        viewport,
        persist_window: persist,
        persistence_path: (!persist).then(|| std::env::temp_dir().join("wgpt-screenshot.ron")),
        ..Default::default()
    };
    // eframe only logs that it cannot draw to the display, and returns as if the window had been closed.
    let has_drawn = Rc::new(Cell::new(false));
    let draws = has_drawn.clone();
    let create: eframe::AppCreator<'_> = Box::new(move |creation| {
        draws.set(true);
        Ok(Box::new(App::new(creation, options)))
    });
    let mut window = eframe::create_native(APP, native, create, &event_loop);
    event_loop.run_app(&mut window).map_err(|error| GuiError::Window(reason(&error)))?;
    if has_drawn.get() { Ok(()) } else { Err(GuiError::NoDriver) }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_icon_decodes() {
        assert_eq!(eframe::icon_data::from_png_bytes(ICON).unwrap().width, 128);
    }

    #[test]
    fn a_missing_library_is_told_from_a_missing_display() {
        let missing = unconnected("Failed to load one of xlib's shared libraries".into());
        assert!(matches!(&missing, GuiError::Library(_)) && missing.hint().contains("libx11-6"));
        let display = unconnected("neither DISPLAY is set".into());
        assert!(matches!(&display, GuiError::NoDisplay(_)) && display.hint().contains("wgpt plan"));
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
