//! The browser's dialogs: choosing files, saving one.

use wasm_bindgen::JsCast;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::JsValue;
use web_sys::{Blob, BlobPropertyBag, Document, File, HtmlAnchorElement, HtmlInputElement, Url};

/// A dialog that is open, or was last.
pub(super) struct Chooser {
    input: HtmlInputElement,
    /// Called by the browser as long as this value is there.
    _changed: Closure<dyn FnMut()>,
}

impl Chooser {
    /// Asks for files of these kinds, as `accept` of an `<input>` takes them.
    ///
    /// # Errors
    /// When the page has no document, or the browser refuses.
    pub fn open(accept: &str, mut take: impl FnMut(Vec<File>) + 'static) -> Result<Self, JsValue> {
        let input: HtmlInputElement = document()?.create_element("input")?.unchecked_into();
        input.set_type("file");
        input.set_accept(accept);
        input.set_multiple(true);
        let chosen = input.clone();
        let changed = Closure::<dyn FnMut()>::new(move || {
            let files = chosen.files();
            let count = files.as_ref().map_or(0, |files| files.length());
            take((0..count).filter_map(|at| files.as_ref()?.get(at)).collect());
        });
        input.set_onchange(Some(changed.as_ref().unchecked_ref()));
        input.click();
        Ok(Self { input, _changed: changed })
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        self.input.set_onchange(None);
    }
}

/// Hands a file to the browser, to be saved.
///
/// # Errors
/// When the page has no document, or the browser refuses.
pub(super) fn save(name: &str, bytes: &[u8]) -> Result<(), JsValue> {
    let parts = js_sys::Array::of1(&js_sys::Uint8Array::from(bytes));
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

/// The page.
pub(super) fn document() -> Result<Document, JsValue> {
    let window = web_sys::window().and_then(|window| window.document());
    window.ok_or_else(|| JsValue::from_str("there is no document"))
}

/// What a browser says went wrong.
pub(super) fn words(error: &JsValue) -> String {
    let of_error = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
    of_error.or_else(|| error.as_string()).unwrap_or_else(|| format!("{error:?}"))
}
