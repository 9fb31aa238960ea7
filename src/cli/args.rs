//! What can be typed.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use super::CliError;
use super::source::ConfigSource;
use crate::config::Budget;
use crate::data::TokenizerKind;
use crate::gpu::{DeviceChoice, DeviceError};
use crate::ops::OpsMode;

/// Train GPT-2 on the graphics card you already own.
#[derive(Debug, Parser)]
#[command(
    name = "wgpt",
    version,
    subcommand_required = !cfg!(feature = "gui"),
    arg_required_else_help = !cfg!(feature = "gui"),
    max_term_width = 100
)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    #[cfg(feature = "gui")]
    pub window: WindowArgs,
    #[command(subcommand)]
    pub command: Option<Subcommands>,
}

#[derive(Debug, Args)]
pub(super) struct Global {
    /// Where to compute: auto, cpu, vulkan[:N], dx12[:N], metal[:N], gl[:N] or cuda[:N]
    #[arg(long, global = true, value_name = "DEVICE")]
    device: Option<String>,
    /// Debugging: which implementation of the ops runs, auto, reference, wide or cube
    #[arg(long, global = true, value_name = "MODE")]
    ops: Option<String>,
    /// Say more: warnings of the graphics libraries; twice and three times for details
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Global {
    /// The flag, else `WGPT_DEVICE`, else auto.
    pub fn device(&self) -> Result<DeviceChoice, DeviceError> {
        match flag_or_variable(self.device.as_deref(), "WGPT_DEVICE") {
            Some(name) => name.parse(),
            None => Ok(DeviceChoice::Auto),
        }
    }

    /// The flag, else `WGPT_OPS`, else auto.
    pub fn ops(&self) -> Result<OpsMode, CliError> {
        match flag_or_variable(self.ops.as_deref(), "WGPT_OPS").as_deref() {
            None | Some("auto") => Ok(OpsMode::AUTO),
            Some("reference") => Ok(OpsMode::REFERENCE),
            Some("wide") => Ok(OpsMode::WIDE),
            Some("cube") => Ok(OpsMode::CUBE),
            Some(other) => Err(CliError::Usage {
                what: format!("`{other}` is no implementation of the ops"),
                hint: "--ops takes auto, reference, wide or cube",
            }),
        }
    }
}

pub(super) fn flag_or_variable(flag: Option<&str>, variable: &str) -> Option<String> {
    let set = || std::env::var(variable).ok().filter(|value| !value.is_empty());
    flag.map(str::to_string).or_else(set)
}

#[derive(Debug, Subcommand)]
pub(super) enum Subcommands {
    /// Train a model, or continue a run
    Train(TrainArgs),
    /// Turn text files into tokens to train on
    Prepare(PrepareArgs),
    /// Let a model write
    Sample(SampleArgs),
    /// Measure a model's loss on data
    Eval(EvalArgs),
    /// Write a model as a Hugging Face GPT-2 folder
    Export(ConvertArgs),
    /// Read nanoGPT's ckpt.pt or a GPT-2 folder, write a folder to sample and fine-tune from
    Import(ConvertArgs),
    /// Show what a run will take of a card's memory, without running it
    Plan(PlanArgs),
    /// List the devices that can be used
    Devices(DevicesArgs),
    /// Measure what a device reaches, kernel by kernel and step by step
    Bench(BenchArgs),
    /// Write, show or check a configuration
    Config(ConfigArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    pub source: ConfigSource,
    /// The run folder; a fresh one below out/ if not given
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Continue from the run's newest checkpoint
    #[arg(long)]
    pub resume: bool,
    /// Print one JSON event a line, and read commands from stdin
    #[arg(long)]
    pub json: bool,
    /// Debugging: train in this process, so that a failure of the device ends it
    #[arg(long)]
    pub no_supervise: bool,
    /// With --json: stop with a checkpoint when stdin closes
    #[arg(long)]
    pub stop_on_close: bool,
    /// Run as the trainer of a supervisor
    #[arg(long, hide = true)]
    pub supervised: bool,
    /// Seconds that this run has taken in former trainers
    #[arg(long, hide = true, default_value_t = 0)]
    pub elapsed: u64,
    /// Name of the device that former trainers used
    #[arg(long, hide = true, value_name = "NAME")]
    pub device_name: Option<String>,
}

/// The window, where there is no subcommand.
#[cfg(feature = "gui")]
#[derive(Debug, Args)]
pub(super) struct WindowArgs {
    /// Texts to prepare, a data folder, or a run to show in the window
    #[arg(value_name = "PATH")]
    pub inputs: Vec<PathBuf>,
    /// Train the demo in the window at once
    #[arg(long)]
    pub demo: bool,
    /// Write a picture of the window, at the end of the demo where that is trained, and close it
    #[arg(long, value_name = "FILE")]
    pub screenshot_to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct PrepareArgs {
    /// Files or folders: .txt, .jsonl, .parquet, and .gz or .zst of the text kinds
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<PathBuf>,
    /// The data folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// gpt2, char or byte
    #[arg(long, default_value = "gpt2", value_parser = parse_tokenizer)]
    pub tokenizer: TokenizerKind,
    /// The field of .jsonl and the column of .parquet that holds the text
    #[arg(long, default_value = "text", value_name = "NAME")]
    pub text_field: String,
    /// The share of the text that is kept for validation
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    pub val_fraction: f64,
    /// Which documents are kept for validation
    #[arg(long, default_value_t = 1337)]
    pub seed: u64,
    /// Replace a folder that holds data already
    #[arg(long)]
    pub force: bool,
}

fn parse_tokenizer(name: &str) -> Result<TokenizerKind, String> {
    name.parse().map_err(|error: crate::data::DataError| error.to_string())
}

#[derive(Debug, Args)]
pub(super) struct SampleArgs {
    /// A run, a checkpoint, a Hugging Face GPT-2 folder or nanoGPT's ckpt.pt
    pub model: PathBuf,
    /// What to continue, a line break if not given; FILE:path reads it from a file
    #[arg(long, value_name = "TEXT")]
    pub start: Option<String>,
    /// How many texts
    #[arg(long, alias = "num_samples", default_value_t = 1, value_name = "N")]
    pub num_samples: u32,
    /// Tokens of each text
    #[arg(long, alias = "max_new_tokens", default_value_t = 500, value_name = "N")]
    pub max_new_tokens: u32,
    /// Below 1 is more careful, above 1 wilder, 0 always the most likely token
    #[arg(long, default_value_t = 0.8, value_name = "X")]
    pub temperature: f64,
    /// Draw only from this many of the most likely tokens; 0 = all
    #[arg(long, alias = "top_k", default_value_t = 200, value_name = "N")]
    pub top_k: usize,
    /// Another seed, another text
    #[arg(long, default_value_t = 1337)]
    pub seed: u64,
    /// A data folder to take the tokenizer from, for models that bring none
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    /// A run, a checkpoint, a Hugging Face GPT-2 folder or nanoGPT's ckpt.pt
    pub model: PathBuf,
    /// The data; of a run, what it was trained on if not given
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// At most this many windows of each split, evenly spread; 0 = all of it
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub windows: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ConvertArgs {
    /// A run, a checkpoint, a Hugging Face GPT-2 folder or nanoGPT's ckpt.pt
    pub model: PathBuf,
    /// The folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct DevicesArgs {
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    pub source: ConfigSource,
    /// Plan for a card with so much memory that is not there: 12GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub target: Option<Budget>,
    /// Where it does not fit, print changes that would, one a line with what it takes then
    #[arg(long)]
    pub suggest: bool,
    /// Reserve the memory of a real step on --device, without computing, and compare
    #[arg(long)]
    pub measure: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn parse_size(text: &str) -> Result<Budget, String> {
    match text.parse()? {
        size @ Budget::Bytes(_) => Ok(size),
        _ => Err("give the size of a card, such as 12GiB".into()),
    }
}

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// The model of the whole steps; batch_size is their micro-batch. If none is given, GPT-2 with
    /// 4 sequences, and nanoGPT's recipe for the CPU on devices in software
    #[command(flatten)]
    pub source: ConfigSource,
    /// Measure one part alone
    #[arg(long, value_enum, value_name = "PART")]
    pub only: Option<BenchPart>,
    /// Leave out burn's stock ops, which take many times the time and the memory
    #[arg(long)]
    pub no_compare: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A part of `wgpt bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BenchPart {
    /// Each op by itself.
    Kernels,
    /// Whole training steps.
    Steps,
}

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    pub action: ConfigAction,
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigAction {
    /// Print a configuration file with every key explained
    Init(ConfigSource),
    /// Print the resolved values and where each comes from
    Show(ConfigSource),
    /// Say whether a configuration is valid
    Check(ConfigSource),
}

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Prints a completion script.
pub(super) fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "wgpt", &mut script);
    super::write_out(format_args!("{}", String::from_utf8_lossy(&script)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }
}
