//! What was typed -> what is meant.
//!
//! A config is typed in up to four places: a preset, a file (TOML or a nanoGPT `.py`), `WGPT_*`
//! variables and flags. Each becomes a [`Layer`]; [`resolve()`] puts them on each other and gives a
//! [`Config`] that nothing needs to check again. [`KEYS`] is the one table of what can be set.
//!
//! Everything here is pure: texts and values come in as arguments.

mod budget;
mod error;
mod expression;
mod keys;
mod layer;
mod presets;
mod python;
mod resolve;
mod schedule;
mod value;

pub use budget::{Budget, bytes};
pub use error::{ConfigError, Place};
pub use keys::{DATASET, IGNORED, Ignored, KEYS, Key, RESERVED_VARIABLES, VARIABLE_PREFIX};
pub use layer::{Layer, Origin};
pub use presets::preset_names;
pub use resolve::{Resolved, resolve};
pub use schedule::learning_rate;
pub use value::Kind;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fmt::Write as _;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// A whole training run, as it is meant. Names are nanoGPT's where it has the key.
///
/// [`resolve()`] is the way to get one: it guarantees the rules between the fields. Deserializing
/// checks types only, which is enough for a config that was resolved before (an event, a state
/// file).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// A prepared data folder or `builtin:stories`; empty when not given, see
    /// [`require_data`](Self::require_data). nanoGPT's `dataset = 'x'` is `data/x`.
    pub data: String,
    /// Tokens in the vocabulary; 0 = from the data.
    pub vocab_size: u32,
    /// Run folder; empty = the caller picks a fresh one.
    pub out_dir: String,
    /// Where the weights come from.
    pub init_from: InitFrom,
    /// Seed of the initial weights, the data order and dropout; at most `i64::MAX`.
    pub seed: u64,

    /// Transformer blocks.
    pub n_layer: NonZeroU32,
    /// Attention heads per block; divides `n_embd`.
    pub n_head: NonZeroU32,
    /// Width of the residual stream.
    pub n_embd: NonZeroU32,
    /// Context length in tokens.
    pub block_size: NonZeroU32,
    /// Biases in the linear layers and layer norms: true in GPT-2, false in nanoGPT.
    pub bias: bool,
    /// Probability that an activation is dropped, in [0, 1); 0 = off.
    pub dropout: f64,
    /// Which form of the activation.
    pub gelu: Gelu,

    /// Sequences per accumulation step. Not necessarily on the device at once: see `micro_batch`.
    pub batch_size: NonZeroU32,
    /// The global batch, over which the loss of a step is the mean, is `batch_size` times this.
    pub gradient_accumulation_steps: NonZeroU32,
    /// Sequences on the device at a time; 0 = `batch_size`. See
    /// [`micro_batch()`](Self::micro_batch()).
    pub micro_batch: u32,
    /// Rows of logits that exist at a time; 0 = automatic.
    pub loss_chunk: u32,
    /// Whether blocks keep their inputs alone and are run again for their gradients.
    #[serde(default)]
    pub grad_checkpoint: GradCheckpoint,
    /// Memory of the device that the run may take.
    #[serde(default)]
    pub vram_budget: Budget,
    /// Number format of the computation.
    pub dtype: Dtype,

    /// Peak learning rate of AdamW.
    pub learning_rate: f64,
    /// AdamW's weight decay, on tensors of two or more dimensions.
    pub weight_decay: f64,
    /// Decay of AdamW's first moment.
    pub beta1: f64,
    /// Decay of AdamW's second moment.
    pub beta2: f64,
    /// Largest global norm of the gradient; 0 = off.
    pub grad_clip: f64,

    /// Updates of the weights.
    pub max_iters: NonZeroU64,
    /// Stop after this time; `None` = no limit. Typed as `2h`, written as text.
    #[serde(with = "max_time")]
    pub max_time: Option<Duration>,
    /// Whether the learning rate warms up and decays; false = constant.
    pub decay_lr: bool,
    /// Iterations of linear warmup; at most `lr_decay_iters`.
    pub warmup_iters: u64,
    /// Iteration at which the learning rate reaches `min_lr`.
    pub lr_decay_iters: u64,
    /// Learning rate after the decay; at most `learning_rate` where it decays.
    pub min_lr: f64,

    /// Iterations between evaluations.
    pub eval_interval: NonZeroU64,
    /// Batches per evaluation and split.
    pub eval_iters: NonZeroU32,
    /// Sequences per evaluation batch; 0 = automatic.
    pub eval_batch_size: u32,
    /// Tokens of an evaluation's windows; 0 = `block_size`. See
    /// [`eval_block_size()`](Self::eval_block_size()).
    #[serde(default)]
    pub eval_block_size: u32,
    /// Evaluate once and stop.
    pub eval_only: bool,
    /// Iterations between sample texts; 0 = only at the end.
    pub sample_interval: u64,
    /// How the sample text begins.
    pub sample_prompt: String,
    /// Tokens per sample text.
    pub sample_tokens: u32,

    /// Iterations between progress lines.
    pub log_interval: NonZeroU64,
    /// Whether a checkpoint is written at every evaluation, not only at a better one.
    pub always_save_checkpoint: bool,
    /// Newest checkpoints to keep besides the best.
    pub keep_checkpoints: NonZeroU32,
}

/// The form of the GELU activation (Hendrycks and Gimpel, 2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gelu {
    /// The tanh approximation: OpenAI's and Hugging Face's GPT-2.
    Tanh,
    /// The exact form with the error function: nanoGPT.
    Erf,
}

impl fmt::Display for Gelu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Gelu::Tanh => "tanh",
            Gelu::Erf => "erf",
        })
    }
}

/// The numbers that activations are kept in and that products multiply. Weights, their gradients and
/// moments are 32 bits in each, and so are all sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits throughout.
    #[default]
    Float32,
    /// 32 bits, of which products read the upper 19: what tensor cores take of a float32.
    Tf32,
    /// 16 bits with the range of 32: half the memory for activations.
    Bfloat16,
    /// 16 bits with less range. No run has it: without loss scaling small gradients are lost. It is
    /// there to test kernels of half precision on devices without bfloat16.
    Float16,
}

impl Dtype {
    /// Bytes of an activation.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Float32 | Dtype::Tf32 => 4,
            Dtype::Bfloat16 | Dtype::Float16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dtype::Float32 => "float32",
            Dtype::Tf32 => "tf32",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float16 => "float16",
        })
    }
}

/// Whether blocks are run again for their gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradCheckpoint {
    /// Where nothing else fits the budget.
    #[default]
    Auto,
    /// Always.
    True,
    /// Never.
    False,
}

/// Where the initial weights come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum InitFrom {
    /// Random weights.
    Scratch,
    /// The newest valid checkpoint of the run folder.
    Resume,
    /// A Hugging Face GPT-2 folder, a checkpoint or a run. nanoGPT's `gpt2` is such a folder's name.
    Path(String),
}

impl From<String> for InitFrom {
    fn from(typed: String) -> Self {
        match typed.as_str() {
            "scratch" => InitFrom::Scratch,
            "resume" => InitFrom::Resume,
            _ => InitFrom::Path(typed),
        }
    }
}

impl From<InitFrom> for String {
    fn from(init_from: InitFrom) -> Self {
        match init_from {
            InitFrom::Scratch => "scratch".into(),
            InitFrom::Resume => "resume".into(),
            InitFrom::Path(path) => path,
        }
    }
}

impl Config {
    /// Sequences per update of the weights. What runs on the device at a time never changes it.
    pub fn global_batch(&self) -> u64 {
        u64::from(self.batch_size.get()) * u64::from(self.gradient_accumulation_steps.get())
    }

    /// Sequences on the device at a time, as asked for; divides [`global_batch`](Self::global_batch).
    pub fn micro_batch(&self) -> NonZeroU32 {
        NonZeroU32::new(self.micro_batch).unwrap_or(self.batch_size)
    }

    /// Tokens of an evaluation's windows; at most `block_size`.
    pub fn eval_block_size(&self) -> NonZeroU32 {
        NonZeroU32::new(self.eval_block_size).unwrap_or(self.block_size)
    }

    /// The data to train on, or an error that says how to give it.
    pub fn require_data(&self) -> Result<&str, ConfigError> {
        if self.data.is_empty() { Err(ConfigError::NoData) } else { Ok(&self.data) }
    }

    /// Parameters of the model with `vocab` rows in its embedding, which is also its head.
    ///
    /// With C = `n_embd` a block has 12 C^2 weights in its four matrices and, with biases, 13 C
    /// more: 9 C in the matrices and 4 C in two layer norms; without, 2 C. Saturates at `u64::MAX`,
    /// which only a `vocab` that no config allows can reach.
    pub fn parameters(&self, vocab: u64) -> u64 {
        let [layers, width, block] =
            [self.n_layer, self.n_embd, self.block_size].map(|n| u64::from(n.get()));
        let (vectors, last_norm) = if self.bias { (13, 2) } else { (2, 1) };
        let blocks = (12 * width + vectors).saturating_mul(layers);
        let embeddings = vocab.saturating_add(block).saturating_add(last_norm);
        blocks.saturating_add(embeddings).saturating_mul(width)
    }

    /// The config as TOML under the headings of [`KEYS`], each line with its help. Read back with
    /// [`Layer::toml`] it resolves to the same config.
    ///
    /// # Panics
    ///
    /// If a count is above `i64::MAX`, which TOML has no number for and [`resolve()`] does not let
    /// through.
    pub fn to_toml(&self) -> String {
        let values = toml::Table::try_from(self).expect("resolved counts are TOML integers");
        let mut text = String::new();
        let mut group = "";
        for key in KEYS {
            if key.group != group {
                let gap = if group.is_empty() { "" } else { "\n" };
                group = key.group;
                let _ = writeln!(text, "{gap}# {group}");
            }
            let value = match values.get(key.name) {
                Some(toml::Value::String(value)) => basic_string(value),
                Some(value) => value.to_string(),
                None => continue,
            };
            let assignment = format!("{} = {value}", key.name);
            let _ = writeln!(text, "{assignment:<36} # {}", key.help);
        }
        text
    }
}

impl Default for Config {
    /// nanoGPT's defaults: [`resolve()`] without a layer.
    fn default() -> Self {
        resolve(Vec::new()).expect("the table's defaults are a config, see the tests").config
    }
}

/// Rows that the embedding gets for a vocabulary of `vocab` tokens: the next multiple of 4, which
/// is one access to memory, and from 4096 up of 64, as nanoGPT makes 50304 of 50257 by hand.
///
/// The matrix products with the embedding then have no ragged tile, for 0.1% more rows. Below 4096
/// that would cost more than it gains: 65 characters would become 128.
pub fn padded_vocab(vocab: u32) -> u32 {
    let multiple = if vocab < 4096 { 4 } else { 64 };
    vocab.checked_next_multiple_of(multiple).unwrap_or(vocab)
}

/// Text as a TOML string on one line. The toml crate would write a text with a line break over
/// several lines, where no comment can stand beside its key.
fn basic_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            '\n' => write!(quoted, "\\n"),
            '\t' => write!(quoted, "\\t"),
            c if c.is_control() => write!(quoted, "\\u{:04X}", u32::from(c)),
            c => write!(quoted, "{c}"),
        };
    }
    quoted.push('"');
    quoted
}

/// `max_time` as text: `2h` instead of TOML's lack of a duration.
mod max_time {
    use super::Duration;
    use super::value::parse_duration;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.collect_str(&humantime::format_duration(*time)),
            None => to.serialize_str(""),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
