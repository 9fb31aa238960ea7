//! Opening the window.

use eframe::{UserEvent, egui};
use thiserror::Error;
use winit::event_loop::{ControlFlow, EventLoop};

use crate::gui::{App, Options};

/// A window that could not be opened.
#[derive(Debug, Error)]
pub enum GuiError {
    /// The machine has no display.
    #[error("no display to open a window on: {0}")]
    NoDisplay(String),
    /// No driver can draw to the display.
    #[error("cannot open a window: {0}")]
    Window(String),
}

impl GuiError {
    /// Returns what to do next.
    pub fn hint(&self) -> &'static str {
        "the command line trains without a window. To start with:\n\
         \x20   wgpt train --preset=demo                 train a first model, in minutes\n\
         \x20   wgpt prepare my.txt -o data/mine         turn a text of yours into data\n\
         \x20   wgpt plan --preset=gpt2 --target 12GiB   see what fits a GPU"
    }
}

/// Describes an error of winit without the path of its source, which is that of another machine.
fn reason(error: &impl ToString) -> String {
    let text = error.to_string();
    match text.strip_prefix("os error at ").and_then(|rest| rest.split_once(": ")) {
        Some((_, reason)) => reason.to_string(),
        None => text,
    }
}

/// The icon of the window: `web/icon.svg`, 128 x 128. The file of the program has its own on Windows.
const ICON: &[u8] = include_bytes!("../../../../assets/icon.png");

/// The size of the first window and its smallest size, in points.
const SIZE: [f32; 2] = [1360.0, 860.0];
const MIN_SIZE: [f32; 2] = [1024.0, 640.0];

/// Opens the window and returns when it is closed.
///
/// # Errors
/// If no display exists, or no driver can draw to it.
pub fn open(options: Options) -> Result<(), GuiError> {
    // Built here and not by eframe, so that wgpt exits with an error message if the display is
    // missing.
    let mut event_loop = EventLoop::<UserEvent>::with_user_event();
    let event_loop = event_loop.build().map_err(|error| GuiError::NoDisplay(reason(&error)))?;
    event_loop.set_control_flow(ControlFlow::Wait);
    // An icon that does not decode becomes egui's own.
    let icon = eframe::icon_data::from_png_bytes(ICON).unwrap_or_default();
    let viewport = egui::ViewportBuilder::default()
        .with_title("wgpt")
        .with_app_id("wgpt")
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
    let create: eframe::AppCreator<'_> =
        Box::new(move |creation| Ok(Box::new(App::new(creation, options))));
    let mut window = eframe::create_native("wgpt", native, create, &event_loop);
    event_loop.run_app(&mut window).map_err(|error| GuiError::Window(reason(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_icon_decodes() {
        assert_eq!(eframe::icon_data::from_png_bytes(ICON).unwrap().width, 128);
    }

    #[test]
    fn errors_do_not_show_the_build_machine() {
        let text = "os error at /home/a/.cargo/winit/src/linux/mod.rs:756: neither DISPLAY is set";
        assert_eq!(reason(&text), "neither DISPLAY is set");
        assert_eq!(reason(&"the driver: is missing"), "the driver: is missing");
    }
}
