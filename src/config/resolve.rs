//! What was typed -> what is meant: puts the layers on each other and checks the whole.

use super::error::{ConfigError, Place};
use super::keys::KEYS;
use super::layer::{Layer, Origin, ignored_warning};
use super::value::Value;
use super::{Config, InitFrom};
use std::collections::BTreeMap;

/// Attention keeps one row of a head in registers or workgroup memory; no GPT-2 needs more.
const MAX_HEAD_SIZE: u32 = 256;

/// What `builtin:` data there is.
const BUILTIN_DATA: &[&str] = &["builtin:stories"];

/// A config that needs no further check, and what was odd on the way.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The config.
    pub config: Config,
    /// Sentences for the user, each shown once.
    pub warnings: Vec<String>,
    /// Where each key's value comes from, for `wgpt config show`.
    pub places: BTreeMap<&'static str, Place>,
}

/// Values and where they come from, by key.
type Merged = BTreeMap<&'static str, (Value, Place)>;

/// Puts the layers on each other and checks the whole.
///
/// Precedence is by origin, defaults < preset < model < file < environment < flags, whatever order
/// the layers are given in; of two layers of one kind the later one wins.
pub fn resolve(mut layers: Vec<Layer>) -> Result<Resolved, ConfigError> {
    layers.sort_by_key(|layer| match layer.origin {
        Origin::Preset(_) => 0,
        Origin::Model => 1,
        Origin::File { .. } => 2,
        Origin::Environment => 3,
        Origin::Flags => 4,
    });
    let mut merged = defaults()?;
    if let Some(file) = layers.iter().find_map(nanogpt_file) {
        // nanoGPT's GELU is the exact one; its users expect its losses.
        merged.insert("gelu", (Value::Text("erf".into()), Place::Implied(file.into())));
        // Its default, which train_gpt2.py relies on.
        let data = Value::Text("data/openwebtext".into());
        merged.insert("data", (data, Place::Implied(file.into())));
    }
    let mut warnings = Vec::new();
    let mut ignored = BTreeMap::new();
    for layer in layers {
        warnings.extend(layer.warnings);
        merged.extend(layer.values);
        for (name, place) in layer.ignored {
            ignored.entry(name).or_insert(place);
        }
    }
    warnings.extend(ignored.iter().map(|(name, place)| ignored_warning(name, place)));

    let (values, places) = split(merged);
    let config: Config = values
        .try_into()
        .map_err(|e: toml::de::Error| ConfigError::Table(e.message().to_owned()))?;
    Check { config: &config, places: &places }.all()?;
    Ok(Resolved { config, warnings, places })
}

fn defaults() -> Result<Merged, ConfigError> {
    let default = |key: &super::Key| match key.kind.parse(key.default) {
        Ok(value) => Ok((key.name, (value, Place::Default))),
        Err(_) => Err(ConfigError::Table(format!("default of {}", key.name))),
    };
    KEYS.iter().map(default).collect()
}

fn nanogpt_file(layer: &Layer) -> Option<&str> {
    match &layer.origin {
        Origin::File { name, nanogpt: true } => Some(name),
        _ => None,
    }
}

fn split(merged: Merged) -> (toml::Table, BTreeMap<&'static str, Place>) {
    let mut values = toml::Table::new();
    let mut places = BTreeMap::new();
    for (name, (value, place)) in merged {
        let value = match value {
            Value::Bool(value) => toml::Value::Boolean(value),
            Value::Int(value) => toml::Value::Integer(value),
            Value::Float(value) => toml::Value::Float(value),
            Value::Text(value) => toml::Value::String(value),
        };
        values.insert(name.to_owned(), value);
        places.insert(name, place);
    }
    (values, places)
}

/// The rules between keys. What concerns one key alone is in the key's kind.
struct Check<'a> {
    config: &'a Config,
    places: &'a BTreeMap<&'static str, Place>,
}

impl Check<'_> {
    fn all(&self) -> Result<(), ConfigError> {
        self.sources()?;
        self.heads()?;
        self.batch()?;
        self.evaluation()?;
        self.schedule()
    }

    fn sources(&self) -> Result<(), ConfigError> {
        let data = self.config.data.as_str();
        if data.starts_with("builtin:") && !BUILTIN_DATA.contains(&data) {
            let rule = "there is no such built-in data";
            let hint = format!("use {}, or the path of a folder", BUILTIN_DATA.join(", "));
            return Err(self.refuse(&["data"], format!("{data:?}"), rule, hint));
        }
        if self.config.init_from == InitFrom::Path(String::new()) {
            let hint = "use scratch, resume, or a path";
            return Err(self.refuse(&["init_from"], "\"\"", "it must not be empty", hint));
        }
        Ok(())
    }

    fn heads(&self) -> Result<(), ConfigError> {
        let (n_embd, n_head) = (self.config.n_embd.get(), self.config.n_head.get());
        let works = |heads: &u32| n_embd % heads == 0 && n_embd / heads <= MAX_HEAD_SIZE;
        if works(&n_head) {
            return Ok(());
        }
        let rule = if n_embd % n_head != 0 {
            format!("it must divide n_embd = {n_embd}")
        } else {
            let size = n_embd / n_head;
            format!("with n_embd = {n_embd} a head is {size} wide, more than {MAX_HEAD_SIZE}")
        };
        let fewer = (1..n_head.min(n_embd + 1)).rev().find(works);
        let more = (n_head.saturating_add(1)..=n_embd).find(works);
        let offers: Vec<_> = [fewer, more].iter().flatten().map(u32::to_string).collect();
        let hint = format!("set n_head to {}", offers.join(" or "));
        Err(self.refuse(&["n_head", "n_embd"], n_head, rule, hint))
    }

    fn batch(&self) -> Result<(), ConfigError> {
        let config = self.config;
        let global = config.global_batch();
        let micro = u64::from(config.micro_batch().get());
        if global.is_multiple_of(micro) {
            return Ok(());
        }
        let fits = |micro: &u64| global.is_multiple_of(*micro);
        // 1 divides everything, so there always is one.
        let fewer = (1..=micro.min(global)).rev().find(fits).unwrap_or(1);
        let rule = format!(
            "it must divide the global batch of {global} (batch_size {} x gradient_accumulation_steps {})",
            config.batch_size, config.gradient_accumulation_steps
        );
        let keys = ["micro_batch", "batch_size", "gradient_accumulation_steps"];
        Err(self.refuse(&keys, micro, rule, format!("set micro_batch to {fewer}")))
    }

    fn evaluation(&self) -> Result<(), ConfigError> {
        let (window, block_size) = (self.config.eval_block_size, self.config.block_size.get());
        if window <= block_size {
            return Ok(());
        }
        let rule = format!("the model sees block_size = {block_size} tokens at most");
        let hint = format!("set eval_block_size to {block_size}, or leave it out");
        Err(self.refuse(&["eval_block_size", "block_size"], window, rule, hint))
    }

    fn schedule(&self) -> Result<(), ConfigError> {
        let config = self.config;
        // Without decay none of these is read. nanoGPT's finetuning config relies on that: its
        // learning rate is below the default min_lr.
        if !config.decay_lr {
            return Ok(());
        }
        if config.lr_decay_iters == 0 {
            let hint = "set it to max_iters, or decay_lr to false";
            return Err(self.refuse(&["lr_decay_iters"], 0, "it must be at least 1", hint));
        }
        if config.warmup_iters > config.lr_decay_iters {
            let rule = format!("it must not exceed lr_decay_iters = {}", config.lr_decay_iters);
            let hint = format!("set warmup_iters to about {}", config.lr_decay_iters / 50);
            let keys = ["warmup_iters", "lr_decay_iters"];
            return Err(self.refuse(&keys, config.warmup_iters, rule, hint));
        }
        if config.min_lr > config.learning_rate {
            let rule = format!("it must not exceed learning_rate = {:?}", config.learning_rate);
            let hint =
                format!("set min_lr to {:.1e}, or decay_lr to false", config.learning_rate / 10.0);
            let value = format!("{:?}", config.min_lr);
            return Err(self.refuse(&["min_lr", "learning_rate"], value, rule, hint));
        }
        Ok(())
    }

    /// An error about the first of `keys`. It points to the one that was set last: that is where
    /// the user is at work.
    fn refuse(
        &self,
        keys: &[&'static str],
        value: impl ToString,
        rule: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let place = keys.iter().filter_map(|key| self.places.get(key)).max();
        ConfigError::NotAllowed {
            key: keys.first().copied().unwrap_or_default(),
            place: Box::new(place.cloned().unwrap_or(Place::Default)),
            value: value.to_string(),
            rule: rule.into(),
            hint: hint.into(),
        }
    }
}
