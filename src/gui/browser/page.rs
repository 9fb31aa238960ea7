//! Opening the window in a page.

use eframe::WebRunner;
use eframe::wgpu::DeviceLostReason;
use js_sys::Function;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use web_sys::HtmlCanvasElement;

use crate::gui::{App, Options};

/// Draws the window on a canvas from now on. Trains the demo at once, or continues the newest run if
/// that was interrupted, where asked to. Calls `lost` when there is nothing left to draw with.
///
/// # Errors
/// When there is nothing to draw with from the beginning.
#[wasm_bindgen]
pub async fn start(
    canvas: HtmlCanvasElement,
    demo: bool,
    resume: bool,
    lost: Function,
) -> Result<(), JsValue> {
    let options = Options { demo, resume, ..Options::default() };
    let create: eframe::AppCreator<'static> = Box::new(move |creation| {
        if let Some(drawing) = &creation.wgpu_render_state {
            drawing.device.set_device_lost_callback(move |reason, _| {
                if reason == DeviceLostReason::Unknown {
                    // It only asks for another page.
                    let _ = lost.call0(&JsValue::NULL);
                }
            });
        }
        Ok(Box::new(App::new(creation, options)))
    });
    WebRunner::new().start(canvas, eframe::WebOptions::default(), create).await
}
