//! What was typed in one place: a preset, a file, the environment or the flags.

use super::error::{ConfigError, Place};
use super::keys::{
    self, DATASET, IGNORED, Ignored, KEYS, Known, RESERVED_VARIABLES, VARIABLE_PREFIX,
};
use super::presets::{preset_names, preset_texts};
use super::python::{self, quote};
use super::value::{Kind, Refusal, Value};
use std::collections::BTreeMap;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The source of a [`Layer`], in order of precedence: a later one wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A built-in config.
    Preset(String),
    /// The model that training starts from.
    Model,
    /// A config file.
    File {
        /// The file's name as the caller gave it.
        name: String,
        /// Whether it is a nanoGPT `.py` config.
        nanogpt: bool,
    },
    /// `WGPT_*` variables.
    Environment,
    /// The command line.
    Flags,
}

/// The keys that one source sets: each of a known name, the right type and the allowed range.
///
/// What one key means beside another is checked by [`resolve`](super::resolve()).
#[derive(Debug, Clone)]
pub struct Layer {
    pub(super) origin: Origin,
    pub(super) values: BTreeMap<&'static str, (Value, Place)>,
    pub(super) ignored: BTreeMap<&'static str, Place>,
    pub(super) warnings: Vec<String>,
}

impl Layer {
    /// A built-in config; [`preset_names`] lists them.
    pub fn preset(name: &str) -> Result<Self, ConfigError> {
        let texts = preset_texts(name).ok_or_else(|| ConfigError::UnknownPreset {
            name: name.into(),
            known: preset_names().collect::<Vec<_>>().join(", "),
        })?;
        let place = |line| Place::Preset { name: name.into(), line };
        let empty = Self::new(Origin::Preset(name.into()));
        let file = format!("preset {name}");
        texts.iter().try_fold(empty, |layer, text| layer.with_toml(&file, text, place))
    }

    /// A TOML config. `file` is only shown, in errors.
    pub fn toml(file: &str, text: &str) -> Result<Self, ConfigError> {
        let origin = Origin::File { name: file.into(), nanogpt: false };
        let place = |line| Place::File { name: file.into(), line };
        Self::new(origin).with_toml(file, text, place)
    }

    /// A nanoGPT `.py` config, which is read and never run. `file` is only shown, in errors.
    pub fn python(file: &str, text: &str) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Origin::File { name: file.into(), nanogpt: true });
        for assignment in python::assignments(file, text) {
            let python::Assignment { name, value, line } = assignment?;
            let place = Place::File { name: file.into(), line };
            let shown = value.to_string();
            layer.set(name, place, shown, |kind| kind.accept(value))?;
        }
        Ok(layer.with_dataset())
    }

    /// What the model at `path` is, as pairs of key and text.
    pub fn model<'a>(
        path: &str,
        settings: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Origin::Model);
        for (name, text) in settings {
            let place = Place::Model(path.into());
            layer.set(name, place, shown(&text), |kind| kind.parse(&text))?;
        }
        Ok(layer)
    }

    /// The environment. Variables of other programs and [`RESERVED_VARIABLES`] are skipped, as are
    /// empty ones; a `WGPT_*` variable that is no key is a warning, not an error, because it may be
    /// meant for another version.
    pub fn environment(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Origin::Environment);
        // The environment has no order; errors and warnings have one.
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        for (variable, text) in variables {
            let ours = variable.starts_with(VARIABLE_PREFIX);
            if !ours || text.is_empty() || RESERVED_VARIABLES.contains(&variable.as_str()) {
                continue;
            }
            match KEYS.iter().chain([DATASET]).find(|key| key.variable() == variable) {
                Some(key) => {
                    let place = Place::Variable(variable);
                    layer.set(key.name, place, shown(&text), |kind| kind.parse(&text))?;
                }
                None => layer.warnings.push(unknown_variable(&variable)),
            }
        }
        Ok(layer.with_dataset())
    }

    /// The flags, as pairs of name and text: `("batch-size", "8")` or `("batch_size", "8")`.
    pub fn flags(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Origin::Flags);
        for (flag, text) in pairs {
            let name = flag.trim_start_matches('-').replace('-', "_");
            let place = Place::Flag(flag.trim_start_matches('-').into());
            layer.set(&name, place, shown(&text), |kind| kind.parse(&text))?;
        }
        Ok(layer.with_dataset())
    }

    /// Where the layer comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    fn new(origin: Origin) -> Self {
        Layer { origin, values: BTreeMap::new(), ignored: BTreeMap::new(), warnings: Vec::new() }
    }

    /// Sets one key, or notes that it is dropped. A key that is set twice keeps the later value, as
    /// in Python.
    fn set(
        &mut self,
        name: &str,
        place: Place,
        shown: String,
        read: impl FnOnce(&Kind) -> Result<Value, Refusal>,
    ) -> Result<(), ConfigError> {
        match keys::lookup(name) {
            Some(Known::Key(key)) => {
                let value = read(&key.kind).map_err(|refusal| {
                    ConfigError::refused(refusal, key.name, place.clone(), shown)
                })?;
                self.values.insert(key.name, (value, place));
            }
            Some(Known::Ignored(ignored)) => {
                self.ignored.entry(ignored.name).or_insert(place);
            }
            None => {
                let nearest = keys::nearest(name);
                let place = Box::new(place);
                return Err(ConfigError::UnknownKey { key: quote(name), place, nearest });
            }
        }
        Ok(())
    }

    fn with_toml(
        mut self,
        file: &str,
        text: &str,
        place: impl Fn(usize) -> Place,
    ) -> Result<Self, ConfigError> {
        let line_at = |byte: usize| 1 + text.bytes().take(byte).filter(|&b| b == b'\n').count();
        let syntax = |line: usize, problem: String, hint: &'static str| ConfigError::Syntax {
            file: file.into(),
            line,
            quote: quote(text.lines().nth(line - 1).unwrap_or_default()),
            problem,
            hint,
        };
        let table = DeTable::parse(text).map_err(|error| {
            let line = line_at(error.span().map_or(0, |span| span.start));
            let problem = error.message().trim_end().replace('\n', ", ");
            syntax(line, problem, "write one `key = value` per line; text stands in \"quotes\"")
        })?;
        // In the order of the file, so that the first error is the first one in the file.
        let mut entries: Vec<_> = table.into_inner().into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let line = line_at(key.span().start);
            if value.get_ref().is_table() {
                let problem = "a config is flat: it has no sections and no dotted keys".into();
                return Err(syntax(line, problem, "remove the section, keep its keys"));
            }
            let shown = quote(text.get(value.span()).unwrap_or_default());
            self.set(key.get_ref(), place(line), shown, |kind| {
                kind.accept(literal(value.get_ref(), kind)?)
            })?;
        }
        Ok(self.with_dataset())
    }

    /// Turns nanoGPT's `dataset` into `data`, unless this layer says where the data is.
    fn with_dataset(mut self) -> Self {
        if let Some((Value::Text(dataset), place)) = self.values.remove(DATASET.name) {
            let data = match Path::new(&dataset).is_absolute() {
                true => Value::Text(dataset),
                false => Value::Text(format!("data/{dataset}")),
            };
            self.values.entry("data").or_insert((data, place));
        }
        self
    }
}

/// The TOML value as a literal, or why `kind` does not take it.
fn literal(value: &DeValue<'_>, kind: &Kind) -> Result<Value, Refusal> {
    match value {
        DeValue::Boolean(value) => Ok(Value::Bool(*value)),
        DeValue::String(text) => Ok(Value::Text(text.to_string())),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
            .map(Value::Int)
            .map_err(|_| Refusal::Range {
                rule: "it does not fit into 64 bits".into(),
                hint: format!("the largest integer is {}", i64::MAX),
            }),
        DeValue::Float(digits) => {
            let number = digits.as_str().parse();
            number.map(Value::Float).map_err(|_| kind.mistyped())
        }
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => Err(kind.mistyped()),
    }
}

/// Typed text as an error shows it.
fn shown(text: &str) -> String {
    if text.is_empty() { "\"\"".into() } else { quote(text) }
}

fn unknown_variable(variable: &str) -> String {
    let name = variable.trim_start_matches(VARIABLE_PREFIX);
    match keys::nearest(name) {
        Some(key) => format!(
            "environment variable {variable} is not known and has no effect; did you mean {VARIABLE_PREFIX}{}?",
            key.to_ascii_uppercase()
        ),
        None => format!("environment variable {variable} is not known and has no effect"),
    }
}

/// The warning for a key that is accepted and dropped.
pub(super) fn ignored_warning(name: &str, place: &Place) -> String {
    let reason =
        IGNORED.iter().find(|ignored| ignored.name == name).map(|Ignored { reason, .. }| reason);
    format!("{place}: {name} has no effect: {}", reason.copied().unwrap_or("it is nanoGPT's own"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(name, text)| (name.into(), text.into())).collect()
    }

    fn data(layer: &Layer) -> Option<&Value> {
        layer.values.get("data").map(|(value, _)| value)
    }

    #[test]
    fn flags_take_both_spellings() {
        let layer = Layer::flags(pairs(&[("batch-size", "8"), ("--n_layer", "5 * 2")])).unwrap();
        assert_eq!(layer.values["batch_size"].0, Value::Int(8));
        assert_eq!(layer.values["n_layer"].0, Value::Int(10));
    }

    #[test]
    fn the_environment_sets_keys_and_warns_of_strangers() {
        let layer = Layer::environment(pairs(&[
            ("PATH", "/bin"),
            ("WGPT_LOG", "debug"),
            ("WGPT_BATCH_SIZE", "8"),
            ("WGPT_N_LAYER", ""),
            ("WGPT_BATCHSIZE", "8"),
        ]))
        .unwrap();
        assert_eq!(layer.values.len(), 1);
        assert_eq!(layer.warnings.len(), 1, "{:?}", layer.warnings);
        assert!(layer.warnings[0].contains("WGPT_BATCHSIZE"), "{:?}", layer.warnings);
        assert!(layer.warnings[0].contains("WGPT_BATCH_SIZE?"), "{:?}", layer.warnings);
    }

    #[test]
    fn dataset_means_data_unless_data_is_set_beside_it() {
        let shakespeare = Value::Text("data/shakespeare".into());
        let layer = Layer::python("a.py", "dataset = 'shakespeare'").unwrap();
        assert_eq!(data(&layer), Some(&shakespeare));
        #[cfg(unix)]
        {
            let layer = Layer::flags(pairs(&[("dataset", "/mnt/owt")])).unwrap();
            assert_eq!(data(&layer), Some(&Value::Text("/mnt/owt".into())));
        }
        for text in ["data = 'x'\ndataset = 'y'", "dataset = 'y'\ndata = 'x'"] {
            let layer = Layer::python("a.py", text).unwrap();
            assert_eq!(data(&layer), Some(&Value::Text("x".into())));
        }
    }

    #[test]
    fn errors_say_where() {
        let broken = |result: Result<Layer, ConfigError>| result.unwrap_err().to_string();
        for (error, parts) in [
            (broken(Layer::toml("a.toml", "# x\nn_layers = 2")), ["a.toml:2:", "`n_layer`?"]),
            (broken(Layer::python("a.py", "\n\nn_layers = 2")), ["a.py:3:", "`n_layer`?"]),
            (broken(Layer::flags(pairs(&[("n-layers", "2")]))), ["--n-layers", "`n_layer`?"]),
            (
                broken(Layer::toml("a.toml", "\u{feff}bias = 1")),
                ["a.toml:1:", "true or false, not 1"],
            ),
            (broken(Layer::toml("a.toml", "bias = [1,\n2]")), ["a.toml:1:", "not [1, 2]"]),
            (broken(Layer::toml("a.toml", "n_layer = 0")), ["a.toml:1:", "at least 1"]),
            (broken(Layer::toml("a.toml", "seed = 1\nseed = 2")), ["a.toml:2:", "seed = 2"]),
            (broken(Layer::toml("a.toml", "\n[model]\nn_layer = 2")), ["a.toml:2:", "[model]"]),
            (broken(Layer::toml("a.toml", "\ndata = x y")), ["a.toml:2:", "data = x y"]),
            (broken(Layer::environment(pairs(&[("WGPT_SEED", "x")]))), ["WGPT_SEED", "not x;"]),
            (broken(Layer::preset("gpt3")), ["`gpt3`", "gpt2-xl"]),
        ] {
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
    }

    #[test]
    fn toml_numbers_keep_their_value() {
        // Windows editors write the mark and the line ends.
        let text = "\u{feff}n_layer = 0x10\r\nseed = 5_000\nbeta1 = 9e-1\nlearning_rate = 1";
        let layer = Layer::toml("a.toml", text).unwrap();
        assert_eq!(layer.values["n_layer"].0, Value::Int(16));
        assert_eq!(layer.values["seed"].0, Value::Int(5000));
        assert_eq!(layer.values["beta1"].0, Value::Float(0.9));
        assert_eq!(layer.values["learning_rate"].0, Value::Float(1.0));
        for text in [
            "learning_rate = nan",
            "weight_decay = inf",
            "beta1 = -nan",
            "seed = 9223372036854775808",
        ] {
            assert!(Layer::toml("a.toml", text).is_err(), "{text}");
        }
    }
}
