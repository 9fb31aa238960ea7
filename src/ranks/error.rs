//! Errors of the communication between ranks.

use thiserror::Error;

use crate::model::WeightError;
use crate::protocol::{Cause, Exit, Failure};

/// An error of the communication between ranks. Every rank ends with it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RanksError {
    #[error("{size} processes were started together, but no MPI library can be opened: {reason}")]
    NoLibrary { size: usize, reason: String },
    /// A library that is neither Open MPI nor of MPICH's family.
    #[error("{name} is an MPI library that wgpt does not know: {version}")]
    UnknownLibrary { name: String, version: String },
    /// A system on which wgpt opens no MPI library.
    #[error("{size} processes were started together, but wgpt uses MPI on Linux and macOS only")]
    NotServed { size: usize },
    /// The MPI library belongs to another launcher.
    #[error(
        "{launched} processes were started together, but {library} connects {connected} of them"
    )]
    NotConnected { library: String, launched: usize, connected: usize },
    #[error("rank {rank} has not answered for {seconds} s")]
    Silent { rank: usize, seconds: u64 },
    #[error("MPI could not {action} (error {code})")]
    Failed { action: &'static str, code: i32 },
    #[error("cannot read a message from another rank: {reason}")]
    Message { reason: String },
    /// Ranks that would train different runs.
    #[error("{0}")]
    Disagree(String),
    #[error("{ranks} ranks share a global batch of {sequences} sequences: each needs at least one")]
    TooMany { ranks: usize, sequences: u64 },
    /// More or fewer numbers in `--share` than ranks.
    #[error("--share has {given} numbers for {ranks} ranks")]
    Shares { given: usize, ranks: usize },
}

impl RanksError {
    fn hint(&self) -> &'static str {
        match self {
            RanksError::NoLibrary { .. } => {
                "install Open MPI (on Debian and Ubuntu: openmpi-bin) or MPICH on every machine, or \
                 name the library with WGPT_MPI_LIBRARY=PATH"
            }
            RanksError::UnknownLibrary { .. } => {
                "install Open MPI 4 or 5, or MPICH 3.1 or later or a library of its family, and name \
                 it with WGPT_MPI_LIBRARY=PATH"
            }
            RanksError::NotServed { .. } => "start one process; it uses one device",
            RanksError::NotConnected { .. } => {
                "start them with the mpirun of this library, name another one with \
                 WGPT_MPI_LIBRARY=PATH, or, under Slurm, add --mpi=pmix or --mpi=pmi2 to srun"
            }
            RanksError::Silent { .. } => {
                "check its log in the folder `ranks` of the run, its machine and the network; then \
                 continue with --resume"
            }
            RanksError::Failed { .. } => "the lines above may explain it; continue with --resume",
            RanksError::Message { .. } => "run the same version of wgpt on every machine",
            RanksError::Disagree(_) => {
                "give every rank the same settings and data, and the same version of wgpt"
            }
            RanksError::TooMany { .. } => {
                "start fewer processes, or raise gradient_accumulation_steps"
            }
            RanksError::Shares { .. } => "give one number for each rank, like --share=2,1",
        }
    }
}

impl From<RanksError> for Failure {
    fn from(error: RanksError) -> Self {
        use RanksError::{Disagree, Failed, Shares, Silent, TooMany};
        // Every rank finds these by itself.
        let is_common = matches!(error, Disagree(_) | TooMany { .. } | Shares { .. });
        let failure = Self { is_common, ..Self::new(error.to_string(), error.hint()) };
        match error {
            // Such a rank may have lost its device, and can be started again.
            Silent { .. } | Failed { .. } => {
                Self { exit: Exit::DeviceFailed, cause: Some(Cause::DeviceLost), ..failure }
            }
            _ => failure.with_exit(Exit::Usage),
        }
    }
}

impl From<RanksError> for WeightError {
    fn from(error: RanksError) -> Self {
        WeightError::Source(Box::new(error.into()))
    }
}
