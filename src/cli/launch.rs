//! `wgpt launch`: starts the ranks of a run with mpirun, and again after a failure.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::args::{Global, TrainArgs};
use super::{CliError, train};

#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// Number of processes, also as -np
    #[arg(short = 'n', long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub ranks: u32,
    /// File with the machines, for mpirun
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Launcher
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun")]
    pub mpirun: String,
    /// Argument for the launcher, like --mpi=--oversubscribe; several in their order
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub mpi: Vec<String>,
    #[command(flatten)]
    pub train: TrainArgs,
}

/// Runs `wgpt launch`.
pub(super) fn run(args: LaunchArgs, global: &Global) -> Result<ExitCode, CliError> {
    let LaunchArgs { ranks, hostfile, mpirun, mpi, train: arguments } = args;
    if let Some(file) = hostfile.as_ref().filter(|file| !file.is_file()) {
        return Err(CliError::Usage {
            what: format!("{}: no such hostfile", file.display()),
            hint: "give a file with a machine a line, like `box1 slots=1`",
        });
    }
    let mut launcher: Vec<OsString> = vec![mpirun.into(), "-np".into(), ranks.to_string().into()];
    if let Some(file) = hostfile {
        launcher.extend(["--hostfile".into(), file.into_os_string()]);
    }
    launcher.extend(mpi.into_iter().map(OsString::from));
    train::run(arguments, global, launcher)
}
