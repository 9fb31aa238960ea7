//! Merges layers into a config and checks the rules between keys.

use super::error::{ConfigError, Provenance, Source};
use super::keys::{KEYS, LORA_TARGETS, MAX_HEAD_SIZE};
use super::kind::InvalidValue;
use super::layer::Layer;
use super::{
    Arch, BUILTIN, BUILTIN_CHATS, BUILTIN_STORIES, BaseDtype, Choice, Config, InitFrom,
    OptimizerKind, Schedule,
};
use std::collections::BTreeMap;

const BUILTIN_DATA: &[&str] = &[BUILTIN_STORIES, BUILTIN_CHATS];

/// A valid config, and the warnings about its sources.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub config: Config,
    pub warnings: Vec<String>,
    /// By key, for `wgpt config show`.
    pub provenance: BTreeMap<&'static str, Provenance>,
}

impl Resolved {
    /// Returns true if a file, a variable or a flag sets the length of a run with nanoGPT's schedule. Then
    /// `max_time` only ends it early; otherwise it plans a schedule that ends in time.
    pub fn sets_length(&self) -> bool {
        self.config.schedule == Schedule::Cosine
            && (self.is_set("max_iters") || self.is_set("lr_decay_iters"))
    }

    /// Returns true if a person has set a key: by a file, a variable, a flag or the model to start from.
    pub fn is_set(&self, key: &str) -> bool {
        self.provenance.get(key).is_some_and(|at| at.source >= Source::Model)
    }
}

/// Merges the layers and checks the rules between keys.
///
/// The precedence is defaults < preset < model < file < environment < flags, in whatever order the
/// layers are given. Of two layers from the same kind of source, the later one wins.
pub fn resolve(layers: Vec<Layer>) -> Result<Resolved, ConfigError> {
    let resolved = merge(layers)?;
    resolved.check()?;
    Ok(resolved)
}

/// Merges the layers like [`resolve`], before the shapes of a model to start from are known: the rules between
/// keys are not checked.
pub(crate) fn merge(mut layers: Vec<Layer>) -> Result<Resolved, ConfigError> {
    layers.push(Layer::defaults()?);
    layers.sort_by_key(|layer| layer.source);
    let mut values = toml::Table::new();
    let mut provenance: BTreeMap<&str, Provenance> = BTreeMap::new();
    // By name, so that each key has one warning. Variables come first: they are in upper case.
    let mut warnings = BTreeMap::new();
    for layer in layers {
        for (name, (value, place)) in layer.values {
            // A preset overrides what a nanoGPT file implies.
            if provenance.get(name).is_none_or(|before| before.source <= place.source) {
                values.insert(name.to_string(), value);
                provenance.insert(name, place);
            }
        }
        for (name, warning) in layer.warnings {
            warnings.entry(name).or_insert(warning);
        }
    }
    // A preset's GPT-2 has biases, which other architectures lack.
    let source = |key: &str| provenance.get(key).map(|at| at.source);
    let is_gpt2 = values.get("arch").and_then(toml::Value::as_str) == Some("gpt2");
    if !is_gpt2 && source("arch") > source("bias") {
        values.insert("bias".into(), false.into());
    }
    // Of two limits of time the later word holds.
    for (limit, other) in [("max_time", "end_at"), ("end_at", "max_time")] {
        if source(limit) > source(other) {
            values.insert(other.into(), "".into());
        }
    }
    // A length that a person gives a run that is there holds.
    if source("max_iters") > source("fill_time") {
        values.insert("fill_time".into(), false.into());
    }
    let config: Config = values
        .try_into()
        .map_err(|e: toml::de::Error| ConfigError::Table(e.message().to_owned()))?;
    let warnings = warnings.into_values().collect();
    Ok(Resolved { config, warnings, provenance })
}

impl Resolved {
    /// Checks the rules between keys. The rules for a single key are in its kind.
    fn check(&self) -> Result<(), ConfigError> {
        let config = &self.config;
        let data = config.data.as_str();
        if data.starts_with(BUILTIN) && !BUILTIN_DATA.contains(&data) {
            let rule = "this built-in data does not exist";
            let hint = format!("use {} or the path of a folder", BUILTIN_DATA.join(", "));
            return self.error("data", &[], format!("{data:?}"), rule, hint);
        }
        if config.init_from == InitFrom::Path(String::new()) {
            let hint = "use scratch, resume or a path";
            return self.error("init_from", &[], "\"\"", "it must not be empty", hint);
        }

        self.check_arch()?;
        self.check_heads()?;
        self.check_adapter()?;

        let global = config.global_batch();
        let micro = u64::from(config.micro_batch().get());
        let divides = |micro: &u64| global.is_multiple_of(*micro);
        if !divides(&micro) {
            let Config { batch_size, gradient_accumulation_steps, .. } = config;
            let fewer = (1..=micro.min(global)).rev().find(divides).unwrap_or(1);
            let rule = format!(
                "it must divide the global batch of {global} (batch_size {batch_size} x \
                 gradient_accumulation_steps {gradient_accumulation_steps})"
            );
            let others = ["batch_size", "gradient_accumulation_steps"];
            let hint = format!("set micro_batch to {fewer}");
            return self.error("micro_batch", &others, micro, rule, hint);
        }

        let window = config.eval_block_size;
        let block_size = config.block_size.get();
        if window > block_size {
            let rule = format!("it must not exceed block_size = {block_size}");
            let hint = format!("set eval_block_size to {block_size}, or leave it out");
            return self.error("eval_block_size", &["block_size"], window, rule, hint);
        }

        let Config { learning_rate, min_lr, warmup_iters, lr_decay_iters, .. } = *config;
        // Without decay these keys have no effect. nanoGPT's finetuning config relies on that: its
        // learning rate is below the default min_lr.
        if !config.decay_lr {
            return Ok(());
        }
        if config.schedule == Schedule::Wsd {
            let start = config.decay_start();
            if warmup_iters > start {
                let rule = format!("the decay begins at iteration {start}, before the warmup ends");
                let hint = format!("set warmup_iters to about {}", start / 50);
                let others = ["max_iters", "decay_fraction"];
                return self.error("warmup_iters", &others, warmup_iters, rule, hint);
            }
        } else if lr_decay_iters == 0 {
            let hint = "set it to max_iters, or decay_lr to false";
            return self.error("lr_decay_iters", &[], 0, "it must be at least 1", hint);
        } else if warmup_iters > lr_decay_iters {
            let rule = format!("it must not exceed lr_decay_iters = {lr_decay_iters}");
            let hint = format!("set warmup_iters to about {}", lr_decay_iters / 50);
            return self.error("warmup_iters", &["lr_decay_iters"], warmup_iters, rule, hint);
        }
        if min_lr > learning_rate {
            let rule = format!("it must not exceed learning_rate = {learning_rate:?}");
            let hint = format!("set min_lr to {:.1e}, or decay_lr to false", learning_rate / 10.0);
            let value = format!("{min_lr:?}");
            return self.error("min_lr", &["learning_rate"], value, rule, hint);
        }
        Ok(())
    }

    /// Checks that heads have a size, and that they share keys and values evenly.
    fn check_heads(&self) -> Result<(), ConfigError> {
        let config = &self.config;
        let n_embd = config.n_embd.get();
        let n_head = config.n_head.get();
        let follows = config.head_size == 0;
        let is_small = |heads: u32| !follows || n_embd / heads <= MAX_HEAD_SIZE;
        let is_valid = |heads: &u32| n_embd.is_multiple_of(*heads) && is_small(*heads);
        // The Llama of transformers refuses other numbers of heads, even with a head size.
        if (follows || config.arch == Arch::Llama) && !is_valid(&n_head) {
            let rule = if !n_embd.is_multiple_of(n_head) {
                format!("it must divide n_embd = {n_embd}")
            } else {
                let size = n_embd / n_head;
                format!("with n_embd = {n_embd} a head is {size} wide, more than {MAX_HEAD_SIZE}")
            };
            let fewer = (1..n_head.min(n_embd + 1)).rev().find(is_valid);
            let more = (n_head.saturating_add(1)..=n_embd).find(is_valid);
            let valid: Vec<_> = [fewer, more].iter().flatten().map(u32::to_string).collect();
            let hint = format!("set n_head to {}", valid.join(" or "));
            return self.error("n_head", &["n_embd"], n_head, rule, hint);
        }
        let kv_heads = config.kv_heads();
        if !n_head.is_multiple_of(kv_heads) {
            let fewer = (1..kv_heads.min(n_head)).rev().find(|heads| n_head.is_multiple_of(*heads));
            let rule = format!("it must divide n_head = {n_head}");
            let hint = format!("set n_kv_head to {}", fewer.unwrap_or(1));
            return self.error("n_kv_head", &["n_head"], kv_heads, rule, hint);
        }
        let size = config.head_size();
        if config.arch != Arch::Gpt2 && !size.is_multiple_of(2) {
            let rule = "the elements of a head are rotated in pairs, so it must be even";
            let hint = format!("set head_size to {}", size + 1);
            return self.error("head_size", &["n_head", "n_embd", "arch"], size, rule, hint);
        }
        Ok(())
    }

    /// Checks that the settings of other architectures have their defaults.
    fn check_arch(&self) -> Result<(), ConfigError> {
        let config = &self.config;
        if config.arch != Arch::Gpt2 {
            if !config.bias {
                return Ok(());
            }
            let rule = format!("the layers of {} have no such biases", config.arch);
            let hint = "set bias to false, or arch to gpt2";
            return self.error("bias", &["arch"], true, rule, hint);
        }
        let shape = [
            ("n_kv_head", config.n_kv_head.to_string()),
            ("head_size", config.head_size.to_string()),
            ("ffn_size", config.ffn_size.to_string()),
            ("rope_theta", format!("{:?}", config.rope_theta)),
            ("rope_scaling", config.rope_scaling.to_string()),
            ("norm_eps", format!("{:?}", config.norm_eps)),
            ("tie_embeddings", config.tie_embeddings.to_string()),
            ("max_positions", config.max_positions.to_string()),
        ];
        for (name, value) in shape {
            let default = KEYS.iter().find(|key| key.name == name).map_or("", |key| key.default);
            if value != default {
                let rule = "the blocks of gpt2 do not have this setting";
                let hint =
                    format!("leave {name} at {default}, or set arch to llama, qwen2 or qwen3");
                return self.error(name, &["arch"], value, rule, hint);
            }
        }
        Ok(())
    }

    /// Checks that the settings of an adapter fit the model and the optimizer.
    fn check_adapter(&self) -> Result<(), ConfigError> {
        let config = &self.config;
        if config.lora_rank == 0 {
            if config.base_dtype == BaseDtype::Auto {
                return Ok(());
            }
            let rule = "weights in 8 bits cannot be trained, only adapted";
            let hint = "train an adapter with lora_rank = 16, or leave base_dtype out";
            return self.error("base_dtype", &["lora_rank"], config.base_dtype, rule, hint);
        }
        let is_gpt2 = config.arch == Arch::Gpt2;
        let of_arch = |target: &&str| target.starts_with("c_") == is_gpt2;
        let mut names = config.lora_targets.split(',').filter(|target| !target.is_empty());
        if let Some(other) = names.find(|target| !of_arch(target)) {
            let has: Vec<&str> = LORA_TARGETS.iter().copied().filter(of_arch).collect();
            let rule = format!("{} has no matrix of this name", config.arch);
            let hint =
                format!("its matrices are {}; leave lora_targets out for all", has.join(", "));
            return self.error("lora_targets", &["arch"], other, rule, hint);
        }
        let narrowest = config.n_embd.get().min(config.kv_heads() * config.head_size());
        if config.lora_rank > narrowest {
            let rule = format!("the smallest matrix has only {narrowest} rows or columns");
            let hint = format!("use 8 to 64, at most {narrowest}");
            return self.error("lora_rank", &["n_embd"], config.lora_rank, rule, hint);
        }
        if config.optimizer == OptimizerKind::Muon {
            let rule = "Muon is for whole matrices, and an adapter has none";
            let hint = "leave optimizer out, or set it to adamw";
            return self.error("optimizer", &["lora_rank"], "muon", rule, hint);
        }
        if config.offload_optimizer == Choice::True {
            let rule = "the state of an adapter's optimizer is too small to move";
            let hint = "leave offload_optimizer out";
            return self.error("offload_optimizer", &["lora_rank"], true, rule, hint);
        }
        if config.shard_optimizer {
            let rule = "the state of an adapter's optimizer is too small to divide";
            let hint = "leave shard_optimizer out";
            return self.error("shard_optimizer", &["lora_rank"], true, rule, hint);
        }
        Ok(())
    }

    /// Returns an error about `key`. Its provenance is that of `key` or one of `others`, whichever was set
    /// last, because the user is likely editing that one.
    fn error(
        &self,
        key: &'static str,
        others: &[&str],
        value: impl ToString,
        rule: impl Into<String>,
        hint: impl Into<String>,
    ) -> Result<(), ConfigError> {
        let places = others.iter().chain([&key]).filter_map(|key| self.provenance.get(key));
        Err(ConfigError::Invalid {
            key,
            provenance: Box::new(places.max().cloned().unwrap_or_default()),
            value: value.to_string(),
            problem: InvalidValue::range(rule, hint),
        })
    }
}
