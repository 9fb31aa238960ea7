//! The browser build: the window on the page's thread, the trainer in a worker, messages between them.
//!
//! [`messages`] is what they say to each other; it is plain data, and compiled everywhere. The rest
//! is the browser's alone.

#[cfg(target_arch = "wasm32")]
mod library;
#[cfg(target_arch = "wasm32")]
pub mod link;
pub mod messages;
#[cfg(target_arch = "wasm32")]
mod storage;
#[cfg(target_arch = "wasm32")]
mod turn;
#[cfg(target_arch = "wasm32")]
mod worker;

#[cfg(target_arch = "wasm32")]
mod envelope {
    use js_sys::{Array, Reflect, Uint8Array};
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use wasm_bindgen::JsCast;
    use wasm_bindgen::prelude::JsValue;

    /// A message, and what of it changes hands rather than being copied.
    pub fn written<T: Serialize>(message: &T, bytes: Option<&[u8]>) -> (Array, Array) {
        // Texts, numbers and maps with text keys: serialising cannot fail.
        let text = serde_json::to_string(message).unwrap_or_default();
        let (envelope, transfer) = (Array::of1(&text.into()), Array::new());
        if let Some(bytes) = bytes {
            let bytes = Uint8Array::from(bytes);
            transfer.push(&bytes.buffer());
            envelope.push(&bytes);
        }
        (envelope, transfer)
    }

    /// A message and its bytes; `None` for what is none.
    pub fn read<T: DeserializeOwned>(data: &JsValue) -> Option<(T, Option<Vec<u8>>)> {
        let envelope: &Array = data.dyn_ref()?;
        let message = serde_json::from_str(&envelope.get(0).as_string()?).ok()?;
        let bytes = envelope.get(1).dyn_into::<Uint8Array>().ok();
        Some((message, bytes.map(|bytes| bytes.to_vec())))
    }

    /// A property of the global object, or of one of its own.
    pub fn global(path: &[&str]) -> JsValue {
        path.iter().fold(js_sys::global().into(), |object: JsValue, name| {
            Reflect::get(&object, &JsValue::from_str(name)).unwrap_or(JsValue::UNDEFINED)
        })
    }

    /// Whether browsers trust where the page came from.
    pub fn is_secure() -> bool {
        global(&["isSecureContext"]).is_truthy()
    }

    /// Whether this browser has WebGPU.
    pub fn has_webgpu() -> bool {
        global(&["navigator", "gpu"]).is_truthy()
    }

    /// What a browser says went wrong.
    pub fn words(error: &JsValue) -> String {
        let of_error = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
        of_error.or_else(|| error.as_string()).unwrap_or_else(|| format!("{error:?}"))
    }
}

#[cfg(target_arch = "wasm32")]
use envelope::{has_webgpu, is_secure, read, words, written};
