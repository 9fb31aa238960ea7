//! The arguments of commands on trained models and runs.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::model::GgufType;

/// How a text is generated.
#[derive(Debug, Args)]
pub(in crate::cli) struct SamplingArgs {
    /// Tokens of each text
    #[arg(long, alias = "max_new_tokens", default_value_t = 500, value_name = "N")]
    pub max_new_tokens: u32,
    /// Divides the logits: below 1 is less random, above 1 more; 0 always takes the most likely token
    #[arg(long, default_value_t = 0.8, value_name = "X")]
    pub temperature: f64,
    /// Draw only from the N most likely tokens; 0 = from all
    #[arg(long, alias = "top_k", default_value_t = 200, value_name = "N")]
    pub top_k: usize,
    /// Seed of the random draws [default: a new one each time]
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ChatArgs {
    /// Run, checkpoint or exported model that was trained on conversations [default: the newest such run
    /// in out/]
    pub model: Option<PathBuf>,
    /// System prompt: what the model is told before the conversation
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub system: String,
    /// Leave out the thoughts of a model that thinks before it answers, such as Qwen3
    #[arg(long)]
    pub no_thinking: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Read conversations from stdin, one per line: {"messages": [{"role": ..., "content": ...}, ...]};
    /// print JSON objects: {"text": ...} for each piece of the answer, then {"done": ...}
    #[arg(long, conflicts_with = "system")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct EvalArgs {
    /// Run, checkpoint, Hugging Face folder or nanoGPT's ckpt.pt [default: the newest run in out/]
    pub model: Option<PathBuf>,
    /// Data folder [default: the data that the run was trained on]
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Evaluate at most N windows of each split, evenly spread; 0 = all of the validation split
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub windows: u64,
    /// Show how likely each token of a text is, with the likeliest tokens in its place; FILE:path reads the
    /// text from a file, - from stdin
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["windows", "hellaswag"])]
    pub text: Option<String>,
    /// Answer the questions of HellaSwag in FILE, or others of its form: one JSON object per line with
    /// `ctx`, `endings` and `label`. Measures the loss too if --data is given
    #[arg(long, value_name = "FILE")]
    pub hellaswag: Option<PathBuf>,
    /// With --hellaswag: write each answer to FILE; if it exists, continue where it ends
    #[arg(long, value_name = "FILE", requires = "hellaswag")]
    pub results: Option<PathBuf>,
    /// With --hellaswag: leave out lines that are not questions
    #[arg(long, requires = "hellaswag")]
    pub skip_bad_lines: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ExportArgs {
    /// Run, checkpoint, Hugging Face folder or nanoGPT's ckpt.pt [default: the newest run in out/]
    pub model: Option<PathBuf>,
    /// Folder or file to write
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
    /// Format [default: gguf for a file called *.gguf, else hf]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<FormatArg>,
    /// With gguf and ollama: the type that matrices are stored in
    #[arg(long = "type", value_name = "TYPE", default_value = "f16", value_parser = gguf_type())]
    pub kind: GgufType,
    /// With page: the unpacked wgpt-VERSION-page.zip of this release [default: web/dist, which
    /// web/build.sh writes, else the folder `page` next to the program]
    #[arg(long, value_name = "DIR")]
    pub web: Option<PathBuf>,
    /// Data folder with the tokenizer, for a model without one
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
}

/// A format that models are exported in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum FormatArg {
    /// A folder for Hugging Face transformers, with a model card. An adapter is added to its model
    Hf,
    /// A folder for PEFT, with an adapter alone
    Peft,
    /// A file for llama.cpp
    Gguf,
    /// A folder with such a file, and a Modelfile with its chat template for Ollama
    Ollama,
    /// A web page on which visitors prompt the model on their own GPU, for any static host
    Page,
}

fn gguf_type() -> impl TypedValueParser<Value = GgufType> {
    let types = [
        PossibleValue::new("f32").help("4 bytes per weight"),
        PossibleValue::new("f16").help("2 bytes per weight"),
        PossibleValue::new("q8_0").help("8 bits per weight, and a scale for each 32"),
    ];
    PossibleValuesParser::new(types).map(|name| match name.as_str() {
        "f32" => GgufType::F32,
        "f16" => GgufType::F16,
        _ => GgufType::Q8_0,
    })
}
