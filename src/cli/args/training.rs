//! The arguments of commands that train, and of the plan.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};

use super::values::DEBUGGING;
use crate::cli::target::{TargetGpu, parse_target};
use crate::config::{ConfigSource, DecayLength};
use crate::plan::parse_network;

#[derive(Debug, Args)]
pub(in crate::cli) struct TrainArgs {
    #[command(flatten)]
    pub source: ConfigSource,
    /// Run folder [default: new in out/, or newest to resume]
    #[arg(long, value_name = "DIR", value_parser = folder_parser())]
    pub run: Option<PathBuf>,
    /// Continue a run from its newest checkpoint
    #[arg(long)]
    pub resume: bool,
    /// End the run well: decay over N updates or N%
    ///
    /// The learning rate decays over N updates, or over N% of those made, and the run stops. The checkpoint
    /// from before stays, and a larger max_iters continues from it.
    #[arg(long, value_name = "N", requires = "resume", hide_short_help = true)]
    pub decay: Option<DecayLength>,
    /// Print JSON events, and read commands from stdin
    #[arg(long)]
    pub json: bool,
    /// Run this shell command when the run has ended, unless you stop it
    ///
    /// The command gets the run as a JSON object on stdin, as `wgpt runs --json` prints it. WGPT_ON_FINISH sets one for
    /// each `wgpt train` and `wgpt launch`. For example `--on-finish="systemctl suspend"`.
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    pub on_finish: Option<String>,
    /// Train in this process, so that a failure of the device ends the run
    #[arg(long, hide = true, help_heading = DEBUGGING)]
    pub no_supervise: bool,
    /// With --json: stop with a checkpoint when stdin closes
    #[arg(long, hide_short_help = true)]
    pub stop_on_close: bool,
    /// With several ranks: the shares of the global batch, one number per rank, like 2,1
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = parse_share)]
    #[arg(hide_short_help = true)]
    pub share: Vec<f64>,
    /// Seconds for which a rank waits for another
    #[arg(long, value_name = "SECONDS", hide = true, help_heading = DEBUGGING)]
    pub rank_limit: Option<u64>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct SweepArgs {
    #[command(flatten)]
    pub source: ConfigSource,
    /// Runs of each combination, with seeds from `seed` on
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: u32,
    /// Folder for the runs [default: one in out/ that is named after the settings with several values]
    #[arg(short, long, value_name = "DIR", value_parser = folder_parser())]
    pub output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Returns the parser of the name of a run folder. A configuration has no room for control characters in
/// paths, so such a run could not be resumed.
fn folder_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let has_control = path.to_string_lossy().contains(char::is_control);
        if has_control { Err("a name cannot contain control characters") } else { Ok(path) }
    })
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

#[derive(Debug, Args)]
pub(in crate::cli) struct PlanArgs {
    #[command(flatten)]
    pub source: ConfigSource,
    /// Plan for a GPU that need not be in this machine: its memory in GiB, or a name like "RTX 3060"
    #[arg(long, value_name = "GPU", value_parser = parse_target)]
    pub target: Option<TargetGpu>,
    /// List the GPUs that --target knows by name
    #[arg(long, conflicts_with_all = ["target", "ranks", "suggest", "measure", "calibrate", "json"])]
    pub targets: bool,
    /// Plan for N ranks, each with its own such device and an equal share of the global batch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub ranks: Option<u32>,
    /// Speed of the network between the ranks, like 1Gbit or 100Mbit
    #[arg(long, value_name = "SPEED", default_value = "1Gbit", value_parser = parse_network)]
    pub network: f64,
    /// If it does not fit, print changes that make it fit, one per line, with the memory it then takes
    #[arg(long)]
    pub suggest: bool,
    /// Reserve the memory of a real step on --device, without computing it, and compare it with the plan
    #[arg(long)]
    pub measure: bool,
    /// Measure the speed of --device for a few seconds, and keep it for estimates of time
    #[arg(long, conflicts_with = "target")]
    pub calibrate: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
