//! The window: takes events and replies, applies them, draws, and sends commands and requests.
//!
//! `app` draws panels and dialogs, and carries out the intents that they return. A panel draws and
//! edits the `state` that all panels share. Slow work is a request to the `worker`; the differences
//! between a program and a page are in `platform`.

mod app;
mod charts;
mod control;
mod conversation;
mod dialogs;
mod export;
mod finished;
mod fit;
mod inside;
mod intent;
mod layout;
mod log;
mod options;
mod platform;
mod prompt;
mod run_list;
mod run_tab;
mod samples;
mod setup;
mod state;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod theme;
mod tiles;
mod token_text;
mod welcome;
mod widgets;

pub use app::App;
pub use options::WindowOptions;
pub(crate) use platform::*;
