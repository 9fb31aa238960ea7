//! wgpt trains GPT-2 on the graphics card a person already owns.
//!
//! Data flows one way: `config -> plan -> data -> ops -> model -> eval -> train -> protocol -> front ends`.
//! docs/architecture.md follows a batch, the memory budget and an event through these modules.
//!
//! | module | what it does |
//! |---|---|
//! | `text` | formats bytes, counts, durations and percentages |
//! | [`config`] | reads settings (TOML, nanoGPT `.py`, variables, flags, presets) into a valid `Config` |
//! | [`plan`] | fits a step into a device's limits: how it is split, and every tensor with its bytes |
//! | `disk` | files: the system's, or a browser's |
//! | `data` | sources, tokenizers, token shards, windows, the built-in corpus |
//! | [`gpu`] | lists, selects and opens devices |
//! | [`ops`] | one folder per op: forward and backward pass in every implementation |
//! | [`model`] | GPT-2 under its Hugging Face names, sampling, files of other programs |
//! | `eval` | what is done with a model: its loss, HellaSwag, conversations |
//! | [`train`] | optimizer, step, evaluation, checkpoints, the session: commands in, events out |
//! | [`protocol`] | events, commands, requests, replies, the state of a run, recovery: plain data and pure functions |
//! | [`bench`](mod@bench) | measures kernels and steps |
//! | `ranks` | the processes of one run: sums over them, over MPI |
//! | [`runs`] | what is on the disk of a run, and the list of all runs |
//! | `report` | pages about runs, model cards, pictures of benchmarks |
//! | `doctor` | reports what a bug report needs: build, machine, devices, folders |
//! | [`version`] | the version, commit, features and target of this build |
//! | `worker` | answers requests, runs trainings and supervises them |
//! | [`cli`] | subcommands; prints events as text, bars or JSON lines |
//! | `gui` | the window: panels over the same events and commands |
//! | `web` | the browser build: page and worker |

#![deny(unsafe_code)]
// A browser build, one without the window, or one without MPI (not Unix) uses only a part of some
// modules. The compiler finds dead code in the default build on Unix, which uses all of it.
#![cfg_attr(
    any(target_arch = "wasm32", not(feature = "gui"), not(unix)),
    allow(dead_code, unused_imports, reason = "the default build uses all of it")
)]

#[cfg(not(target_arch = "wasm32"))]
pub mod bench;
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
