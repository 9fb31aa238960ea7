//! Opening the window.

use eframe::{UserEvent, egui};
use thiserror::Error;
use winit::event_loop::{ControlFlow, EventLoop};

use crate::gui::{App, Options};

/// A window that could not be opened.
#[derive(Debug, Error)]
pub enum GuiError {
    /// No display exists, or no driver can draw to it.
    #[error("cannot open a window: {0}")]
    Window(String),
}

impl GuiError {
    /// Returns what to do next.
    pub fn hint(&self) -> &'static str {
        "without a display, `wgpt train` does the same; `wgpt --help` lists the commands"
    }
}

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
    let event_loop = event_loop.build().map_err(|error| GuiError::Window(error.to_string()))?;
    event_loop.set_control_flow(ControlFlow::Wait);
    let viewport = egui::ViewportBuilder::default()
        .with_title("wgpt")
        .with_app_id("wgpt")
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
    event_loop.run_app(&mut window).map_err(|error| GuiError::Window(error.to_string()))
}
