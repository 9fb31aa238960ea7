//! wgpt trains GPT-2 on the graphics card a person already owns.
//!
//! Data flows one way: `config -> plan -> data -> model -> train -> protocol -> front ends`.
//!
//! | module | what it is |
//! |---|---|
//! | [`config`] | settings from presets, TOML, nanoGPT's `.py`, variables and flags, merged and validated |
//! | [`plan`] | how a step is split and the memory it needs |
//! | `disk` | files: the operating system's, or a browser's private ones |
//! | `data` | text sources, tokenizers, token files, windows, the built-in corpus |
//! | [`gpu`] | devices: which there are, which one a run takes |
//! | [`ops`] | one file for each differentiable op: forward, backward, reference |
//! | [`model`] | GPT-2 under its Hugging Face names, sampling, files of other programs |
//! | [`train`] | optimizer, step, evaluation, checkpoints, the session: commands in, events out |
//! | [`protocol`] | events and commands: plain data |
//! | `progress` | the state of a run, reduced from its events; every view reads it |
//! | [`bench`](mod@bench) | what a device reaches, kernel by kernel |
//! | `run_index` | runs on the disk: a list with their states, and their records |
//! | `recovery` | the policy after a trainer failed: restart, wait or give up |
//! | `supervisor` | runs the trainer as a child process, restarts it when its device fails |
//! | [`cli`] | subcommands; events -> text, bars or JSON lines |
//! | `gui` | the window: panels over the same events and commands |
//! | [`web`] | the browser build: page, worker, the messages between them |

#![deny(unsafe_code)]
#![warn(missing_docs)]

// `allow`: a browser build, or one without the window, does not use all of these modules. The
// default build does, and there the compiler finds dead code.

#[cfg(not(target_arch = "wasm32"))]
pub mod bench;
#[cfg(not(target_arch = "wasm32"))]
pub mod cli;
#[cfg_attr(any(target_arch = "wasm32", not(feature = "gui")), allow(dead_code, unused_imports))]
pub mod config;
#[cfg_attr(any(target_arch = "wasm32", not(feature = "gui")), allow(dead_code, unused_imports))]
mod data;
#[cfg_attr(any(target_arch = "wasm32", not(feature = "gui")), allow(dead_code, unused_imports))]
mod disk;
pub mod gpu;
#[cfg(feature = "gui")]
pub mod gui;
pub mod model;
pub mod ops;
pub mod plan;
#[cfg_attr(any(target_arch = "wasm32", not(feature = "gui")), allow(dead_code, unused_imports))]
mod progress;
pub mod protocol;
#[cfg_attr(any(target_arch = "wasm32", not(feature = "gui")), allow(dead_code, unused_imports))]
mod recovery;
#[cfg_attr(any(target_arch = "wasm32", not(feature = "gui")), allow(dead_code, unused_imports))]
mod run_index;
#[cfg(not(target_arch = "wasm32"))]
mod supervisor;
#[cfg_attr(any(target_arch = "wasm32", not(feature = "gui")), allow(dead_code, unused_imports))]
pub mod train;
pub mod web;
