//! The service in a browser: a worker answers requests and trains, and the page is its client.

mod client;
mod device;
mod storage;
mod training;
mod worker;

pub(crate) use client::Client;
pub(crate) use worker::serve;

/// The folder of runs in the browser's storage.
pub(crate) const RUNS: &str = "runs";
