//! Opening the window.

use eframe::{UserEvent, egui};
use thiserror::Error;
use winit::event_loop::{ControlFlow, EventLoop};

use crate::gui::{App, Options};

/// Why there is no window.
#[derive(Debug, Error)]
pub enum GuiError {
    /// No display, or none that can be drawn on.
    #[error("cannot open a window: {0}")]
    Window(String),
}

impl GuiError {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        "without a display, `wgpt train` does the same; `wgpt --help` lists the commands"
    }
}

/// The size of a first window, and the least, in points.
const SIZE: [f32; 2] = [1360.0, 860.0];
const LEAST_SIZE: [f32; 2] = [1024.0, 640.0];

/// Opens the window and returns when it is closed.
///
/// # Errors
/// When there is no display, or nothing to draw with.
pub fn open(options: Options) -> Result<(), GuiError> {
    // Built here and not by eframe, so that a missing display is an error with words.
    let mut event_loop = EventLoop::<UserEvent>::with_user_event();
    let event_loop = event_loop.build().map_err(|error| GuiError::Window(error.to_string()))?;
    event_loop.set_control_flow(ControlFlow::Wait);
    let viewport = egui::ViewportBuilder::default()
        .with_title("wgpt")
        .with_app_id("wgpt")
        .with_inner_size(SIZE)
        .with_min_inner_size(LEAST_SIZE)
        .with_drag_and_drop(true);
    // A picture looks alike wherever it is made: nothing is kept from former windows.
    let keep = options.screenshot.is_none();
    let native = eframe::NativeOptions {
        viewport,
        persist_window: keep,
        persistence_path: (!keep).then(|| std::env::temp_dir().join("wgpt-picture.ron")),
        ..Default::default()
    };
    let create: eframe::AppCreator<'_> =
        Box::new(move |creation| Ok(Box::new(App::new(creation, options))));
    let mut window = eframe::create_native("wgpt", native, create, &event_loop);
    event_loop.run_app(&mut window).map_err(|error| GuiError::Window(error.to_string()))
}
