//! The table of settings.
//!
//! Parsing, type and range checks, flags, `WGPT_*` variables and the files written by `wgpt config`
//! all follow from this table. To add a setting, add a row here and a field in
//! [`Config`](super::Config); a test compares the two.

use super::kind::ValueKind::{
    self, Bool, Choice, Count, Duration, Fraction, Hours, Memory, Moment, NonNegative, Positive,
    Scaling, Text, Words,
};
use super::{Arch, BaseDtype, Cublas, Dtype, Gelu, OptimizerKind, Priority, Schedule, choices};

/// A setting: a line of a config file, a flag and an environment variable.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// In nanoGPT's spelling, with underscores.
    pub name: &'static str,
    pub kind: ValueKind,
    /// The heading in help texts and written files. Keys of one group are adjacent in [`KEYS`].
    pub group: &'static str,
    /// One line, with the unit.
    pub help: &'static str,
    /// The default, as typed on the command line.
    pub default: &'static str,
}

impl Key {
    /// The group of the settings of the model.
    pub(crate) const MODEL: &str = "model";

    /// Returns the environment variable of this key: `WGPT_BATCH_SIZE` for `batch_size`.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.to_ascii_uppercase())
    }
}

/// The attention kernels keep one row of a head in registers or workgroup memory.
pub(super) const MAX_HEAD_SIZE: u32 = 256;

pub const VARIABLE_PREFIX: &str = "WGPT_";

/// `WGPT_*` variables that are not settings but are read elsewhere, so they cause no warning.
pub(super) const RESERVED_VARIABLES: &[&str] = &[
    "WGPT_COLOR",
    "WGPT_CUBLAS_LIBRARY",
    "WGPT_DEVICE",
    "WGPT_MPI_LIBRARY",
    "WGPT_ON_FINISH",
    "WGPT_OPS",
    "WGPT_PRESET",
];

/// A whole number from `min` to `max`.
///
/// The limits keep all later products within an i64: the largest global batch is 2^16 * 2^20 sequences of
/// 2^20 tokens, and the largest model has fewer than 2^54 parameters.
const fn count(min: u64, max: u64) -> ValueKind {
    Count { min, max }
}

const U32: u64 = u32::MAX as u64;
/// The largest integer of TOML, in which the resolved config is written to the run folder.
const I64: u64 = i64::MAX as u64;

const DATA: &str = "data and run";
const MODEL: &str = Key::MODEL;
const ADAPTER: &str = "adapter";
const BATCH: &str = "batch and memory";
const OPTIMIZER: &str = "optimizer";
const SCHEDULE: &str = "schedule";
const EVALUATION: &str = "evaluation and samples";
const OUTPUT: &str = "output";

const fn key(
    name: &'static str,
    kind: ValueKind,
    group: &'static str,
    default: &'static str,
    help: &'static str,
) -> Key {
    Key { name, kind, group, help, default }
}

/// The matrices of blocks, by the last part of their names in the files of transformers: GPT-2's, then Llama's.
pub(super) const LORA_TARGETS: &[&str] = &[
    "c_attn",
    "c_proj",
    "c_fc",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// All settings, in the order of files and help texts.
#[rustfmt::skip] // One row per line, to read as a table.
pub const KEYS: &[Key] = &[
    key("data", Text, DATA, "", "prepared folder, builtin:stories or builtin:chats"),
    key("vocab_size", count(0, i32::MAX as u64), DATA, "0", "tokens in the vocabulary; 0 = from the data"),
    key("out_dir", Text, DATA, "", "run folder; empty = a new one"),
    key("init_from", Text, DATA, "scratch", "scratch, resume, a fetched model like hf:gpt2, or the path of a model, checkpoint or run"),
    key("seed", count(0, I64), DATA, "1337", "seed of the initial weights, the data order and dropout"),

    key("arch", Choice(Arch::WORDS), MODEL, "gpt2", "blocks of gpt2, llama, qwen2 (also Qwen2.5) or qwen3"),
    key("n_layer", count(1, 1 << 10), MODEL, "12", "number of transformer blocks"),
    key("n_head", count(1, 1 << 16), MODEL, "12", "attention heads per block, a divisor of n_embd unless head_size is set"),
    key("n_kv_head", count(0, 1 << 16), MODEL, "0", "not with gpt2: heads of keys and values, which query heads share; 0 = n_head"),
    key("head_size", count(0, MAX_HEAD_SIZE as u64), MODEL, "0", "not with gpt2: elements of a head, an even number; 0 = n_embd / n_head"),
    key("n_embd", count(1, 1 << 16), MODEL, "768", "embedding width"),
    key("ffn_size", count(0, 1 << 18), MODEL, "0", "not with gpt2: width of the MLP; 0 = 8/3 n_embd, rounded up to a multiple of 64"),
    key("block_size", count(1, 1 << 20), MODEL, "1024", "context length in tokens"),
    key("bias", Bool, MODEL, "false", "biases in linear layers and layer norms, as in GPT-2"),
    key("dropout", Fraction, MODEL, "0.0", "dropout probability; 0 = off"),
    key("gelu", Choice(Gelu::WORDS), MODEL, "tanh", "GELU variant: tanh as in OpenAI's GPT-2, erf as in nanoGPT"),
    key("rope_theta", Positive, MODEL, "10000.0", "not with gpt2: base of the angles by which positions rotate queries and keys"),
    key("rope_scaling", Scaling, MODEL, "", "not with gpt2: scaling of the angles, linear:FACTOR or llama3:FACTOR,LOW,HIGH,POSITIONS; empty = none"),
    key("norm_eps", Positive, MODEL, "1e-5", "not with gpt2: added to the mean square in a norm"),
    key("tie_embeddings", Bool, MODEL, "true", "not with gpt2: the output head is the token embedding"),
    key("max_positions", count(0, 1 << 20), MODEL, "0", "not with gpt2: context that exports state, as of a model that was made for more than block_size; 0 = block_size"),

    key("lora_rank", count(0, 1 << 12), ADAPTER, "0", "train low-rank adapters of this rank (LoRA) instead of the weights of init_from; 0 = train the weights"),
    key("lora_alpha", NonNegative, ADAPTER, "0.0", "adapters are scaled by lora_alpha / lora_rank; 0 = twice lora_rank"),
    key("lora_dropout", Fraction, ADAPTER, "0.0", "dropout probability of the inputs of adapters; 0 = off"),
    key("lora_targets", Words(LORA_TARGETS), ADAPTER, "", "matrices with an adapter, like q_proj,v_proj; empty = all in the blocks"),
    key("base_dtype", Choice(BaseDtype::WORDS), ADAPTER, "auto", "how an adapter's base is stored: auto as in the run's dtype, q8_0 in 8 bits a weight"),

    key("batch_size", count(1, 1 << 16), BATCH, "12", "sequences per accumulation step"),
    key("gradient_accumulation_steps", count(1, 1 << 20), BATCH, "40", "accumulation steps per update; the global batch is batch_size times this"),
    key("micro_batch", count(0, U32), BATCH, "0", "sequences on the device at a time; 0 = batch_size"),
    key("loss_chunk", count(0, U32), BATCH, "0", "rows of logits computed at a time; 0 = automatic"),
    key("grad_checkpoint", Choice(choices::Choice::WORDS), BATCH, "auto", "activation checkpointing: recompute blocks in the backward pass, less memory for a third more compute"),
    key("offload_optimizer", Choice(choices::Choice::WORDS), BATCH, "auto", "optimizer state and master weights in host memory, updated by the CPU: 8 bytes per weight on the device, not 16"),
    key("shard_optimizer", Bool, BATCH, "false", "divide the optimizer state among ranks (ZeRO stage 1): less memory for each, half as much again over the network"),
    key("vram_budget", Memory, BATCH, "auto", "most memory to use: 10GiB, 90%, none, or auto = what is free"),
    key("dtype", Choice(Dtype::WORDS), BATCH, "auto", "of matrix products: float32, tf32, bfloat16, float16, or auto = the fastest"),
    key("cublas", Choice(Cublas::WORDS), BATCH, "auto", "with CUDA: matrix products by NVIDIA's cuBLASLt: auto = if it is installed, or off"),
    key("gentle", Choice(choices::Choice::WORDS), BATCH, "auto", "give the GPU about 10 ms of work at a time, so that a desktop on it stays smooth; auto = if it has a display"),

    key("optimizer", Choice(OptimizerKind::WORDS), OPTIMIZER, "adamw", "adamw, or muon for the blocks' matrices and adamw for the rest"),
    key("learning_rate", Positive, OPTIMIZER, "6e-4", "peak learning rate"),
    key("weight_decay", NonNegative, OPTIMIZER, "0.1", "weight decay of tensors with two or more dimensions"),
    key("beta1", Fraction, OPTIMIZER, "0.9", "decay rate of AdamW's first moment"),
    key("beta2", Fraction, OPTIMIZER, "0.95", "decay rate of AdamW's second moment"),
    key("grad_clip", NonNegative, OPTIMIZER, "1.0", "clip the gradient to this global norm; 0 = off"),

    key("max_iters", count(1, I64), SCHEDULE, "600000", "updates of the weights"),
    key("max_time", Duration, SCHEDULE, "", "end within this time, like 8h; without a preset or file, also choose a model"),
    key("hours", Hours, SCHEDULE, "", "train in these hours only, in local time, like mon-fri 23:00-07:00, sat-sun; empty = always"),
    key("priority", Choice(Priority::WORDS), SCHEDULE, "normal", "background = wait while other programs use the GPU, and on battery power"),
    key("quiet_time", Duration, SCHEDULE, "2m", "how long other programs must have left the device alone before the run takes it again; 0s = at once"),
    key("end_at", Moment, SCHEDULE, "", "end by this moment, however long pauses take; --until=07:30 is the next such moment"),
    key("decay_lr", Bool, SCHEDULE, "true", "warm up and decay the learning rate; false = constant"),
    key("schedule", Choice(Schedule::WORDS), SCHEDULE, "cosine", "cosine, or wsd: constant after the warmup, then a decay at the end of max_iters"),
    key("decay_fraction", Fraction, SCHEDULE, "0.2", "with wsd: share of the run in which the learning rate decays to min_lr"),
    key("fill_time", Bool, SCHEDULE, "false", "with wsd, and max_time or end_at: make as many updates as the time allows, more or fewer than max_iters"),
    key("warmup_iters", count(0, I64), SCHEDULE, "2000", "iterations of linear warmup"),
    key("lr_decay_iters", count(0, I64), SCHEDULE, "600000", "with cosine: iteration at which the learning rate reaches min_lr"),
    key("min_lr", NonNegative, SCHEDULE, "6e-5", "learning rate after the decay, often a tenth of the peak"),

    key("eval_interval", count(1, I64), EVALUATION, "2000", "iterations between evaluations"),
    key("eval_iters", count(1, U32), EVALUATION, "200", "batches per evaluation and split"),
    key("eval_batch_size", count(0, U32), EVALUATION, "0", "sequences per evaluation batch; 0 = automatic"),
    key("eval_block_size", count(0, 1 << 20), EVALUATION, "0", "tokens per evaluation window; 0 = block_size"),
    key("eval_only", Bool, EVALUATION, "false", "evaluate once and stop"),
    key("sample_interval", count(0, I64), EVALUATION, "0", "iterations between samples; 0 = one at each evaluation"),
    key("sample_prompt", Text, EVALUATION, "\n", "prompt of the samples"),
    key("sample_tokens", count(0, U32), EVALUATION, "200", "tokens per sample; 0 = no samples"),
    key("hellaswag", Text, EVALUATION, "", "a file of HellaSwag, whose questions are answered at each evaluation; empty = none"),
    key("hellaswag_questions", count(0, U32), EVALUATION, "400", "questions at each evaluation, evenly spread over the file; 0 = all"),

    key("log_interval", count(1, I64), OUTPUT, "1", "iterations between progress lines"),
    key("log", Words(&["tensorboard", "csv"]), OUTPUT, "", "curves for other programs, in the run folder: tensorboard, csv, or both with a comma; empty = none"),
    key("always_save_checkpoint", Bool, OUTPUT, "true", "save at every evaluation, not only when the validation loss improves"),
    key("keep_checkpoints", count(1, U32), OUTPUT, "2", "newest checkpoints to keep besides the best"),
    key("max_celsius", NonNegative, OUTPUT, "0", "pause between updates so that the device stays below this temperature in °C; 0 = no limit"),
    key("max_watts", NonNegative, OUTPUT, "0", "pause between updates so that the device stays below this average power in watts; 0 = no limit"),
    key("keep_awake", Bool, OUTPUT, "true", "keep the computer from suspending by itself while the run trains"),
    key("notify", Bool, OUTPUT, "true", "show a desktop notification when a run of more than 10 seconds has ended"),
];

/// nanoGPT's key for the data: `dataset = 'openwebtext'` means `data = 'data/openwebtext'`. It is
/// accepted everywhere, but is not a field of [`Config`](super::Config).
pub const DATASET: &Key =
    &key("dataset", Text, DATA, "", "nanoGPT's spelling of data = data/DATASET");

/// nanoGPT keys that are accepted and have no effect, each with the reason or the alternative for a
/// warning. A trailing `*` matches any ending.
pub const IGNORED: &[(&str, &str)] = &[
    ("compile", ""),
    ("backend", ""),
    ("device", "choose the device with --device"),
    ("real_data", "only nanoGPT's benchmark script reads it"),
    ("wandb_*", "log = tensorboard or csv writes the curves to the run folder"),
];

/// Settings that no longer exist but are in old run folders. With `sync_every = 1` they had no effect.
pub(super) const RETIRED: [&str; 3] = ["sync_every", "outer_learning_rate", "outer_momentum"];

/// Returns the settings that a source may set: those of [`KEYS`], and [`DATASET`].
pub(super) fn settings() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().chain([DATASET])
}

/// Returns the row of [`IGNORED`] that matches a name as written in a file.
pub(super) fn ignored(name: &str) -> Option<&'static (&'static str, &'static str)> {
    IGNORED.iter().find(|(ignored, _)| match ignored.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *ignored,
    })
}

/// Returns true if wgpt does what the value of an ignored key asks for.
pub(super) fn asks_for_nothing(name: &str, value: &str) -> bool {
    // In a `.py` config a comment may follow the value.
    let value = value.split('#').next().unwrap_or_default().trim();
    let value = value.trim_matches(['\'', '"']).to_ascii_lowercase();
    match name {
        "device" => value == "cuda",
        "wandb_log" => value == "false",
        "real_data" => false,
        // The kernels are compiled in any case, and without wandb_log the others mean nothing.
        _ => true,
    }
}

/// The names of settings in other trainers that are spelled too differently to be found.
const ALIASES: &[(&str, &str)] = &[
    ("context_length", "block_size"),
    ("d_model", "n_embd"),
    ("epochs", "max_iters"),
    ("grad_accum", "gradient_accumulation_steps"),
    ("head_dim", "head_size"),
    ("hidden_size", "n_embd"),
    ("intermediate_size", "ffn_size"),
    ("num_key_value_heads", "n_kv_head"),
    ("lora_r", "lora_rank"),
    ("lr", "learning_rate"),
    ("max_steps", "max_iters"),
    ("num_heads", "n_head"),
    ("num_layers", "n_layer"),
    ("seq_len", "block_size"),
    ("target_modules", "lora_targets"),
    ("wd", "weight_decay"),
];

/// Returns the key that `name` was probably meant to be.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
    if let Some((_, key)) = alias {
        return Some(key);
    }
    most_similar(name, settings().map(|key| key.name))
}

/// Returns the candidate most similar to `typed`, if any is similar enough to suggest.
pub(crate) fn most_similar<'a>(
    typed: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // Edit distance finds typos, Jaro-Winkler finds shortened names (`accum`). Matches that score
    // below 0.6 are coincidence.
    let typed = typed.to_lowercase();
    let score = |name: &str| {
        let typo = strsim::normalized_damerau_levenshtein(&typed, name);
        typo.max(strsim::jaro_winkler(&typed, name) * 0.8)
    };
    candidates
        .map(|name| (score(name), name))
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_groups_are_adjacent() {
        let names: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), KEYS.len());
        let mut groups: Vec<_> = KEYS.iter().map(|key| key.group).collect();
        groups.dedup();
        let distinct: BTreeSet<_> = groups.iter().collect();
        assert_eq!(distinct.len(), groups.len(), "{groups:?}");
    }

    #[test]
    fn typos_suggest_the_intended_key() {
        for (typed, intended) in [
            ("batchsize", "batch_size"),
            ("learning_rte", "learning_rate"),
            ("n_layers", "n_layer"),
            ("n_heads", "n_head"),
            ("max_iter", "max_iters"),
            ("Dropout", "dropout"),
            ("eval_iterations", "eval_iters"),
            ("gradient_accumulation", "gradient_accumulation_steps"),
            ("data_set", "dataset"),
            ("lr", "learning_rate"),
        ] {
            assert_eq!(nearest(typed), Some(intended), "{typed}");
        }
        assert_eq!(nearest("zzqx"), None);
        for (alias, key) in ALIASES {
            let known = |name: &str| settings().any(|key| key.name == name);
            assert!(!known(alias) && known(key), "{alias}");
        }
    }

    #[test]
    fn a_star_matches_any_ending() {
        for name in ["wandb_log", "wandb_anything", "compile"] {
            assert!(ignored(name).is_some(), "{name}");
        }
        for name in ["wandb", "compiled", "batch_size"] {
            assert_eq!(ignored(name), None);
        }
    }
}
