//! The arguments of commands that fetch and prepare texts.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::TypedValueParser;

use super::values::Suggested;
use crate::data::{DataError, TextEncoding, TokenizerChoice};

#[derive(Debug, Args)]
pub(in crate::cli) struct GetArgs {
    /// hf:ORG/NAME for a repository of the Hugging Face Hub, hf:ORG/NAME#PART for a configuration, a folder or
    /// a file of it, hellaswag, or the https:// address of a file
    #[arg(required_unless_present = "list", value_name = "NAME")]
    pub name: Option<String>,
    /// List good texts and models, with their sizes and licences
    #[arg(long, conflicts_with = "name")]
    pub list: bool,
    /// Fetch more than 1 GB without a question
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct PrepareArgs {
    /// Files of text, .jsonl, .csv or .parquet, all but the last also as .gz or .zst; folders of them; hf:ORG/NAME;
    /// - reads text from stdin. Lines of .jsonl with `messages` are conversations
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<PathBuf>,
    /// Data folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Tokenizer [default: one that suits the size of the text]; bpe:8192 trains one of 8192 tokens on
    /// the text, and a path takes a tokenizer.json, or a folder that has one, with its chat template
    #[arg(long, value_name = "TOKENIZER")]
    #[arg(value_parser = Suggested::new(["gpt2", "char", "byte", "bpe:8192"]).try_map(|name| parse_hinted::<TokenizerChoice>(&name)))]
    pub tokenizer: Option<TokenizerChoice>,
    /// Encoding of plain text and .csv files, by a label of the web, like latin1, windows-1251, utf-16le or shift_jis
    #[arg(long, default_value = "utf-8", value_name = "LABEL", value_parser = parse_hinted::<TextEncoding>)]
    pub encoding: TextEncoding,
    /// Field of .jsonl, and column of .csv and .parquet files, that holds the text
    #[arg(long, default_value = "text", value_name = "NAME")]
    pub text_field: String,
    /// Leave out and count lines of .jsonl and .csv files that cannot be used, instead of ending with an error
    #[arg(long)]
    pub skip_bad_lines: bool,
    /// Share of the text for the validation split: whole documents, or the end of the text where a few
    /// documents are most of it. Conversations are always whole
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    pub val_fraction: f64,
    /// Seed of the choice of validation documents
    #[arg(long, default_value_t = 1337)]
    pub seed: u64,
    /// Overwrite a data folder
    #[arg(long)]
    pub force: bool,
}

fn parse_hinted<T: FromStr<Err = DataError>>(name: &str) -> Result<T, String> {
    name.parse().map_err(|error: DataError| format!("{error}: {}", error.hint()))
}
