//! The browser's file dialog.

use wasm_bindgen::JsCast;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::JsValue;
use web_sys::{File, HtmlInputElement};

use crate::web::document;

/// Kinds of files as `accept` of an `<input>` takes them: texts, and zips of models.
pub(super) const TEXTS: &str = ".txt,.md,.text,text/plain,.zip";
pub(super) const ZIPS: &str = ".zip,application/zip";

/// A dialog that is open, or was last.
pub(super) struct FileDialog {
    input: HtmlInputElement,
    /// The browser calls it as long as this value lives.
    _on_change: Closure<dyn FnMut()>,
}

impl FileDialog {
    /// Opens a dialog for files of these kinds.
    pub fn open(accept: &str, mut take: impl FnMut(Vec<File>) + 'static) -> Result<Self, JsValue> {
        let input: HtmlInputElement = document()?.create_element("input")?.unchecked_into();
        input.set_type("file");
        input.set_accept(accept);
        input.set_multiple(true);
        let chosen = input.clone();
        let on_change = Closure::<dyn FnMut()>::new(move || {
            let files = chosen.files();
            let count = files.as_ref().map_or(0, |files| files.length());
            take((0..count).filter_map(|index| files.as_ref()?.get(index)).collect());
        });
        input.set_onchange(Some(on_change.as_ref().unchecked_ref()));
        input.click();
        Ok(Self { input, _on_change: on_change })
    }
}

impl Drop for FileDialog {
    fn drop(&mut self) {
        self.input.set_onchange(None);
    }
}
