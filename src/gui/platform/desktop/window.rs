//! Opening the window, and its part of `wgpt doctor`: its display and its folders.

use std::any::Any;
use std::cell::Cell;
use std::panic::catch_unwind;
use std::path::Path;
use std::rc::Rc;

use eframe::{UserEvent, egui};
use winit::event_loop::{ControlFlow, EventLoop};

use super::RUNS;
use crate::doctor::{Check, FrontEnd};
use crate::gpu::{Backend, Search, apis};
use crate::gui::{App, Options};
use crate::protocol::Failure;
use crate::worker::list_devices;

/// The hint for a missing shared library, which winit loads at run time.
const LIBRARIES: &str = "install the libraries of the display (on Debian and Ubuntu: libx11-6, \
                         libx11-xcb1, libxcursor1, libxi6, libxkbcommon-x11-0); `wgpt train` needs \
                         none of them";

const DRIVER: &str = "install the driver of the graphics card, or a software renderer (on Debian and \
                      Ubuntu: mesa-vulkan-drivers); `wgpt train` trains without a window";

/// The first commands for somebody who has no display.
const FIRST_COMMANDS: &str = "the command line trains without a window. To start with:\n\
         \x20   wgpt train --preset=demo                 train a first model, in minutes\n\
         \x20   wgpt prepare my.txt -o data/mine         prepare your own text\n\
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

fn cannot_open(reason: &str, hint: &str) -> Failure {
    Failure::new(format!("cannot open a window: {reason}"), hint)
}

fn connect() -> Result<EventLoop<UserEvent>, Failure> {
    match catch_unwind(|| EventLoop::<UserEvent>::with_user_event().build()) {
        Ok(built) => built.map_err(|error| unconnected(&reason(&error))),
        Err(panic) => Err(cannot_open(panic_text(panic.as_ref()), LIBRARIES)),
    }
}

/// Returns the error of a display that winit cannot connect to. Only winit's text tells a missing
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

pub fn open(options: Options) -> Result<(), Failure> {
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
    let mut native = eframe::NativeOptions {
        viewport,
        persist_window: persist,
        persistence_path: (!persist).then(|| std::env::temp_dir().join("wgpt-screenshot.ron")),
        ..Default::default()
    };
    // The window loads drivers to draw, and one that crashes would end it.
    leave_out(&mut native, &list_devices(Search::All).without());
    // eframe only logs that it cannot draw to the display, and returns as if the window had been closed.
    let has_drawn = Rc::new(Cell::new(false));
    let draws = has_drawn.clone();
    let create: eframe::AppCreator<'_> = Box::new(move |creation| {
        draws.set(true);
        Ok(Box::new(App::new(creation, options)))
    });
    let mut window = eframe::create_native(APP, native, create, &event_loop);
    let run = event_loop.run_app(&mut window);
    run.map_err(|error| cannot_open(&reason(&error), FIRST_COMMANDS))?;
    if has_drawn.get() {
        return Ok(());
    }
    Err(cannot_open("no graphics driver can draw to this display", DRIVER))
}

/// Keeps a window from the graphics APIs of `backends`, to draw with others.
fn leave_out(native: &mut eframe::NativeOptions, backends: &[Backend]) {
    if let eframe::egui_wgpu::WgpuSetup::CreateNew(setup) = &mut native.wgpu_options.wgpu_setup {
        setup.instance_descriptor.backends.remove(apis(backends));
    }
}

/// Describes the window of a process that has not opened one. Connects to the display to try it.
pub(crate) fn front_end() -> FrontEnd {
    let open = open_front_end(RUNS.as_ref());
    let Err(error) = connect() else { return open };
    FrontEnd { display: Some(Check { works: false, detail: error.text }), ..open }
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
    fn a_window_does_not_draw_with_a_driver_that_crashes() {
        let [vulkan, gl] = [Backend::Vulkan, Backend::Gl].map(|backend| apis(&[backend]));
        let backends = |crashed: &[Backend]| {
            let mut native = eframe::NativeOptions::default();
            *backends_of(&mut native) = vulkan | gl;
            leave_out(&mut native, crashed);
            *backends_of(&mut native)
        };
        assert_eq!(backends(&[]), vulkan | gl);
        assert_eq!(backends(&[Backend::Vulkan]), gl);
    }

    /// Returns the APIs that a window may draw with. Without a change, `WGPU_BACKEND` decides.
    fn backends_of(native: &mut eframe::NativeOptions) -> &mut eframe::wgpu::Backends {
        match &mut native.wgpu_options.wgpu_setup {
            eframe::egui_wgpu::WgpuSetup::CreateNew(setup) => {
                &mut setup.instance_descriptor.backends
            }
            other => panic!("{other:?}"),
        }
    }

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
