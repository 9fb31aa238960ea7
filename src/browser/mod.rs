//! Shared by a page and its worker: calls to the browser, and the format of their messages.

mod document;
mod envelope;

pub(crate) use document::{document, download, error_text, sleep};
pub(crate) use envelope::{pack, unpack};
