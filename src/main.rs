//! Picks the front end.

#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    wgpt::cli::main()
}
