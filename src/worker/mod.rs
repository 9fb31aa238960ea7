//! Answers the requests of a front end, and runs and supervises trainers.
//!
//! [`Request`](crate::protocol::Request) and [`Reply`](crate::protocol::Reply) are plain data. A [`Client`]
//! sends requests without blocking. On the desktop a thread answers each of them; in a browser the worker
//! does, over `postMessage`. A [`Trainer`] is the connection to a run: pipes to a child process, the folder of
//! another process's run, or the worker.

mod answer;
#[cfg(target_arch = "wasm32")]
pub(crate) mod browser;
mod config_source;
mod data_requests;
#[cfg(not(target_arch = "wasm32"))]
mod desktop;
#[cfg(any(target_arch = "wasm32", test))]
mod page_storage;
mod sampling;
mod start;
mod supervisor;
mod trainer;

#[cfg(target_arch = "wasm32")]
use browser as platform;
#[cfg(not(target_arch = "wasm32"))]
use desktop as platform;
pub(crate) use platform::*;
pub(crate) use trainer::{Ended, Trainer};
