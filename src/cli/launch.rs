//! `wgpt launch`: starts the ranks of a run with mpirun, and again after a failure.

use std::ffi::OsString;
use std::process::ExitCode;

use super::args::{Global, LaunchArgs};
use super::train;
use crate::protocol::Failure;

/// Runs `wgpt launch`.
pub(super) fn run(args: LaunchArgs, global: &Global) -> Result<ExitCode, Failure> {
    let LaunchArgs { ranks, hostfile, mpirun, mpi, train: arguments } = args;
    if let Some(file) = hostfile.as_ref().filter(|file| !file.is_file()) {
        return Err(Failure::usage(
            format!("{}: no such hostfile", file.display()),
            "give a file with a machine a line, like `box1 slots=1`",
        ));
    }
    let mut launcher: Vec<OsString> = vec![mpirun.into(), "-np".into(), ranks.to_string().into()];
    if let Some(file) = hostfile {
        launcher.extend(["--hostfile".into(), file.into_os_string()]);
    }
    launcher.extend(mpi.into_iter().map(OsString::from));
    train::run(arguments, global, launcher)
}
