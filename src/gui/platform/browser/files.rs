//! The browser's file dialog, and reading files that were dropped or chosen.

use wasm_bindgen::JsCast;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::JsValue;
use wasm_bindgen_futures::JsFuture;
use web_sys::{File, HtmlInputElement};

use crate::browser::{document, error_text};
use crate::gui::intent::Intent;
use crate::protocol::{Request, Texts};
use crate::text::bytes;

/// The most bytes of text that a page takes: it holds them several times while they are prepared.
const MAX_TEXT: u64 = 256 << 20;

const SEPARATOR: &str = "<|endoftext|>";

/// The folder of imported models in the browser's storage, next to the folder of the runs.
const MODELS: &str = "models";

/// Reads texts and joins them, under the name of the first.
pub(super) async fn texts(files: &[File]) -> Result<Intent, String> {
    let size = files.iter().map(|file| file.size()).sum::<f64>() as u64;
    if size > MAX_TEXT {
        let [size, max] = [size, MAX_TEXT].map(bytes);
        return Err(format!(
            "these texts have {size}, but a page takes at most {max}: use wgpt on the desktop"
        ));
    }
    let mut texts = Vec::with_capacity(files.len());
    for file in files {
        let name = file.name();
        let read = contents(file).await.map_err(|error| format!("{name}: {error}"))?;
        texts.push(String::from_utf8(read).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            format!("{name} is not UTF-8 at byte {offset}: save it as UTF-8")
        })?);
    }
    let name = files.first().map(stem).unwrap_or_default();
    Ok(Intent::Prepare(Texts::Text { name, text: texts.join(SEPARATOR) }))
}

pub(super) async fn model(file: &File) -> Result<Intent, String> {
    let zip = contents(file).await.map_err(|error| format!("{}: {error}", file.name()))?;
    Ok(Intent::Ask(Request::Import { folder: MODELS.into(), name: stem(file), zip }))
}

fn stem(file: &File) -> String {
    let name = file.name();
    name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem).to_string()
}

async fn contents(file: &File) -> Result<Vec<u8>, String> {
    let read = JsFuture::from(file.array_buffer()).await;
    let read = read.map_err(|error| format!("cannot be read: {}", error_text(&error)))?;
    Ok(js_sys::Uint8Array::new(&read).to_vec())
}

/// Values of `accept` of an `<input>`: text files, and zips of models.
pub(super) const TEXTS: &str = ".txt,.md,.text,text/plain,.zip";
pub(super) const ZIPS: &str = ".zip,application/zip";

/// A dialog that is open, or was last.
pub(super) struct FileDialog {
    input: HtmlInputElement,
    /// The browser calls it as long as this value lives.
    _on_change: Closure<dyn FnMut()>,
}

impl FileDialog {
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
