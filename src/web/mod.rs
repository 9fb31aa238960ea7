//! The browser build: the functions that its scripts call, one for the page and one for the worker,
//! and the form in which messages travel between the two.

mod document;
mod envelope;

use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use web_sys::HtmlCanvasElement;

use crate::gui::{self, App, WindowOptions};
use crate::worker::browser;

pub(crate) use document::{document, download, error_text, sleep};
pub(crate) use envelope::{pack, unpack};

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
