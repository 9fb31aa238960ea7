//! Answers the requests of a front end, and runs and supervises trainers.
//!
//! [`Request`](crate::protocol::Request) and [`Reply`](crate::protocol::Reply) are plain data, and
//! [`answer`] is the same on every platform: files go through [`disk`](crate::disk). A [`Client`] sends
//! requests without blocking. On the desktop a thread answers each of them; in a browser the worker
//! does, over `postMessage`. A [`Trainer`] is the connection to a run: pipes to a child process, the
//! folder of another process's run, or the worker.

mod answer;
mod config_source;
mod data_requests;
mod sampling;
mod start;
mod supervisor;
mod trainer;

#[cfg(target_arch = "wasm32")]
pub(crate) mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod desktop;

#[cfg(target_arch = "wasm32")]
pub(crate) use browser::Client;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use config_source::{flag_or_variable, read_text};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use data_requests::describe;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use desktop::*;
pub(crate) use trainer::{Ended, Trainer};
