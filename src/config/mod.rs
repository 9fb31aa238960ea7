//! The configuration of a run: reads settings from every source, merges and validates them.
//!
//! Settings come from up to four sources: a preset, a file (TOML or a nanoGPT `.py`), `WGPT_*`
//! variables and flags. Each source becomes a [`Layer`]; [`resolve()`] merges the layers into a
//! [`Config`] that needs no further checks. `KEYS` is the table of all settings.
//!
//! This module is pure: text and values are arguments.

mod budget;
mod choices;
mod error;
mod expression;
mod hours;
mod keys;
mod kind;
mod layer;
mod length;
mod model_size;
mod moment;
mod names;
mod precision;
mod presets;
mod python;
mod resolve;
mod rope;
mod schedule;
mod source;

pub use budget::Budget;
pub(crate) use choices::words;
pub use choices::{
    Arch, BaseDtype, Choice, Cublas, Gelu, InitFrom, OptimizerKind, Priority, QUANTIZED_BLOCK,
    Schedule,
};
pub use error::{ConfigError, Provenance, Source};
pub use hours::Hours;
pub(crate) use keys::{DATASET, IGNORED, KEYS, Key, VARIABLE_PREFIX, most_similar};
pub(crate) use kind::{InvalidValue, ValueKind};
pub use layer::{Layer, decode};
pub use length::RunLength;
pub(crate) use moment::{moment_text, next_moment};
pub(crate) use names::{file_name, run_name};
pub use precision::{Abilities, Dtype, Matrices, Precision};
pub(crate) use presets::{preset_names, preset_title};
pub(crate) use resolve::merge;
pub use resolve::{Resolved, resolve};
pub use rope::RopeScaling;
pub use schedule::DecayLength;
pub(crate) use schedule::learning_rate;
pub use source::ConfigSource;

use chrono::{DateTime, FixedOffset, Local};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

pub(crate) const GPT2_VOCABULARY: u32 = 50_257;

/// The prefix of the names of the built-in data sets.
pub(crate) const BUILTIN: &str = "builtin:";
pub(crate) const BUILTIN_STORIES: &str = "builtin:stories";
pub(crate) const BUILTIN_CHATS: &str = "builtin:chats";

/// The settings of a training run, under nanoGPT's names where it has them. `KEYS` says what each is.
///
/// [`resolve()`] builds one and checks the rules between the fields. Deserializing checks types
/// only, which is enough for a config that was resolved before (an event, a state file).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// A prepared data folder or a built-in corpus. nanoGPT's `dataset = 'x'` is `data/x`.
    pub data: String,
    pub vocab_size: u32,
    /// Empty = the caller creates a new folder.
    pub out_dir: String,
    pub init_from: InitFrom,
    /// At most `i64::MAX`, which is the largest integer of TOML.
    pub seed: u64,

    #[serde(default)]
    pub arch: Arch,
    pub n_layer: NonZeroU32,
    /// Divides `n_embd`, unless `head_size` is set.
    pub n_head: NonZeroU32,
    /// Divides `n_head`; 0 = `n_head`.
    #[serde(default)]
    pub n_kv_head: u32,
    /// 0 = `n_embd / n_head`. A method returns the number, as for `ffn_size`.
    #[serde(default)]
    pub head_size: u32,
    pub n_embd: NonZeroU32,
    #[serde(default)]
    pub ffn_size: u32,
    pub block_size: NonZeroU32,
    pub bias: bool,
    pub dropout: f64,
    pub gelu: Gelu,
    #[serde(default = "rope_theta")]
    pub rope_theta: f64,
    #[serde(default)]
    pub rope_scaling: RopeScaling,
    #[serde(default = "norm_eps")]
    pub norm_eps: f64,
    #[serde(default = "yes")]
    pub tie_embeddings: bool,
    /// 0 for `block_size`.
    #[serde(default)]
    pub max_positions: u32,

    /// 0 = train all weights.
    #[serde(default)]
    pub lora_rank: u32,
    /// 0 = twice `lora_rank`.
    #[serde(default)]
    pub lora_alpha: f64,
    #[serde(default)]
    pub lora_dropout: f64,
    /// Separated by commas; empty = all.
    #[serde(default)]
    pub lora_targets: String,
    #[serde(default)]
    pub base_dtype: BaseDtype,

    /// Sequences per accumulation step. They need not be on the device at once: see `micro_batch`.
    pub batch_size: NonZeroU32,
    /// The global batch is `batch_size` times this, and the loss of a step is the mean over it.
    pub gradient_accumulation_steps: NonZeroU32,
    pub micro_batch: u32,
    pub loss_chunk: u32,
    #[serde(default)]
    pub grad_checkpoint: Choice,
    #[serde(default)]
    pub offload_optimizer: Choice,
    #[serde(default)]
    pub shard_optimizer: bool,
    #[serde(default)]
    pub vram_budget: Budget,
    pub dtype: Dtype,
    #[serde(default)]
    pub cublas: Cublas,
    /// Submissions of 10 ms. `Auto` = on a GPU with a display.
    #[serde(default)]
    pub gentle: Choice,

    #[serde(default)]
    pub optimizer: OptimizerKind,
    pub learning_rate: f64,
    pub weight_decay: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub grad_clip: f64,

    pub max_iters: NonZeroU64,
    /// `None` = no limit. Shortens the schedule if the length of the run is not set.
    #[serde(with = "max_time")]
    pub max_time: Option<Duration>,
    /// `None` = by no clock. Pauses and sleep count.
    #[serde(default, with = "end_at")]
    pub end_at: Option<DateTime<FixedOffset>>,
    /// Outside them the run waits, and its process has ended.
    #[serde(default)]
    pub hours: Hours,
    #[serde(default)]
    pub priority: Priority,
    /// For how long others must have left room before the run takes it again.
    #[serde(default = "two_minutes", with = "max_time")]
    pub quiet_time: Option<Duration>,
    pub decay_lr: bool,
    #[serde(default)]
    pub schedule: Schedule,
    #[serde(default = "decay_fraction")]
    pub decay_fraction: f64,
    /// With `wsd`, and `max_time` or `end_at`: the length of the run follows its speed, so that it ends with the time.
    #[serde(default)]
    pub fill_time: bool,
    /// At most the iteration at which the cosine ends, or at which the decay of `wsd` begins.
    pub warmup_iters: u64,
    pub lr_decay_iters: u64,
    /// At most `learning_rate` if `decay_lr` is set.
    pub min_lr: f64,

    pub eval_interval: NonZeroU64,
    pub eval_iters: NonZeroU32,
    pub eval_batch_size: u32,
    /// At most `block_size`; 0 = `block_size`.
    #[serde(default)]
    pub eval_block_size: u32,
    pub eval_only: bool,
    pub sample_interval: u64,
    pub sample_prompt: String,
    /// 0 = no samples. A token takes one position: 200 tokens cost less than 200 batches of evaluation.
    pub sample_tokens: u32,
    #[serde(default)]
    pub hellaswag: String,
    #[serde(default)]
    pub hellaswag_questions: u32,

    pub log_interval: NonZeroU64,
    /// The scalar logs for other programs, separated by commas.
    #[serde(default)]
    pub log: String,
    pub always_save_checkpoint: bool,
    pub keep_checkpoints: NonZeroU32,
    /// Absent in the records of older versions.
    #[serde(default = "yes")]
    pub keep_awake: bool,
    #[serde(default = "yes")]
    pub notify: bool,
    /// Limits of the device; 0 = none.
    #[serde(default)]
    pub max_celsius: f64,
    #[serde(default)]
    pub max_watts: f64,
}

impl Config {
    /// Returns true if a run is to wait for its hours, or for other programs, without a process on its device.
    pub fn may_stand_by(&self) -> bool {
        !self.hours.is_always() || self.priority == Priority::Background
    }

    /// Returns the sequences per update. It does not depend on the micro-batch.
    pub(crate) fn global_batch(&self) -> u64 {
        u64::from(self.batch_size.get()) * u64::from(self.gradient_accumulation_steps.get())
    }

    /// Returns the requested micro-batch in sequences, a divisor of the global batch.
    pub(crate) fn micro_batch(&self) -> NonZeroU32 {
        NonZeroU32::new(self.micro_batch).unwrap_or(self.batch_size)
    }

    /// Returns the context length in evaluation, in tokens; at most `block_size`.
    pub(crate) fn eval_block_size(&self) -> NonZeroU32 {
        NonZeroU32::new(self.eval_block_size).unwrap_or(self.block_size)
    }

    pub(crate) fn require_data(&self) -> Result<&str, ConfigError> {
        if self.data.is_empty() { Err(ConfigError::NoData) } else { Ok(&self.data) }
    }

    /// Returns the config with these settings as typed text; `None` if one is not valid by itself. Does not
    /// check the rules between settings.
    pub(crate) fn with(&self, set: &[(&'static str, String)]) -> Option<Self> {
        let mut values = toml::Table::try_from(self).ok()?;
        for (name, text) in set {
            let key = KEYS.iter().find(|key| key.name == *name)?;
            values.insert(name.to_string(), key.kind.parse(text).ok()?);
        }
        values.try_into().ok()
    }

    /// Returns the time to train that is left at `now` until the run is to end by the clock, if it is.
    pub(crate) fn time_until_end(&self, now: DateTime<Local>) -> Option<Duration> {
        Some(self.hours.until(&now, &self.end_at?.with_timezone(&Local)))
    }

    /// Returns true if the run is to end by a time.
    pub fn is_timed(&self) -> bool {
        self.max_time.is_some() || self.end_at.is_some()
    }

    /// Returns the name and the value of each setting as text, in the order of [`KEYS`].
    pub(crate) fn values(&self) -> Vec<(&'static str, String)> {
        let table = toml::Table::try_from(self).unwrap_or_default();
        let text = |key: &Key| match table.get(key.name) {
            Some(toml::Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        KEYS.iter().map(|key| (key.name, text(key))).collect()
    }

    /// Writes the config as TOML, grouped like [`KEYS`], each line with its help text. The result
    /// read with [`Layer::toml`] resolves to the same config.
    ///
    /// # Panics
    /// If a count exceeds `i64::MAX`, the largest TOML integer. [`resolve()`] never returns one.
    pub(crate) fn to_toml(&self) -> String {
        let values = toml::Table::try_from(self).expect("resolved counts fit TOML integers");
        let mut text = String::new();
        let mut group = "";
        for key in KEYS {
            if key.group != group {
                let gap = if group.is_empty() { "" } else { "\n" };
                group = key.group;
                let _ = writeln!(text, "{gap}# {group}");
            }
            let value = match &values[key.name] {
                toml::Value::String(value) => basic_string(value),
                value => value.to_string(),
            };
            let assignment = format!("{} = {value}", key.name);
            let _ = writeln!(text, "{assignment:<36} # {}", key.help);
        }
        text
    }
}

#[cfg(test)]
impl Config {
    /// Returns a preset with some settings as typed text.
    pub(crate) fn of_preset(name: &str, flags: &[(&str, &str)]) -> Self {
        let flags = Layer::flags(flags.iter().copied()).unwrap();
        let layers = vec![Layer::preset(name).unwrap(), flags];
        resolve(layers).unwrap().config
    }
}

impl Default for Config {
    /// Returns nanoGPT's defaults: [`resolve()`] without layers.
    fn default() -> Self {
        resolve(Vec::new()).expect("the defaults are valid, see the tests").config
    }
}

// The values of configurations that were written before these settings existed.
fn decay_fraction() -> f64 {
    0.2
}

fn rope_theta() -> f64 {
    1e4
}

fn norm_eps() -> f64 {
    1e-5
}

fn yes() -> bool {
    true
}

/// Rounds a vocabulary of `vocab` tokens up to the rows of the embedding: to a multiple of 4, the
/// width of a vector load, from 4096 tokens to a multiple of 64, like nanoGPT's 50304 for 50257.
///
/// Matrix products with the embedding then have no partial tile, for 0.1% more rows. Below 4096
/// the padding would cost more than it saves: 65 characters would become 128.
pub(crate) fn padded_vocab(vocab: u32) -> u32 {
    let multiple = if vocab < 4096 { 4 } else { 64 };
    vocab.checked_next_multiple_of(multiple).unwrap_or(vocab)
}

/// Quotes text as a TOML string on one line. The toml crate would write line breaks as such, which leaves
/// no room for the comment. JSON has the same escapes, but none for DEL.
fn basic_string(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

fn two_minutes() -> Option<Duration> {
    Some(Duration::from_secs(120))
}

/// Serializes a time as text, like `2h`, since TOML has no durations.
mod max_time {
    use super::Duration;
    use super::kind::parse_duration;
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

/// Serializes `end_at` as text of RFC 3339, like `2026-11-28T07:30:00+01:00`.
mod end_at {
    use super::moment::parse_moment;
    use super::{DateTime, FixedOffset, moment_text};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    type Moment = Option<DateTime<FixedOffset>>;

    pub fn serialize<S: Serializer>(moment: &Moment, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&moment.as_ref().map_or(String::new(), moment_text))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Moment, D::Error> {
        parse_moment(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
