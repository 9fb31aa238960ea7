//! Opening the window in a page.

use eframe::WebRunner;
use wasm_bindgen::prelude::JsValue;
use web_sys::HtmlCanvasElement;

use crate::gui::{App, Options};

/// Draws the window on a canvas from now on.
pub async fn open(canvas: HtmlCanvasElement, options: Options) -> Result<(), JsValue> {
    let create: eframe::AppCreator<'static> =
        Box::new(move |creation| Ok(Box::new(App::new(creation, options))));
    WebRunner::new().start(canvas, eframe::WebOptions::default(), create).await
}
