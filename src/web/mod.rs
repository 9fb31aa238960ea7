//! The browser build: the functions that its scripts call, one for the page and one for the worker.

use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use web_sys::HtmlCanvasElement;

use crate::gui::{self, App, WindowOptions};
use crate::worker::browser;

/// Draws the window on a canvas from now on. Starts a demo run, or continues the newest run if it
/// was interrupted, where requested.
#[wasm_bindgen]
pub async fn start(canvas: HtmlCanvasElement, demo: bool, resume: bool) -> Result<(), JsValue> {
    gui::open(canvas, WindowOptions { demo, resume, ..gui::environment() }, App::new).await
}

/// Opens the storage and the device, and answers the page's messages from now on.
#[wasm_bindgen]
pub fn worker() {
    browser::serve();
}
