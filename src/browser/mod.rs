//! What a page and its worker share: calls to the browser, and the form of messages between the two.

mod document;
mod envelope;

pub(crate) use document::{document, download, error_text, sleep};
pub(crate) use envelope::{pack, unpack};
