//! The browser build: the window on the page's thread, the trainer in a worker, messages between them.
//!
//! [`messages`] is what they say to each other; it is plain data, and compiled everywhere. The rest
//! is the browser's alone.

#[cfg(target_arch = "wasm32")]
pub mod link;
pub mod messages;
