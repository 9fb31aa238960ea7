//! Merges layers into a config and checks the rules between keys.

use super::error::{ConfigError, Provenance};
use super::keys::{KEYS, Key};
use super::layer::{Layer, ignored_warning};
use super::literal::Value;
use super::{BUILTIN, BUILTIN_CHATS, BUILTIN_STORIES, Config, InitFrom};
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
    /// Returns true if a file, a variable or a flag sets the length of the run. Then `max_time` only
    /// ends it early; otherwise it plans a schedule that ends in time.
    pub fn sets_length(&self) -> bool {
        ["max_iters", "lr_decay_iters"].iter().any(|key| {
            matches!(
                self.provenance.get(key),
                Some(Provenance::File { .. } | Provenance::Variable(_) | Provenance::Flag(_))
            )
        })
    }
}

/// Values and their provenance, by key.
type Merged = BTreeMap<&'static str, (Value, Provenance)>;

/// Merges the layers and checks the rules between keys.
///
/// The precedence is defaults < preset < model < file < environment < flags, in whatever order the
/// layers are given. Of two layers from the same kind of source, the later one wins.
pub fn resolve(mut layers: Vec<Layer>) -> Result<Resolved, ConfigError> {
    layers.sort_by_key(|layer| layer.source);
    let mut merged = defaults()?;
    if let Some(file) = layers.iter().find_map(|layer| layer.nanogpt_file.as_ref()) {
        let implied = Provenance::Implied(file.clone());
        // nanoGPT uses the exact GELU, and its users expect its losses.
        merged.insert("gelu", (Value::Text("erf".into()), implied.clone()));
        // nanoGPT's default, which train_gpt2.py relies on.
        merged.insert("data", (Value::Text("data/openwebtext".into()), implied));
    }
    let mut warnings = Vec::new();
    let mut ignored = BTreeMap::new();
    for layer in layers {
        warnings.extend(layer.warnings);
        merged.extend(layer.values);
        for (name, provenance) in layer.ignored {
            ignored.entry(name).or_insert(provenance);
        }
    }
    warnings.extend(ignored.iter().map(|(name, provenance)| ignored_warning(name, provenance)));

    let (values, provenance) = split(merged);
    let config: Config = values
        .try_into()
        .map_err(|e: toml::de::Error| ConfigError::Table(e.message().to_owned()))?;
    Check { config: &config, provenance: &provenance }.all()?;
    Ok(Resolved { config, warnings, provenance })
}

fn defaults() -> Result<Merged, ConfigError> {
    let default = |key: &Key| match key.kind.parse(key.default) {
        Ok(value) => Ok((key.name, (value, Provenance::Default))),
        Err(_) => Err(ConfigError::Table(format!("default of {}", key.name))),
    };
    KEYS.iter().map(default).collect()
}

/// Separates the values, as TOML, from their provenance.
fn split(merged: Merged) -> (toml::Table, BTreeMap<&'static str, Provenance>) {
    let mut values = toml::Table::new();
    let mut provenances = BTreeMap::new();
    for (name, (value, provenance)) in merged {
        values.insert(name.to_owned(), value.into());
        provenances.insert(name, provenance);
    }
    (values, provenances)
}

/// Checks the rules between keys. The rules for a single key are in its kind.
struct Check<'a> {
    config: &'a Config,
    provenance: &'a BTreeMap<&'static str, Provenance>,
}

impl Check<'_> {
    fn all(&self) -> Result<(), ConfigError> {
        self.sources()?;
        self.heads()?;
        self.batch()?;
        self.ranks()?;
        self.evaluation()?;
        self.schedule()
    }

    fn sources(&self) -> Result<(), ConfigError> {
        let data = self.config.data.as_str();
        if data.starts_with(BUILTIN) && !BUILTIN_DATA.contains(&data) {
            let rule = "this built-in data does not exist";
            let hint = format!("use {} or the path of a folder", BUILTIN_DATA.join(", "));
            return Err(self.error(&["data"], format!("{data:?}"), rule, hint));
        }
        if self.config.init_from == InitFrom::Path(String::new()) {
            let hint = "use scratch, resume or a path";
            return Err(self.error(&["init_from"], "\"\"", "it must not be empty", hint));
        }
        Ok(())
    }

    fn heads(&self) -> Result<(), ConfigError> {
        let (n_embd, n_head) = (self.config.n_embd.get(), self.config.n_head.get());
        let is_valid = |heads: &u32| n_embd % heads == 0 && n_embd / heads <= MAX_HEAD_SIZE;
        if is_valid(&n_head) {
            return Ok(());
        }
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
        Err(self.error(&["n_head", "n_embd"], n_head, rule, hint))
    }

    fn batch(&self) -> Result<(), ConfigError> {
        let config = self.config;
        let global = config.global_batch();
        let micro = u64::from(config.micro_batch().get());
        if global.is_multiple_of(micro) {
            return Ok(());
        }
        let divides = |micro: &u64| global.is_multiple_of(*micro);
        let fewer = (1..=micro.min(global)).rev().find(divides).unwrap_or(1);
        let rule = format!(
            "it must divide the global batch of {global} (batch_size {} x gradient_accumulation_steps {})",
            config.batch_size, config.gradient_accumulation_steps
        );
        let keys = ["micro_batch", "batch_size", "gradient_accumulation_steps"];
        Err(self.error(&keys, micro, rule, format!("set micro_batch to {fewer}")))
    }

    fn ranks(&self) -> Result<(), ConfigError> {
        let config = self.config;
        if !(config.shard_optimizer && config.trains_apart()) {
            return Ok(());
        }
        let rule =
            "with local updates each rank has an optimizer of its own, which cannot be divided";
        let hint = "set sync_every to 1, or shard_optimizer to false";
        Err(self.error(&["sync_every", "shard_optimizer"], config.sync_every, rule, hint))
    }

    fn evaluation(&self) -> Result<(), ConfigError> {
        let (window, block_size) = (self.config.eval_block_size, self.config.block_size.get());
        if window <= block_size {
            return Ok(());
        }
        let rule = format!("it must not exceed block_size = {block_size}");
        let hint = format!("set eval_block_size to {block_size}, or leave it out");
        Err(self.error(&["eval_block_size", "block_size"], window, rule, hint))
    }

    fn schedule(&self) -> Result<(), ConfigError> {
        let config = self.config;
        // Without decay these keys have no effect. nanoGPT's finetuning config relies on that: its
        // learning rate is below the default min_lr.
        if !config.decay_lr {
            return Ok(());
        }
        if config.lr_decay_iters == 0 {
            let hint = "set it to max_iters, or decay_lr to false";
            return Err(self.error(&["lr_decay_iters"], 0, "it must be at least 1", hint));
        }
        if config.warmup_iters > config.lr_decay_iters {
            let rule = format!("it must not exceed lr_decay_iters = {}", config.lr_decay_iters);
            let hint = format!("set warmup_iters to about {}", config.lr_decay_iters / 50);
            let keys = ["warmup_iters", "lr_decay_iters"];
            return Err(self.error(&keys, config.warmup_iters, rule, hint));
        }
        if config.min_lr > config.learning_rate {
            let rule = format!("it must not exceed learning_rate = {:?}", config.learning_rate);
            let hint =
                format!("set min_lr to {:.1e}, or decay_lr to false", config.learning_rate / 10.0);
            let value = format!("{:?}", config.min_lr);
            return Err(self.error(&["min_lr", "learning_rate"], value, rule, hint));
        }
        Ok(())
    }

    /// Returns an error about the first of `keys`, with the provenance of the one set last: that is
    /// the one the user is likely editing.
    fn error(
        &self,
        keys: &[&'static str],
        value: impl ToString,
        rule: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let provenance = keys.iter().filter_map(|key| self.provenance.get(key)).max();
        ConfigError::NotAllowed {
            key: keys.first().copied().unwrap_or_default(),
            provenance: Box::new(provenance.cloned().unwrap_or(Provenance::Default)),
            value: value.to_string(),
            rule: rule.into(),
            hint: hint.into(),
        }
    }
}
