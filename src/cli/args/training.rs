//! The arguments of commands that train.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::ConfigSource;
use super::values::DEBUGGING;
use crate::config::{DecayLength, SumDtype};

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub(in crate::cli) struct TrainArgs {
    #[command(flatten)]
    pub source: ConfigSource,
    /// Run folder [default: a new one in out/; with --resume the newest one there]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Continue from the newest checkpoint of the run, with its configuration
    #[arg(long)]
    pub resume: bool,
    /// End the run well: decay the learning rate over N updates, or over N% of those made, then stop. The
    /// checkpoint from before stays, and a larger max_iters continues from it
    #[arg(long, value_name = "N", requires = "resume")]
    pub decay: Option<DecayLength>,
    /// Print one JSON event a line, and read commands from stdin
    #[arg(long)]
    pub json: bool,
    /// Train in this process, which a failure of the device ends
    #[arg(long, hide = true, help_heading = DEBUGGING)]
    pub no_supervise: bool,
    /// With --json: stop with a checkpoint when stdin closes
    #[arg(long)]
    pub stop_on_close: bool,
    /// With several ranks: the shares of the global batch, a number for each rank, like 2,1
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = parse_share)]
    pub share: Vec<f64>,
    /// With several ranks: dtype in which gradients are sent, float32 or float16
    #[arg(long = "allreduce_dtype", alias = "allreduce-dtype", value_name = "DTYPE")]
    #[arg(default_value_t = SumDtype::Float32)]
    pub allreduce_dtype: SumDtype,
    /// Seconds for which a rank waits for another
    #[arg(long, value_name = "SECONDS", hide = true, help_heading = DEBUGGING)]
    pub rank_limit: Option<u64>,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.trim().parse::<f64>().ok().filter(|share| share.is_finite() && *share > 0.0);
    share.ok_or_else(|| "give a number above 0 for each rank, like 2,1".into())
}

#[derive(Debug, Args)]
pub(in crate::cli) struct LaunchArgs {
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
