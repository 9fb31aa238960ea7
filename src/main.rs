//! Picks the front end.

#![deny(unsafe_code)]

use std::process::ExitCode;

/// The system's allocator gives large blocks back at once: a training step on the CPU then spends
/// a quarter of its time on page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wgpt::cli::main()
}
