//! The window: takes events and replies, applies them, draws, and sends commands and requests.
//!
//! The `list` of runs is on the left. Next to it is one of three rooms: `start` sets up a run, `run` shows one,
//! and `model` has its result. A room draws and edits the `state`, and returns intents, which `app` carries out. Slow work is a request to the `worker`; the differences between a program and a page are in
//! `platform`.

mod app;
mod budget;
mod dialogs;
mod export;
mod intent;
mod list;
mod memory_bar;
mod model;
mod notices;
mod options;
mod platform;
mod run;
mod start;
mod state;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod theme;
mod widgets;

pub use app::App;
pub use options::WindowOptions;
pub(crate) use platform::*;
