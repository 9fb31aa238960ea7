//! The arguments of the command line.

use std::path::PathBuf;

use clap::{ArgAction, Args, ColorChoice, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::ConfigSource;
use crate::gpu::{DeviceChoice, DeviceError};
use crate::ops::{Implementation, OpsMode};
use crate::protocol::{Failure, SelfTestOptions};
use crate::version;
use crate::worker::flag_or_variable;

mod data;
mod models;
mod settings;
mod training;
mod values;

pub(super) use data::{GetArgs, PrepareArgs};
pub(super) use training::{LaunchArgs, PlanArgs, SweepArgs, TrainArgs};
pub(super) use values::DEBUGGING;
use values::{Suggested, examples};

pub(super) use models::{ChatArgs, EvalArgs, ExportArgs, FormatArg, SamplingArgs};

/// Train and fine-tune GPT-2, Llama and Qwen on your own GPU.
#[derive(Debug, Parser)]
#[command(
    name = "wgpt",
    version,
    long_version = version::describe(),
    subcommand_required = !cfg!(feature = "gui"),
    arg_required_else_help = !cfg!(feature = "gui"),
    max_term_width = 100,
    after_help = examples(&[
        #[cfg(feature = "gui")]
        ("wgpt", "open the window"),
        ("wgpt train --preset=demo", "train a first model, in minutes"),
        ("wgpt sample -i", "continue prompts that you type"),
        ("wgpt prepare my.txt -o data/mine", "prepare your own text"),
        ("wgpt train --data=data/mine --time=8h", "train the best model for 8 hours"),
        ("wgpt plan --target \"RTX 3060\"", "see what a GPU trains in that time"),
    ])
)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    #[cfg(feature = "gui")]
    pub window: WindowArgs,
    /// Train without a window: another spelling of `train`
    #[arg(long = "headless", hide_short_help = true)]
    // Replaced before the arguments are parsed.
    _headless: bool,
    #[command(subcommand)]
    pub command: Option<Subcommands>,
}

/// The heading of the flags that every command takes.
pub(super) const EVERYWHERE: &str = "Options of every command";

#[derive(Clone, Debug, Args)]
pub(super) struct Global {
    /// auto, cpu, cuda, vulkan, dx12, metal, gl; or vulkan:1
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "DEVICE", hide_possible_values = true)]
    #[arg(value_parser = Suggested::new(["auto", "cpu", "vulkan", "dx12", "metal", "gl", "cuda"]))]
    pub device: Option<String>,
    /// Implementation of the ops
    #[arg(long, global = true, value_name = "MODE", hide = true, help_heading = DEBUGGING)]
    #[arg(value_parser = Suggested::new(Implementation::WORDS.iter().copied()))]
    ops: Option<String>,
    /// Rely on the device's kernels without a test
    #[arg(long, global = true, help_heading = EVERYWHERE, hide_short_help = true)]
    no_self_test: bool,
    /// Seconds that a test of kernels may take
    #[arg(long, global = true, value_name = "SECONDS", hide = true, help_heading = DEBUGGING)]
    self_test_limit: Option<u64>,
    /// Print warnings of graphics libraries; -vv prints more
    #[arg(short, long, global = true, help_heading = EVERYWHERE, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print only warnings and errors
    #[arg(short, long, global = true, help_heading = EVERYWHERE)]
    pub quiet: bool,
    /// Colours of messages
    #[arg(long = "color", global = true, help_heading = EVERYWHERE, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    #[arg(hide_short_help = true)]
    // Read before the arguments are parsed, whose errors have colours too.
    _color: ColorChoice,
    /// Print help with the flags for debugging
    #[arg(long = "help-all", global = true, help_heading = EVERYWHERE, action = ArgAction::HelpLong, hide_short_help = true)]
    _help_all: Option<bool>,
}

impl Global {
    /// Returns the device as it was typed in the flag, or else in `WGPT_DEVICE`, or else auto.
    pub fn typed_device(&self) -> String {
        flag_or_variable(self.device.as_deref(), "WGPT_DEVICE").unwrap_or_else(|| "auto".into())
    }

    pub fn device(&self) -> Result<DeviceChoice, DeviceError> {
        self.typed_device().parse()
    }

    pub fn with_device(&self, name: &str) -> Self {
        Self { device: Some(name.into()), ..self.clone() }
    }

    pub fn self_test(&self) -> SelfTestOptions {
        SelfTestOptions {
            skip: self.no_self_test,
            limit: self.self_test_limit,
            ..SelfTestOptions::default()
        }
    }

    /// Returns the mode of the flag, or else of `WGPT_OPS`, or else auto.
    pub fn ops(&self) -> Result<OpsMode, Failure> {
        let typed = flag_or_variable(self.ops.as_deref(), "WGPT_OPS").unwrap_or("auto".into());
        let known = Implementation::ALL.iter().find(|known| known.to_string() == typed);
        known.map(|known| OpsMode::of(*known)).ok_or_else(|| {
            let text = format!("`{typed}` is not an implementation of the ops");
            Failure::usage(text, "--ops takes auto, reference, wide or cube")
        })
    }
}

/// Returns the device of process number `local` among the processes on this machine that train one run. A
/// backend without a number stands for its device of that number.
pub(super) fn device_of_rank(typed: &str, local: usize) -> Result<String, DeviceError> {
    let has_number =
        typed.contains(':') || ["auto", "cpu"].iter().any(|name| typed.eq_ignore_ascii_case(name));
    let device = if has_number { typed.into() } else { format!("{typed}:{local}") };
    device.parse::<DeviceChoice>()?;
    Ok(device)
}

#[derive(Debug, Subcommand)]
pub(super) enum Subcommands {
    /// Train a model, or resume a run
    #[command(after_help = examples(&[
        ("wgpt train --preset=demo", "a first model, in minutes"),
        ("wgpt train --data=data/mine --time=8h", "the best model for 8 hours"),
        ("wgpt train --preset=gpt2 --data=data/mine", "a preset on your data"),
        ("wgpt train my.toml --learning_rate=3e-4", "a file, with one change"),
        ("wgpt train --resume", "continue the newest run"),
    ]))]
    Train(TrainArgs),
    /// Train one model with several processes, each on its own GPU, through mpirun
    #[command(after_help = examples(&[
        ("wgpt launch -n 2 --preset=gpt2 --data=data/mine", "two GPUs of this machine"),
        ("wgpt launch -n 4 --hostfile=hosts --preset=gpt2", "the machines in a file"),
        ("wgpt launch -n 2 --resume", "continue the newest run"),
    ]))]
    Launch(LaunchArgs),
    /// Train every combination of some settings, with several seeds, and compare them
    #[command(after_help = examples(&[
        ("wgpt sweep --preset=demo --learning_rate=3e-3,6e-3,1e-2 --seeds=3", ""),
        ("wgpt sweep --data=data/mine --time=10min --optimizer=adamw,muon --seeds=5", ""),
        ("wgpt sweep --preset=gpt2-15m --seeds=4 --device=cuda:0,cuda:1", ""),
    ]))]
    Sweep(SweepArgs),
    /// Fetch a text or a model, with all its files; the only command that opens a connection
    #[command(after_help = examples(&[
        ("wgpt get --list", "good texts and models"),
        ("wgpt get hf:roneneldan/TinyStories", "a data set"),
        ("wgpt get hf:HuggingFaceFW/fineweb-edu#sample-10BT", "a part of one"),
        ("wgpt get hf:openai-community/gpt2", "a model"),
        ("wgpt get hellaswag", "for wgpt eval"),
        ("wgpt get https://example.org/book.txt", "into data/"),
    ]))]
    Get(GetArgs),
    /// Tokenize text into training data
    #[command(after_help = examples(&[
        ("wgpt prepare book.txt -o data/book", "tokenizer by size"),
        ("wgpt prepare alt.txt -o data/alt --encoding latin1", "not UTF-8"),
        ("wgpt prepare texts/ more.jsonl.gz -o data/mine", ""),
        ("wgpt prepare hf:roneneldan/TinyStories -o data/stories", "after wgpt get"),
        ("wgpt prepare texts/ -o data/mine --tokenizer bpe:8192", "train a tokenizer"),
    ]))]
    Prepare(PrepareArgs),
    /// Generate text with a model
    #[command(after_help = examples(&[
        ("wgpt sample", "the newest run in out/"),
        ("wgpt sample out/demo-1 --start=\"Once\"", "a run, and a prompt"),
        ("wgpt sample -i", "a prompt loop"),
        ("head -c 200 book.txt | wgpt sample --start -", "a prompt from a pipe"),
    ]))]
    Sample(SampleArgs),
    /// Talk to a model that was trained on conversations
    #[command(after_help = examples(&[
        ("wgpt chat out/chat-1", "a run; /help lists the commands"),
        ("wgpt chat my-model --system \"Be brief.\"", "with a system prompt"),
        ("wgpt chat out/chat-1 <questions.txt", "a message in each line"),
    ]))]
    Chat(ChatArgs),
    /// Measure the loss of a model on data, or its share of right answers
    #[command(after_help = examples(&[
        ("wgpt eval", "the newest run in out/"),
        ("wgpt eval gpt2 --data=data/mine", "a model folder on your data"),
        ("wgpt eval gpt2 --hellaswag hellaswag_val.jsonl", "HellaSwag"),
    ]))]
    Eval(EvalArgs),
    /// List the runs, the newest first
    #[command(after_help = examples(&[
        ("wgpt runs", "the runs in out/"),
        ("wgpt runs elsewhere --json", "for a program"),
    ]))]
    Runs {
        /// Folder with runs [default: out]
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Compare runs: results, and the settings that differ
    #[command(after_help = examples(&[
        ("wgpt compare out/a out/b", "two runs"),
        ("wgpt compare out/a out/b -o ab.html", "a page with curves"),
        ("wgpt compare out/sweep-seeds", "the runs of a sweep"),
    ]))]
    Compare {
        /// Run folders, or the folder of a sweep
        #[arg(required = true, value_name = "RUN")]
        runs: Vec<PathBuf>,
        /// Page to write, *.html, with curves over tokens, time and compute
        #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
        output: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write one page about a run: results, curves, samples, plan and settings
    #[command(after_help = examples(&[
        ("wgpt report out/demo-1", "out/demo-1/report.html"),
        ("wgpt report out/demo-1 -o demo.html", ""),
    ]))]
    Report {
        /// Run folder [default: the newest run in out/]
        run: Option<PathBuf>,
        /// Page to write, *.html; it needs no other file [default: report.html in the run folder]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Write a model for other programs: a Hugging Face folder, a GGUF file, a folder for Ollama, or a web page
    #[command(after_help = examples(&[
        ("wgpt export -o my-model", "the newest run in out/"),
        ("wgpt export out/demo-1 -o my-model", "a run's best checkpoint"),
        ("wgpt export out/demo-1 -o demo.gguf --type q8_0", "for llama.cpp"),
        ("wgpt export out/demo-1 -o demo --format ollama", "for Ollama and LM Studio"),
    ]))]
    Export(ExportArgs),
    /// Convert nanoGPT's ckpt.pt or a Hugging Face folder into a folder to sample and fine-tune from
    #[command(after_help = examples(&[
        ("wgpt import out-shakespeare/ckpt.pt -o out/imported", ""),
    ]))]
    Import {
        /// Run, checkpoint, Hugging Face folder or nanoGPT's ckpt.pt
        model: PathBuf,
        /// Folder to write
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
        /// Data folder with the tokenizer, for a model without one
        #[arg(long, value_name = "DIR")]
        data: Option<String>,
    },
    /// Show the memory, disk and time that a run will take, without running it
    #[command(after_help = examples(&[
        ("wgpt plan --data=data/mine", "what a night can train"),
        ("wgpt plan --preset=gpt2 --target \"RTX 3060\"", "a GPU that need not be here"),
        ("wgpt plan --preset=gpt2-large --target 8GiB", "the optimizer in host memory"),
        ("wgpt plan my.toml --suggest", "changes that make it fit"),
        ("wgpt plan --preset=gpt2 --ranks=2 --target 12", "two machines on 1 Gbit/s"),
    ]))]
    Plan(PlanArgs),
    /// List the devices of this machine
    Devices {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Collect information for a bug report: build, machine, devices, folders, and their problems
    #[command(after_help = examples(&[
        ("wgpt doctor", "to read and to paste"),
        ("wgpt doctor --kernels", "to test each kernel of the best device"),
        ("wgpt doctor --json", "for a program"),
    ]))]
    Doctor {
        /// Test the kernels of the device instead, in each of its dtypes: print the largest error of each
        #[arg(long)]
        kernels: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Benchmark a device, kernel by kernel and step by step
    Bench(BenchArgs),
    /// Write, show or check a configuration
    #[command(subcommand)]
    Config(ConfigAction),
    /// List the built-in configurations
    Presets,
    /// Print a completion script for a shell
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Write manual pages
    Man {
        /// Folder to write
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Take messages on stdin and answer them on stdout: the other half of a run or a window
    #[command(hide = true)]
    Worker {
        /// Train as one of the ranks that a launcher starts
        #[arg(long, value_name = "JSON")]
        rank: Option<String>,
    },
}

/// The arguments of the window, which opens without a subcommand.
#[cfg(feature = "gui")]
#[derive(Debug, Args)]
pub(super) struct WindowArgs {
    /// Texts to prepare, or a data folder, run or model, to open in the window
    #[arg(value_name = "PATH")]
    pub inputs: Vec<PathBuf>,
    /// Open the window and train the demo
    #[arg(long)]
    pub demo: bool,
    /// Save a screenshot of the window and close it; with --demo at the end of the demo
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub screenshot_to: Option<PathBuf>,
    /// Open the window in this theme, instead of the system's or the last one
    #[arg(long, value_parser = ["dark", "light"], hide_short_help = true)]
    pub theme: Option<String>,
    /// Show errors in a dialog: Explorer has started wgpt
    #[cfg(windows)]
    #[arg(long, hide = true)]
    pub no_console: bool,
}

#[cfg(feature = "gui")]
impl WindowArgs {
    pub fn has_flags(&self) -> bool {
        self.demo || self.screenshot_to.is_some() || self.theme.is_some()
    }
}

#[derive(Debug, Args)]
pub(super) struct SampleArgs {
    /// Run, checkpoint, Hugging Face folder, a fetched hf:ORG/NAME or nanoGPT's ckpt.pt [default: the newest
    /// run in out/]
    pub model: Option<PathBuf>,
    /// nanoGPT's way to name a run: its folder
    #[arg(long = "out_dir", value_name = "DIR", conflicts_with = "model", hide = true)]
    pub out_dir: Option<PathBuf>,
    /// nanoGPT's way to name a model: resume for that of out_dir, or a folder
    #[arg(long = "init_from", value_name = "MODEL", conflicts_with = "model", hide = true)]
    pub init_from: Option<PathBuf>,
    /// Prompt [default: a line break]; FILE:path reads it from a file, - from stdin
    #[arg(long, value_name = "TEXT")]
    pub start: Option<String>,
    /// Generate a text for each line that is typed; an empty line repeats the last one
    #[arg(short, long)]
    pub interactive: bool,
    /// Number of texts
    #[arg(long, alias = "num_samples", default_value_t = 1, value_name = "N")]
    pub num_samples: u32,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Data folder with the tokenizer, for a model without one
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Print JSON objects: {"text": ..., "tokens": [...]} for each piece of the text, with the probability
    /// of each token and the five likeliest ones in its place, then {"done": {"tokens": N}}
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// The model of the training steps; batch_size is their micro-batch. The default is GPT-2 with 4
    /// sequences, or nanoGPT's CPU configuration on the CPU and on software renderers
    #[command(flatten)]
    pub source: ConfigSource,
    /// Run one part only
    #[arg(long, value_enum, value_name = "PART")]
    pub only: Option<BenchPart>,
    /// Leave out burn's stock ops, which take many times the time and the memory
    #[arg(long)]
    pub no_compare: bool,
    /// Time each kernel of the steps too
    #[arg(long)]
    pub profile: bool,
    /// Compare the steps with PyTorch's times, the output of scripts/torch_cpu.py
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub torch: Option<PathBuf>,
    /// Measure GPT-2 124M, or the given model, with the best plan in each dtype; write FILE, *.json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "only", "profile", "torch"])]
    pub card: Option<PathBuf>,
    /// With --card: train the rule's model for this time, like 5min or 1h, and add the bits per byte to FILE
    #[arg(long, value_name = "TIME", requires = "card", conflicts_with_all = ["max_time", "end_at"])]
    pub result: Option<humantime::Duration>,
    /// Repeat the first updates of the results in FILE, and say whether their losses agree
    #[arg(long, value_name = "FILE", conflicts_with_all = ["card", "json", "only", "profile", "torch"])]
    pub verify: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A part of `wgpt bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BenchPart {
    /// Each op by itself
    Kernels,
    /// Whole training steps
    Steps,
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigAction {
    /// Print a configuration file that explains every key
    Init(ConfigSource),
    /// Print the resolved values and their sources
    Show(ConfigSource),
    /// Check a configuration
    Check(ConfigSource),
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn global_flags_go_before_or_after_the_command() {
        for line in ["wgpt --device=cpu devices", "wgpt devices --device=cpu", "wgpt -v devices"] {
            let Arguments { command, .. } = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert!(matches!(command, Some(Subcommands::Devices { .. })), "{line}");
        }
    }
}
