//! Opening the window in a page.

use eframe::WebRunner;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use web_sys::HtmlCanvasElement;

use crate::gui::{App, Options};

/// Draws the window on a canvas from now on. Trains the demo at once, or continues the newest run if
/// that was interrupted, where asked to.
///
/// # Errors
/// When there is nothing to draw with.
#[wasm_bindgen]
pub async fn start(canvas: HtmlCanvasElement, demo: bool, resume: bool) -> Result<(), JsValue> {
    let options = Options { demo, resume, ..Options::default() };
    let create: eframe::AppCreator<'static> =
        Box::new(move |creation| Ok(Box::new(App::new(creation, options))));
    WebRunner::new().start(canvas, eframe::WebOptions::default(), create).await
}
