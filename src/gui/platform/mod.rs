//! Dialogs, dropped files, URLs and screenshots, on the desktop and in a browser. Both platforms
//! have the same functions.

mod outbox;
mod paths;

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod desktop;

#[cfg(target_arch = "wasm32")]
pub use browser::*;
#[cfg(not(target_arch = "wasm32"))]
pub use desktop::*;
pub use outbox::Outbox;
pub use paths::{chosen, recognize};
