//! The `wgpt` program.

#![deny(unsafe_code)]

use std::process::ExitCode;

/// mimalloc, because the allocator of the system returns large blocks at once: a training step on
/// the CPU then spends a quarter of its time on page faults. It is built without huge pages, which
/// are no faster here and make a process grow for as long as it runs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wgpt::cli::main()
}
