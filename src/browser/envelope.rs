//! Messages as JavaScript values: an array with the JSON text and, where bytes belong to the
//! message, a `Uint8Array`.

use js_sys::{Array, Uint8Array};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::JsValue;

use crate::protocol::{FromWorker, Reply, Request, ToWorker};

/// A message with bytes that travel next to its JSON text.
pub(crate) trait Attachment {
    fn attachment(&mut self) -> Option<&mut Vec<u8>>;
}

impl Attachment for ToWorker {
    fn attachment(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            ToWorker::Request(Request::Import { zip, .. }) => Some(zip),
            _ => None,
        }
    }
}

impl Attachment for FromWorker {
    fn attachment(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            FromWorker::Reply(Reply::Exported { zip, .. }) => Some(zip),
            _ => None,
        }
    }
}

/// Packs a message. Returns it, and the buffers in it that are moved rather than copied.
pub(crate) fn pack<T: Serialize + Attachment>(mut message: T) -> (Array, Array) {
    // Texts, numbers and maps with text keys always serialize.
    let text = serde_json::to_string(&message).unwrap_or_default();
    let envelope = Array::of1(&text.into());
    let transfer = Array::new();
    if let Some(bytes) = message.attachment() {
        let bytes = Uint8Array::from(bytes.as_slice());
        transfer.push(&bytes.buffer());
        envelope.push(&bytes);
    }
    (envelope, transfer)
}

/// Unpacks a message; `None` for a value that is not one.
pub(crate) fn unpack<T: DeserializeOwned + Attachment>(data: &JsValue) -> Option<T> {
    let envelope: &Array = data.dyn_ref()?;
    let mut message: T = serde_json::from_str(&envelope.get(0).as_string()?).ok()?;
    if let (Some(attachment), Ok(bytes)) =
        (message.attachment(), envelope.get(1).dyn_into::<Uint8Array>())
    {
        *attachment = bytes.to_vec();
    }
    Some(message)
}
