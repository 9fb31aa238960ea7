//! The service behind a front end: devices, data, runs, plans and exports as requests and replies.
//!
//! [`Request`] and [`Reply`] are plain data, and [`answer`] is the same on every platform: files go
//! through [`disk`](crate::disk). A [`Client`] sends requests without blocking. On the desktop a
//! thread answers each of them; in a browser the worker does, over `postMessage`. A [`Trainer`] is
//! the connection to a run: pipes to a child process, the folder of another process's run, or the
//! worker.

mod answer;
mod data;
mod messages;
mod trainer;

#[cfg(target_arch = "wasm32")]
pub(crate) mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod desktop;
/// Messages between the page and its worker, around requests and replies. Tests read them back.
#[cfg(any(target_arch = "wasm32", test))]
mod worker_messages;

#[cfg(target_arch = "wasm32")]
pub(crate) use browser::Client;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use desktop::Client;

pub(crate) use messages::{
    DataInfo, Destination, Job, Obstacle, Reply, Request, SampleInput, SampleRequest, StorageUsage,
    StoredData, StoredModel, Texts, View,
};
pub(crate) use trainer::{Ended, Launch, Start, Trainer};
