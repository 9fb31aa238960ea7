//! The page around the window, downloads, errors and timers.

use std::time::Duration;

use js_sys::Uint8Array;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::JsValue;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Blob, BlobPropertyBag, Document, HtmlAnchorElement, Url, WorkerGlobalScope};

pub(crate) fn document() -> Result<Document, JsValue> {
    let window = web_sys::window().and_then(|window| window.document());
    window.ok_or_else(|| JsValue::from_str("this context has no document"))
}

/// Saves a zip among the browser's downloads.
pub(crate) fn download(name: &str, zip: &[u8]) -> Result<(), JsValue> {
    let parts = js_sys::Array::of1(&Uint8Array::from(zip));
    let kind = BlobPropertyBag::new();
    kind.set_type("application/zip");
    let blob = Blob::new_with_u8_array_sequence_and_options(&parts, &kind)?;
    let url = Url::create_object_url_with_blob(&blob)?;
    let link: HtmlAnchorElement = document()?.create_element("a")?.unchecked_into();
    link.set_href(&url);
    link.set_download(name);
    link.click();
    // The browser has taken the blob by then.
    Url::revoke_object_url(&url)
}

/// Returns the message of a JavaScript error.
pub(crate) fn error_text(error: &JsValue) -> String {
    let message = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
    message.or_else(|| error.as_string()).unwrap_or_else(|| format!("{error:?}"))
}

/// Waits, on a page or in a worker.
pub(crate) async fn sleep(time: Duration) {
    let milliseconds = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // A page has the same method.
    let scope: WorkerGlobalScope = js_sys::global().unchecked_into();
    let timer = js_sys::Promise::new(&mut |resolve, _| {
        // Without a timer the promise stays open, and so does whatever waits for it.
        let _ = scope.set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, milliseconds);
    });
    // The promise of a timer is not rejected.
    let _ = JsFuture::from(timer).await;
}
