//! wgpt trains GPT-2 on the graphics card a person already owns.
//!
//! Data flows one way: `text, disk -> config -> plan -> protocol -> data, hub -> gpu -> ops -> model -> eval ->
//! ranks, runs -> train -> worker -> front ends`. docs/architecture.md has the picture, and follows
//! a batch, the memory budget and an event through these modules.
//!
//! | module | what it does |
//! |---|---|
//! | `text` | formats bytes, counts, durations and percentages |
//! | `disk` | files: the system's, or a browser's |
//! | [`config`] | reads settings (TOML, nanoGPT `.py`, variables, flags, presets) into a valid `Config` |
//! | [`plan`] | fits a run into a device's limits: how a step is split, every tensor with its bytes, the time |
//! | [`protocol`] | events, commands, requests, replies, the state of a run, recovery: plain data and pure functions |
//! | `browser` | what a page and its worker share |
//! | `data` | sources, tokenizers, token shards, windows, the built-in corpus |
//! | `hub` | texts and models of the Hugging Face Hub: what `wgpt get` fetches, in the cache that others share |
//! | [`gpu`] | lists, selects and opens devices; memory, watchdog, kernel launch |
//! | [`ops`] | one folder per op: forward and backward pass in every implementation |
//! | [`model`] | GPT-2 under its Hugging Face names, sampling, files of other programs |
//! | `eval` | a model's loss on data, HellaSwag, conversations |
//! | `ranks` | several processes that train one run: transport, sums, shares, agreement |
//! | [`runs`] | what is on the disk of a run, and the list of all runs |
//! | [`train`] | the loop: optimizers, steps, evaluation; commands in, events out |
//! | `worker` | answers requests, runs trainings and supervises them |
//! | `report` | pages about runs, model cards |
//! | [`bench`](mod@bench), `doctor` | measure a device; gather what a bug report needs |
//! | [`cli`], `gui`, `web` | the command line, the window, the browser build |
//! | [`version`] | the version, commit, features and target of this build |

#![deny(unsafe_code)]
// `cli/terminal.rs` prints, and makes the control characters of others visible.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// A browser build, one without the window, or one without MPI (not Unix) uses only a part of some
// modules. The compiler finds dead code in the default build on Unix, which uses all of it.
#![cfg_attr(
    any(target_arch = "wasm32", not(feature = "gui"), not(unix)),
    allow(dead_code, unused_imports, reason = "the default build uses all of it")
)]

#[cfg(not(target_arch = "wasm32"))]
pub mod bench;
#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
pub mod cli;
pub mod config;
mod data;
mod disk;
mod doctor;
mod eval;
pub mod gpu;
#[cfg(feature = "gui")]
pub mod gui;
#[cfg(not(target_arch = "wasm32"))]
mod hub;
pub mod model;
pub mod ops;
pub mod plan;
pub mod protocol;
mod ranks;
#[cfg(not(target_arch = "wasm32"))]
mod report;
pub mod runs;
mod text;
pub mod train;
pub mod version;
#[cfg(target_arch = "wasm32")]
mod web;
mod worker;
