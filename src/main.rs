//! Picks the front end.

#![deny(unsafe_code)]

use std::process::ExitCode;

/// The system's allocator gives large blocks back at once: a training step on the CPU then spends
/// a quarter of its time on page faults. Without huge pages, which are no faster here and make a
/// process grow for as long as it runs: the system fills the gaps between what is used.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wgpt::cli::main()
}
