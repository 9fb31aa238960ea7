//! The form of a new run: a preset and the settings that differ from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{
    Arch, Config, ConfigError, ConfigSource, InvalidValue, KEYS, Key, Layer, preset_names, resolve,
    run_name,
};
use crate::protocol::{DataInfo, RunSettings};
use crate::text::capitalize;

pub type Typed = BTreeMap<String, String>;

/// A configuration that is being edited.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "SavedForm")]
pub struct SettingsForm {
    // Read through `SavedForm`, because nothing that is read is 'static.
    #[serde(skip_deserializing)]
    preset: &'static str,
    /// Settings with another text than the preset's.
    typed: Typed,
    /// The data at the path `text("data")`, or why it cannot be read; `None` until it was
    /// inspected.
    #[serde(skip)]
    pub data: Option<Result<DataInfo, String>>,
    // `refresh` derives it from the fields above, because frames must not recompute it.
    #[serde(skip)]
    base: Typed,
    #[serde(skip)]
    resolved: Result<Config, ConfigError>,
    #[serde(skip)]
    errors: BTreeMap<String, String>,
}

/// The part of a form that is saved between sessions, maybe by another version.
#[derive(Deserialize)]
struct SavedForm {
    preset: String,
    typed: Typed,
}

/// The preset of a new form: it needs no data, download or GPU.
const DEFAULT_PRESET: &str = "demo";

/// The preset of a run that begins with a trained model, and the longest of its sequences.
const FINE_TUNING_PRESET: &str = "gpt2";
const FINE_TUNING_CONTEXT: u32 = 1024;

/// The rank of an adapter, if one is trained.
pub const ADAPTER_RANK: &str = "16";

/// Returns the settings that the weights of a model determine.
fn shape() -> impl Iterator<Item = &'static str> {
    const NOT_SHAPE: [&str; 2] = ["block_size", "dropout"];
    let of_model = KEYS.iter().filter(|key| key.group == Key::MODEL).map(|key| key.name);
    of_model.filter(|name| !NOT_SHAPE.contains(name)).chain(["vocab_size"])
}

/// Settings of the data and the run rather than the model: selecting a preset keeps them.
const KEPT_ACROSS_PRESETS: &[&str] = &["data", "vocab_size", "out_dir", "init_from", "seed"];

impl Default for SettingsForm {
    fn default() -> Self {
        Self::of_preset(DEFAULT_PRESET)
    }
}

impl From<SavedForm> for SettingsForm {
    /// Drops presets and keys that this version does not have.
    fn from(SavedForm { preset, mut typed }: SavedForm) -> Self {
        let preset = preset_names().find(|name| *name == preset).unwrap_or(DEFAULT_PRESET);
        typed.retain(|name, _| lookup(name).is_some());
        Self::new(preset, typed)
    }
}

impl SettingsForm {
    fn new(preset: &'static str, typed: Typed) -> Self {
        let mut form = Self {
            preset,
            typed,
            data: None,
            base: base(preset),
            resolved: Ok(Config::default()),
            errors: BTreeMap::new(),
        };
        form.refresh();
        form
    }

    pub fn of_preset(preset: &'static str) -> Self {
        Self::new(preset, Typed::new())
    }

    /// Returns the settings of a run that begins with the weights of a model, whose shape is in `config`. The
    /// data are those of the run that has trained it; empty for another model.
    pub fn of_model(model: String, config: &Config) -> Self {
        let mut form = Self::of_preset(FINE_TUNING_PRESET);
        let known = values(config);
        shape().for_each(|key| form.set(key, known[key].as_str()));
        form.set("block_size", config.block_size.get().min(FINE_TUNING_CONTEXT).to_string());
        form.set("data", config.data.as_str());
        form.set("init_from", model);
        // The weights of others are trained with an adapter, those of one's own run as before.
        if config.data.is_empty() && config.arch != Arch::Gpt2 {
            form.set("lora_rank", ADAPTER_RANK);
        }
        form
    }

    pub fn preset(&self) -> &'static str {
        self.preset
    }

    /// Selects a preset. Typed settings stay where the two presets agree. An unknown name has no
    /// effect.
    pub fn set_preset(&mut self, name: &str) {
        let Some(preset) = preset_names().find(|known| *known == name) else { return };
        // A trained model keeps its shape.
        let keys = shape().filter(|_| self.model().is_some());
        let kept: Vec<_> = keys.map(|key| (key, self.text(key))).collect();
        let before = std::mem::replace(&mut self.base, base(preset));
        let base = &self.base;
        self.typed.retain(|name, text| {
            let is_kept = KEPT_ACROSS_PRESETS.contains(&name.as_str());
            let stays = is_kept || before.get(name) == base.get(name);
            stays && base.get(name) != Some(text)
        });
        self.preset = preset;
        self.refresh();
        kept.into_iter().for_each(|(key, text)| self.set(key, text));
    }

    pub fn run_name(&self) -> String {
        self.config().map_or(self.preset.into(), |config| run_name(self.preset, config))
    }

    /// Returns the model whose weights the run begins with, if there is one.
    pub fn model(&self) -> Option<String> {
        // Also while another setting is half typed.
        Some(self.text("init_from")).filter(|text| !["", "scratch", "resume"].contains(&&**text))
    }

    /// Returns the size of the vocabulary, once the settings or the data give it.
    pub fn vocab_size(&self) -> Option<u32> {
        match (self.config().ok()?.vocab_size, &self.data) {
            (0, Some(Ok(data))) => Some(data.vocab_size),
            (0, _) => None,
            (size, _) => Some(size),
        }
    }

    /// Returns the text of a key: as typed, else the preset's. Empty for an unknown key.
    pub fn text(&self, key: &str) -> String {
        self.typed.get(key).map_or_else(|| self.preset_text(key), String::as_str).to_string()
    }

    /// Returns the preset's text of a key. Empty for an unknown key.
    pub fn preset_text(&self, key: &str) -> &str {
        self.base.get(key).map_or("", String::as_str)
    }

    /// Sets the text of a key. An unknown key has no effect.
    pub fn set(&mut self, key: &str, text: impl Into<String>) {
        let text = text.into();
        // Compared as text, not by value: a user who types 0.105 passes 0.10, which must not jump
        // back to the preset's 0.1.
        match self.base.get(key) {
            None => return,
            Some(preset) if text == *preset => drop(self.typed.remove(key)),
            Some(_) => drop(self.typed.insert(key.into(), text)),
        }
        self.refresh();
    }

    pub fn reset(&mut self, key: &str) {
        self.typed.remove(key);
        self.refresh();
    }

    /// Returns true if the value of a key differs from the preset's.
    pub fn is_changed(&self, key: &str) -> bool {
        let (Some(typed), Some(key)) = (self.typed.get(key), lookup(key)) else { return false };
        !is_same(key, typed, self.preset_text(key.name))
    }

    pub fn config(&self) -> Result<&Config, &ConfigError> {
        self.resolved.as_ref()
    }

    pub fn error(&self, key: &str) -> Option<&str> {
        self.errors.get(key).map(String::as_str)
    }

    /// Returns the reason why no run can start with these settings.
    pub fn problem(&self) -> Option<String> {
        if let Some(key) = KEYS.iter().find(|key| self.errors.contains_key(key.name)) {
            return Some(format!("{}: {}", key.name, self.errors[key.name]));
        }
        match (&self.resolved, &self.data) {
            (Err(error), _) => Some(field_message(error)),
            (Ok(config), _) if config.data.is_empty() => {
                Some("Choose data to train on: your own text or the built-in stories.".into())
            }
            (_, Some(Err(error))) => Some(error.clone()),
            _ => None,
        }
    }

    /// Returns the settings with other values than the preset's, as typed.
    pub fn changes(&self) -> impl Iterator<Item = (&str, &str)> {
        let typed = self.typed.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        typed.filter(|(name, _)| self.is_changed(name))
    }

    pub fn settings(&self) -> RunSettings {
        let flags = self.changes().map(|(name, text)| (name.to_string(), text.to_string()));
        let (file, preset) = (None, Some(self.preset.to_string()));
        RunSettings::Typed(ConfigSource { file, preset, flags: flags.collect(), length: None })
    }

    fn refresh(&mut self) {
        self.errors.clear();
        for (name, text) in &self.typed {
            if let Err(error) = Layer::flags([(name.clone(), text.clone())]) {
                self.errors.insert(name.clone(), field_message(&error));
            }
        }
        let layers = [Layer::preset(self.preset), Layer::flags(self.typed.clone())];
        let layers = layers.into_iter().collect::<Result<_, _>>();
        self.resolved = layers.and_then(resolve).map(|resolved| resolved.config);
        if let Err(error @ ConfigError::Invalid { key, .. }) = &self.resolved {
            self.errors.entry((*key).into()).or_insert_with(|| field_message(error));
        }
    }
}

fn lookup(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Returns true if a key parses `a` and `b` to the same value, as `1e-3` and `0.001`.
pub fn is_same(key: &Key, a: &str, b: &str) -> bool {
    a == b || matches!((key.kind.parse(a), key.kind.parse(b)), (Ok(a), Ok(b)) if a == b)
}

/// Returns all settings of a preset as text, defaults included.
fn base(preset: &str) -> Typed {
    let config = Layer::preset(preset).and_then(|layer| resolve(vec![layer]));
    config.map(|resolved| values(&resolved.config)).unwrap_or_default()
}

/// Returns the values of a configuration as they would be typed.
pub fn values(config: &Config) -> Typed {
    let table = toml::Table::try_from(config).unwrap_or_default();
    let text = |key: &Key| match table.get(key.name) {
        Some(toml::Value::String(text)) => text.clone(),
        // Debug writes 6e-5, Display 0.00006.
        Some(toml::Value::Float(number)) => format!("{number:?}"),
        Some(other) => other.to_string(),
        None => key.default.to_string(),
    };
    KEYS.iter().map(|key| (key.name.to_string(), text(key))).collect()
}

/// Returns the message shown under a field, which names neither the setting nor its source.
fn field_message(error: &ConfigError) -> String {
    let text = match error {
        ConfigError::Invalid { problem: InvalidValue::Type { expected, .. }, .. } => {
            format!("expected {expected}")
        }
        ConfigError::Invalid { problem: InvalidValue::Range { rule, .. }, .. } => rule.clone(),
        other => other.to_string(),
    };
    capitalize(&format!("{text}; {}", error.hint()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(form: &SettingsForm) -> Vec<String> {
        let changes = form.changes().map(|(name, text)| format!("--{name}={text}"));
        std::iter::once(format!("--preset={}", form.preset)).chain(changes).collect()
    }

    #[test]
    fn typed_settings_override_the_preset() {
        let mut form = SettingsForm::default();
        assert_eq!((form.preset(), form.text("n_layer").as_str()), ("demo", "2"));
        assert_eq!(flags(&form), ["--preset=demo"]);
        form.set("n_layer", "3");
        assert!(form.is_changed("n_layer"));
        assert_eq!(flags(&form), ["--preset=demo", "--n_layer=3"]);
        assert_eq!(form.config().unwrap().n_layer.get(), 3);
        form.set("n_layer", "2");
        assert!(!form.is_changed("n_layer") && form.typed.is_empty());
        form.set("n_layer", "4");
        form.reset("n_layer");
        assert_eq!(form.text("n_layer"), "2");
        form.set("no_such_key", "1");
        assert!(form.typed.is_empty());
    }

    #[test]
    fn half_typed_numbers_stay_as_typed() {
        let mut form = SettingsForm::default();
        for text in ["0.0", "0.00", "0.002"] {
            form.set("dropout", text);
            assert_eq!(form.text("dropout"), text);
            assert_eq!(form.is_changed("dropout"), text == "0.002", "{text}");
        }
        form.set("learning_rate", "0.006");
        assert!(!form.is_changed("learning_rate"));
        assert_eq!(flags(&form), ["--preset=demo", "--dropout=0.002"]);
    }

    #[test]
    fn errors_are_reported_at_their_keys() {
        let mut form = SettingsForm::default();
        form.set("n_layer", "0");
        form.set("max_iters", "soon");
        assert!(form.error("n_layer").unwrap().to_lowercase().contains("must be at least 1"));
        assert!(form.error("max_iters").unwrap().starts_with("Expected a whole number"));
        assert!(form.config().is_err());
        assert!(form.problem().unwrap().starts_with("n_layer: "));
        form.reset("n_layer");
        form.reset("max_iters");
        assert_eq!(form.problem(), None);
        // A rule that involves two keys.
        form.set("n_embd", "98");
        let error = form.error("n_head").unwrap();
        assert!(error.contains("divide n_embd = 98") && !error.contains("flag"), "{error}");
    }

    #[test]
    fn another_preset_keeps_settings_that_it_does_not_change() {
        let mut form = SettingsForm::default();
        form.set("data", "mine");
        form.set("n_layer", "3");
        form.set("keep_checkpoints", "5");
        form.set_preset("gpt2");
        assert_eq!((form.text("data").as_str(), form.text("n_layer").as_str()), ("mine", "12"));
        assert_eq!(form.text("keep_checkpoints"), "5");
        form.set_preset("unknown");
        assert_eq!(form.preset(), "gpt2");
    }

    #[test]
    fn a_run_needs_readable_data() {
        let mut form = SettingsForm::of_preset("gpt2");
        assert!(form.problem().unwrap().starts_with("Choose"));
        form.set("data", "builtin:stories");
        assert_eq!(form.problem(), None);
        form.data = Some(Err("the folder does not exist".into()));
        assert_eq!(form.problem().as_deref(), Some("the folder does not exist"));
    }

    #[test]
    fn the_vocabulary_comes_from_the_setting_then_the_data() {
        let mut form = SettingsForm::default();
        assert_eq!(form.vocab_size(), None);
        form.data = Some(Ok(DataInfo { vocab_size: 65, ..DataInfo::default() }));
        assert_eq!(form.vocab_size(), Some(65));
        form.set("vocab_size", "100");
        assert_eq!(form.vocab_size(), Some(100));
    }

    #[test]
    fn a_trained_model_keeps_its_shape() {
        assert!(shape().count() > 1, "the group of the model has no settings");
        let llama = Config::of_preset("qwen3-0.6b", &[("max_positions", "40960")]);
        let form = SettingsForm::of_model("models/a".into(), &llama);
        let config = form.config().unwrap();
        assert_eq!(form.model().as_deref(), Some("models/a"));
        assert_eq!(shape_of(config), shape_of(&llama));
        assert_eq!(
            (config.lora_rank.to_string().as_str(), config.data.as_str()),
            (ADAPTER_RANK, "")
        );
        let own = Config::of_preset("demo", &[("n_layer", "3")]);
        let form = SettingsForm::of_model("out/a".into(), &own);
        let config = form.config().unwrap();
        assert_eq!((config.lora_rank, &config.data), (0, &own.data));
        assert_eq!(config.block_size, own.block_size);
        assert_eq!(shape_of(config), shape_of(&own));
    }

    fn shape_of(config: &Config) -> Vec<String> {
        let values = values(config);
        shape().map(|key| values[key].clone()).collect()
    }

    #[test]
    fn a_saved_form_is_restored_also_by_another_version() {
        let mut form = SettingsForm::default();
        form.set("n_layer", "3");
        form.set("seed", "x");
        let text = serde_json::to_string(&form).unwrap();
        let again: SettingsForm = serde_json::from_str(&text).unwrap();
        assert_eq!(flags(&again), flags(&form));
        assert!(again.error("seed").is_some());
        let old = r#"{"preset":"gone","typed":{"gone":"1","n_layer":"3"}}"#;
        let form: SettingsForm = serde_json::from_str(old).unwrap();
        assert_eq!(flags(&form), ["--preset=demo", "--n_layer=3"]);
    }
}
