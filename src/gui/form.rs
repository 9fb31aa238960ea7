//! What the user has typed: a preset, and the settings that differ from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::{Config, ConfigError, KEYS, Key, Layer, preset_names, resolve};

/// What the chosen data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataInfo {
    /// Different tokens.
    pub vocab_size: u32,
    /// Tokens to train on.
    pub train_tokens: u64,
    /// Tokens of the validation split.
    pub val_tokens: u64,
}

/// A configuration as it is being typed.
#[derive(Clone, Debug)]
pub(super) struct Form {
    preset: &'static str,
    typed: BTreeMap<&'static str, String>,
    /// What lies at `text("data")`; `None` until somebody has looked.
    pub data: Option<Result<DataInfo, String>>,
    // What follows from preset and texts, kept so that no frame computes it anew.
    base: BTreeMap<&'static str, String>,
    resolved: Result<Config, ConfigError>,
    errors: BTreeMap<&'static str, String>,
}

/// What is kept of a form between two sessions.
#[derive(Serialize, Deserialize)]
struct Saved {
    preset: String,
    typed: BTreeMap<String, String>,
}

/// The first one: it needs no data, no download and no card.
const FIRST_PRESET: &str = "demo";

/// Settings that say what is trained on and where, not how: another preset leaves them alone.
const NOT_OF_THE_PRESET: &[&str] = &["data", "vocab_size", "out_dir", "init_from", "seed"];

impl Default for Form {
    fn default() -> Self {
        Self::new(FIRST_PRESET, BTreeMap::new())
    }
}

impl<'de> Deserialize<'de> for Form {
    /// Presets and keys of other versions are left out.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let saved = Saved::deserialize(from)?;
        let preset = preset_names().find(|name| *name == saved.preset).unwrap_or(FIRST_PRESET);
        let known = |(name, text): (String, String)| Some((lookup(&name)?.name, text));
        Ok(Self::new(preset, saved.typed.into_iter().filter_map(known).collect()))
    }
}

impl Serialize for Form {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let typed = self.typed.iter().map(|(name, text)| (name.to_string(), text.clone()));
        Saved { preset: self.preset.to_string(), typed: typed.collect() }.serialize(to)
    }
}

impl Form {
    fn new(preset: &'static str, typed: BTreeMap<&'static str, String>) -> Self {
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

    /// Takes over all of a run but its folder, on the preset that leaves the least to be typed.
    pub fn take_over(&mut self, config: &Config) {
        let mut wanted = values(config);
        wanted.remove("out_dir");
        let nearest = preset_names().min_by_key(|preset| {
            let base = base(preset);
            wanted.iter().filter(|(name, text)| base.get(*name) != Some(text)).count()
        });
        let (preset, data) = (nearest.unwrap_or(FIRST_PRESET), self.data.take());
        let base = base(preset);
        wanted.retain(|name, text| base.get(name) != Some(text));
        *self = Self { data, ..Self::new(preset, wanted) };
    }

    /// The preset that it stands on.
    pub fn preset(&self) -> &'static str {
        self.preset
    }

    /// Takes another preset. What was typed stays where the two presets agree; names that are no
    /// preset change nothing.
    pub fn set_preset(&mut self, name: &str) {
        let Some(preset) = preset_names().find(|known| *known == name) else { return };
        let before = std::mem::replace(&mut self.base, base(preset));
        let (base, typed) = (&self.base, &mut self.typed);
        typed.retain(|name, text| {
            let stays = NOT_OF_THE_PRESET.contains(name) || before.get(name) == base.get(name);
            stays && base.get(name) != Some(text)
        });
        self.preset = preset;
        self.refresh();
    }

    /// A name for the run's folder.
    pub fn run_name(&self) -> &'static str {
        self.preset
    }

    /// The text of a key: as typed, else of the preset; empty for names that are no key.
    pub fn text(&self, key: &str) -> String {
        self.typed.get(key).map_or_else(|| self.preset_text(key), String::as_str).to_string()
    }

    /// What the preset says.
    pub fn preset_text(&self, key: &str) -> &str {
        self.base.get(key).map_or("", String::as_str)
    }

    /// Takes what was typed. Names that are no key change nothing.
    pub fn set(&mut self, key: &str, text: impl Into<String>) {
        let (Some(key), text) = (lookup(key), text.into()) else { return };
        // Compared as text, not by value: on the way to 0.105 stands 0.10, which must not turn
        // into the preset's 0.1 under the user's hands.
        match text == self.preset_text(key.name) {
            true => self.typed.remove(key.name),
            false => self.typed.insert(key.name, text),
        };
        self.refresh();
    }

    /// Goes back to what the preset says.
    pub fn reset(&mut self, key: &str) {
        self.typed.remove(key);
        self.refresh();
    }

    /// Whether a key means something else than in the preset.
    pub fn is_changed(&self, key: &str) -> bool {
        let (Some(typed), Some(key)) = (self.typed.get(key), lookup(key)) else { return false };
        !same(key, typed, self.preset_text(key.name))
    }

    /// The whole, as it is meant.
    pub fn config(&self) -> Result<&Config, &ConfigError> {
        self.resolved.as_ref()
    }

    /// What is wrong with a key, in words.
    pub fn error(&self, key: &str) -> Option<&str> {
        self.errors.get(key).map(String::as_str)
    }

    /// Why no run can begin with this, in words.
    pub fn problem(&self) -> Option<String> {
        if let Some(key) = KEYS.iter().find(|key| self.errors.contains_key(key.name)) {
            return Some(format!("{}: {}", key.name, self.errors[key.name]));
        }
        match (&self.resolved, &self.data) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(config), _) if config.data.is_empty() => Some(
                "Choose something to train on: your own texts, or the built-in stories.".into(),
            ),
            (_, Some(Err(error))) => Some(error.clone()),
            _ => None,
        }
    }

    /// The arguments that begin this run: `wgpt train` and these.
    pub fn flags(&self) -> Vec<String> {
        let changed = self.typed.iter().filter(|(name, _)| self.is_changed(name));
        let flags = changed.map(|(name, text)| format!("--{name}={text}"));
        std::iter::once(format!("--preset={}", self.preset)).chain(flags).collect()
    }

    fn refresh(&mut self) {
        self.errors.clear();
        for (name, text) in &self.typed {
            if let Err(error) = Layer::flags([(name.to_string(), text.clone())]) {
                self.errors.insert(name, words(&error));
            }
        }
        self.resolved = self.resolve();
        if let Err(error) = &self.resolved
            && let Some(key) = key_of(error)
        {
            self.errors.entry(key).or_insert_with(|| words(error));
        }
    }

    fn resolve(&self) -> Result<Config, ConfigError> {
        let typed = self.typed.iter().map(|(name, text)| (name.to_string(), text.clone()));
        let layers = vec![Layer::preset(self.preset)?, Layer::flags(typed)?];
        Ok(resolve(layers)?.config)
    }
}

fn lookup(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether two texts mean the same to a key: `1e-3` and `0.001` do.
fn same(key: &Key, a: &str, b: &str) -> bool {
    a == b || matches!((key.kind.parse(a), key.kind.parse(b)), (Ok(a), Ok(b)) if a == b)
}

/// The texts of a preset, defaults included.
fn base(preset: &str) -> BTreeMap<&'static str, String> {
    let config = Layer::preset(preset).and_then(|layer| resolve(vec![layer]));
    config.map(|resolved| values(&resolved.config)).unwrap_or_default()
}

/// The values of a configuration as they would be typed.
fn values(config: &Config) -> BTreeMap<&'static str, String> {
    let table = toml::Table::try_from(config).unwrap_or_default();
    let text = |key: &Key| match table.get(key.name) {
        Some(toml::Value::String(text)) => text.clone(),
        // Debug writes 6e-5 short.
        Some(toml::Value::Float(number)) => format!("{number:?}"),
        Some(other) => other.to_string(),
        None => key.default.to_string(),
    };
    KEYS.iter().map(|key| (key.name, text(key))).collect()
}

fn key_of(error: &ConfigError) -> Option<&'static str> {
    match error {
        ConfigError::WrongType { key, .. } | ConfigError::NotAllowed { key, .. } => Some(key),
        ConfigError::NoData => Some("data"),
        _ => None,
    }
}

/// An error as it stands under its field: there is no need to say where.
fn words(error: &ConfigError) -> String {
    let text = match error {
        ConfigError::WrongType { expected, hint, .. } => format!("it takes {expected}; {hint}"),
        ConfigError::NotAllowed { rule, hint, .. } => format!("{rule}; {hint}"),
        other => other.to_string(),
    };
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_says_what_the_preset_says_until_something_is_typed() {
        let mut form = Form::default();
        assert_eq!((form.preset(), form.text("n_layer").as_str()), ("demo", "2"));
        assert_eq!(form.flags(), ["--preset=demo"]);
        form.set("n_layer", "3");
        assert!(form.is_changed("n_layer"));
        assert_eq!(form.flags(), ["--preset=demo", "--n_layer=3"]);
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
    fn what_is_half_typed_stays_as_it_is() {
        let mut form = Form::default();
        for text in ["0.0", "0.00", "0.002"] {
            form.set("dropout", text);
            assert_eq!(form.text("dropout"), text);
            assert_eq!(form.is_changed("dropout"), text == "0.002", "{text}");
        }
        form.set("learning_rate", "0.006");
        assert!(!form.is_changed("learning_rate"));
        assert_eq!(form.flags(), ["--preset=demo", "--dropout=0.002"]);
    }

    #[test]
    fn errors_stand_at_their_keys() {
        let mut form = Form::default();
        form.set("n_layer", "0");
        form.set("max_iters", "soon");
        assert!(form.error("n_layer").unwrap().starts_with("It must be at least 1"));
        assert!(form.error("max_iters").unwrap().starts_with("It takes a whole number"));
        assert!(form.config().is_err());
        assert!(form.problem().unwrap().starts_with("n_layer: "));
        form.reset("n_layer");
        form.reset("max_iters");
        assert_eq!(form.problem(), None);
        // A rule between two keys.
        form.set("n_embd", "98");
        let error = form.error("n_head").unwrap();
        assert!(error.contains("divide n_embd = 98") && !error.contains("flag"), "{error}");
    }

    #[test]
    fn another_preset_keeps_what_it_does_not_decide() {
        let mut form = Form::default();
        form.set("data", "mine");
        form.set("n_layer", "3");
        form.set("keep_checkpoints", "5");
        form.set_preset("gpt2");
        assert_eq!((form.text("data").as_str(), form.text("n_layer").as_str()), ("mine", "12"));
        assert_eq!(form.text("keep_checkpoints"), "5");
        form.set_preset("no such preset");
        assert_eq!(form.preset(), "gpt2");
    }

    #[test]
    fn a_run_needs_data_that_can_be_read() {
        let mut form = Form::default();
        form.set_preset("gpt2");
        assert!(form.problem().unwrap().starts_with("Choose"));
        form.set("data", "builtin:stories");
        assert_eq!(form.problem(), None);
        form.data = Some(Err("not there".into()));
        assert_eq!(form.problem().as_deref(), Some("not there"));
    }

    #[test]
    fn a_run_fills_a_form_and_the_form_starts_the_same_run() {
        let mut first = Form::default();
        first.set_preset("card-12gb");
        for (key, text) in [("data", "mine"), ("max_time", "90min"), ("learning_rate", "1e-3")] {
            first.set(key, text);
        }
        let config = first.config().unwrap();
        let mut again = Form::default();
        again.take_over(&Config { out_dir: "out/1".into(), ..config.clone() });
        assert_eq!(again.preset(), "card-12gb");
        assert_eq!(again.config().unwrap(), config);
        let flags = again.flags();
        assert_eq!(flags.len(), 4, "{flags:?}");
        let pairs = flags.iter().skip(1).map(|flag| {
            let (key, text) = flag.trim_start_matches("--").split_once('=').unwrap();
            (key.to_string(), text.to_string())
        });
        let layers = vec![Layer::preset("card-12gb").unwrap(), Layer::flags(pairs).unwrap()];
        assert_eq!(resolve(layers).unwrap().config, *config);
    }

    #[test]
    fn it_outlives_the_session_and_a_change_of_version() {
        let mut form = Form::default();
        form.set("n_layer", "3");
        form.set("seed", "x");
        let text = serde_json::to_string(&form).unwrap();
        let again: Form = serde_json::from_str(&text).unwrap();
        assert_eq!(again.flags(), form.flags());
        assert!(again.error("seed").is_some());
        let old = r#"{"preset":"gone","typed":{"gone":"1","n_layer":"3"}}"#;
        let form: Form = serde_json::from_str(old).unwrap();
        assert_eq!(form.flags(), ["--preset=demo", "--n_layer=3"]);
    }
}
