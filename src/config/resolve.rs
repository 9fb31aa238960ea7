//! Merges layers into a config and checks the rules between keys.

use super::error::{ConfigError, Provenance, Source};
use super::kind::InvalidValue;
use super::layer::Layer;
use super::{BUILTIN, BUILTIN_CHATS, BUILTIN_STORIES, Config, InitFrom, Schedule};
use std::collections::BTreeMap;

/// The attention kernels keep one row of a head in registers or workgroup memory.
const MAX_HEAD_SIZE: u32 = 256;

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

    /// Returns true if a person has set a key: by a file, a variable or a flag, or by the model to start
    /// from.
    pub fn is_set(&self, key: &str) -> bool {
        self.provenance.get(key).is_some_and(|at| at.source >= Source::Model)
    }
}

/// Merges the layers and checks the rules between keys.
///
/// The precedence is defaults < preset < model < file < environment < flags, in whatever order the
/// layers are given. Of two layers from the same kind of source, the later one wins.
pub fn resolve(mut layers: Vec<Layer>) -> Result<Resolved, ConfigError> {
    layers.push(Layer::defaults()?);
    layers.sort_by_key(|layer| layer.source);
    let mut values = toml::Table::new();
    let mut provenance: BTreeMap<&str, Provenance> = BTreeMap::new();
    // By name, so that each key has one warning. Variables come first: they are in upper case.
    let mut warnings = BTreeMap::new();
    for layer in layers {
        for (name, (value, place)) in layer.values {
            // What a nanoGPT file implies gives way to a preset.
            if provenance.get(name).is_none_or(|before| before.source <= place.source) {
                values.insert(name.to_string(), value);
                provenance.insert(name, place);
            }
        }
        for (name, warning) in layer.warnings {
            warnings.entry(name).or_insert(warning);
        }
    }
    let config: Config = values
        .try_into()
        .map_err(|e: toml::de::Error| ConfigError::Table(e.message().to_owned()))?;
    let warnings = warnings.into_values().collect();
    let resolved = Resolved { config, warnings, provenance };
    resolved.check()?;
    Ok(resolved)
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

        let (n_embd, n_head) = (config.n_embd.get(), config.n_head.get());
        let is_valid = |heads: &u32| n_embd % heads == 0 && n_embd / heads <= MAX_HEAD_SIZE;
        if !is_valid(&n_head) {
            let rule = if n_embd % n_head != 0 {
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

        let (global, micro) = (config.global_batch(), u64::from(config.micro_batch().get()));
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
        if config.shard_optimizer && config.trains_apart() {
            let rule =
                "with local updates each rank has an optimizer of its own, which cannot be divided";
            let hint = "set sync_every to 1, or shard_optimizer to false";
            return self.error("sync_every", &["shard_optimizer"], config.sync_every, rule, hint);
        }

        let (window, block_size) = (config.eval_block_size, config.block_size.get());
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

    /// Returns an error about `key`, with the provenance of the one set last of it and `others`: that is
    /// the one the user is likely editing.
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
