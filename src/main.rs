//! The `wgpt` program.

#![deny(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: wgpt::cli::Allocator = wgpt::cli::Allocator;

fn main() -> ExitCode {
    wgpt::cli::main()
}
