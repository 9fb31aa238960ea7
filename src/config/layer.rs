//! The settings of one source: a preset, a file, the environment or the flags.

use super::error::{ConfigError, Provenance, Source};
use super::keys::{
    DATASET, KEYS, RESERVED_VARIABLES, RETIRED, VARIABLE_PREFIX, asks_for_nothing, ignored,
    nearest, settings,
};
use super::kind::{InvalidValue, ValueKind};
use super::presets::preset_texts;
use super::python::{self, quote};
use std::collections::BTreeMap;
use std::path::{Component, Path};
use toml::Value;
use toml::de::{DeTable, DeValue};

/// The values that one source sets. Their names, types and ranges are valid; the rules between keys
/// are checked by [`resolve`](super::resolve()).
#[derive(Debug, Clone, Default)]
pub struct Layer {
    pub(super) source: Source,
    pub(super) values: BTreeMap<&'static str, (Value, Provenance)>,
    /// A warning for each key or variable that has no effect.
    pub(super) warnings: BTreeMap<String, String>,
}

/// Decodes the text of a config file, without a byte order mark. `file` is the name for errors.
pub fn decode(file: &str, bytes: Vec<u8>) -> Result<String, ConfigError> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let (before, rest) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let lines: Vec<_> = before.split(|&byte| byte == b'\n').collect();
        let rest = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = [lines.last().copied().unwrap_or_default(), rest].concat();
        ConfigError::Syntax {
            file: file.into(),
            line: lines.len(),
            quote: quote(&String::from_utf8_lossy(&line)),
            problem: "not UTF-8".into(),
            hint: "save the file as UTF-8; it may be UTF-16 or Latin-1",
        }
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}

/// The hint for a line of TOML with a backslash that does not parse.
const BACKSLASH_HINT: &str = "a backslash in \"quotes\" begins an escape: write a Windows path in \
                              'single quotes', or with /";

impl Layer {
    /// Returns the default of each setting.
    pub(super) fn defaults() -> Result<Self, ConfigError> {
        let mut layer = Self::new(Source::Default);
        KEYS.iter().try_for_each(|key| layer.set_text(key.name, "", key.default))?;
        Ok(layer)
    }

    /// Reads a built-in config; `preset_names` lists them.
    pub fn preset(name: &str) -> Result<Self, ConfigError> {
        let texts = preset_texts(name).ok_or_else(|| ConfigError::UnknownPreset(name.into()))?;
        texts.iter().try_fold(Self::new(Source::Preset), |layer, text| layer.with_toml(name, text))
    }

    /// Parses a TOML config, a flat table of settings. `file` is the name for errors.
    pub fn toml(file: &str, text: &str) -> Result<Self, ConfigError> {
        Self::new(Source::File).with_toml(file, text)
    }

    /// Parses a nanoGPT `.py` config, lines of `name = literal`, without running it.
    pub fn python(file: &str, text: &str) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Source::File);
        for (line, source) in (1..).zip(text.lines()) {
            let assignment = python::assignment(source).map_err(|problem| ConfigError::Syntax {
                file: file.into(),
                line,
                quote: quote(source),
                problem,
                hint: "a .py config is read but never run: write the value itself, or delete the line",
            })?;
            let Some((name, value)) = assignment else { continue };
            let shown = match &value {
                Value::String(text) => format!("{text:?}"),
                // Debug keeps the point of 1.0 and the short form of 6e-5.
                Value::Float(number) => format!("{number:?}"),
                value => value.to_string(),
            };
            layer.set(name, file, line, shown, |kind| kind.accept(value))?;
        }
        layer = layer.with_dataset();
        // nanoGPT uses the exact GELU, and its users expect its losses. Its train_gpt2.py relies on the
        // default of its data.
        let implied = Provenance { source: Source::Implied, name: file.into(), line: 0 };
        for (key, text) in [("gelu", "erf"), ("data", "data/openwebtext")] {
            layer.values.entry(key).or_insert((Value::String(text.into()), implied.clone()));
        }
        Ok(layer)
    }

    /// Parses the architecture of the model at `path`, pairs of key and text.
    pub fn model<'a>(
        path: &str,
        settings: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Source::Model);
        for (name, text) in settings {
            layer.set_text(name, path, &text)?;
        }
        Ok(layer)
    }

    /// Reads the environment. Skips variables of other programs, empty ones and those that other
    /// parts of wgpt read. An unknown `WGPT_*` variable causes a warning and not an error, because
    /// it may belong to another version.
    pub fn environment<S: AsRef<str> + Ord>(
        variables: impl IntoIterator<Item = (S, S)>,
    ) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Source::Environment);
        // The environment is unordered; sort it so that errors and warnings are not.
        let variables: BTreeMap<S, S> = variables.into_iter().collect();
        for (variable, text) in &variables {
            let variable = variable.as_ref();
            let text = text.as_ref();
            let ours = variable.starts_with(VARIABLE_PREFIX);
            if !ours || text.is_empty() || RESERVED_VARIABLES.contains(&variable) {
                continue;
            }
            match settings().find(|key| key.variable() == variable) {
                Some(key) => layer.set_text(key.name, variable, text)?,
                None => {
                    layer.warnings.insert(variable.into(), unknown_variable(variable));
                }
            }
        }
        Ok(layer.with_dataset())
    }

    /// Parses flags, pairs of name and text: `("batch-size", "8")` or `("batch_size", "8")`.
    pub fn flags<S: AsRef<str>, T: AsRef<str>>(
        pairs: impl IntoIterator<Item = (S, T)>,
    ) -> Result<Self, ConfigError> {
        let mut layer = Self::new(Source::Flags);
        for (flag, text) in pairs {
            let flag = flag.as_ref().trim_start_matches('-');
            layer.set_text(&flag.replace('-', "_"), flag, text.as_ref())?;
        }
        Ok(layer.with_dataset())
    }

    fn new(source: Source) -> Self {
        Self { source, ..Self::default() }
    }

    /// Sets one key from typed text.
    fn set_text(&mut self, name: &str, place: &str, text: &str) -> Result<(), ConfigError> {
        let shown = if text.is_empty() { "\"\"".into() } else { quote(text) };
        self.set(name, place, 0, shown, |kind| kind.parse(text))
    }

    /// Sets one key, or records that it has no effect. If a key is set twice, the later value wins,
    /// as in Python. `place` and `line` are those of its [`Provenance`], `shown` is the value for errors.
    fn set(
        &mut self,
        name: &str,
        place: &str,
        line: usize,
        shown: String,
        read: impl FnOnce(&ValueKind) -> Result<Value, InvalidValue>,
    ) -> Result<(), ConfigError> {
        let provenance = Provenance { source: self.source, name: place.into(), line };
        if let Some(&(row, reason)) = ignored(name) {
            let warning = || format!("{provenance}: {name} has no effect: {reason}");
            if !asks_for_nothing(name, &shown) {
                self.warnings.entry(row.into()).or_insert_with(warning);
            }
            return Ok(());
        }
        if let Some(key) = RETIRED.into_iter().find(|key| *key == name) {
            if key != "sync_every" || shown == "1" {
                return Ok(());
            }
            let rule = "this version of wgpt sums gradients at each update and averages no weights";
            let problem = InvalidValue::range(rule, "remove this setting");
            let provenance = Box::new(provenance);
            return Err(ConfigError::Invalid { key, provenance, value: shown, problem });
        }
        let Some(key) = settings().find(|key| key.name == name) else {
            let provenance = Box::new(provenance);
            return Err(ConfigError::UnknownKey { key: quote(name), provenance });
        };
        let value = read(&key.kind).and_then(|value| without_control(key.name, value));
        let value = value.map_err(|problem| ConfigError::Invalid {
            key: key.name,
            provenance: Box::new(provenance.clone()),
            value: shown,
            problem,
        })?;
        self.values.insert(key.name, (value, provenance));
        Ok(())
    }

    fn with_toml(mut self, name: &str, text: &str) -> Result<Self, ConfigError> {
        let line_at = |byte: usize| 1 + text.bytes().take(byte).filter(|&b| b == b'\n').count();
        let syntax = |line: usize, problem: String, hint: &'static str| ConfigError::Syntax {
            file: name.into(),
            line,
            quote: quote(text.lines().nth(line - 1).unwrap_or_default()),
            problem,
            hint,
        };
        let table = DeTable::parse(text).map_err(|error| {
            let line = line_at(error.span().map_or(0, |span| span.start));
            let problem = error.message().trim_end().replace('\n', ", ");
            let hint = if text.lines().nth(line - 1).unwrap_or_default().contains('\\') {
                BACKSLASH_HINT
            } else if problem == "duplicate key" {
                "delete this line or the one before that sets the same key"
            } else {
                "write one `key = value` per line, with text in \"quotes\""
            };
            syntax(line, problem, hint)
        })?;
        // In the order of the file, to report its first error.
        let mut entries: Vec<_> = table.into_inner().into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let line = line_at(key.span().start);
            if value.get_ref().is_table() {
                let problem = "sections and dotted keys are not supported".into();
                return Err(syntax(line, problem, "remove the section but keep its keys"));
            }
            let shown = quote(text.get(value.span()).unwrap_or_default());
            self.set(key.get_ref(), name, line, shown, |kind| {
                kind.accept(literal(value.get_ref(), kind)?)
            })?;
        }
        Ok(self.with_dataset())
    }

    /// Sets `data` from nanoGPT's `dataset`, unless this layer sets `data` too.
    fn with_dataset(mut self) -> Self {
        if let Some((Value::String(dataset), provenance)) = self.values.remove(DATASET.name) {
            // On Windows `/mnt` is relative, and nothing can be joined before `C:`.
            let first = Path::new(&dataset).components().next();
            let is_absolute = matches!(first, Some(Component::RootDir | Component::Prefix(_)));
            let data = if is_absolute { dataset } else { format!("data/{dataset}") };
            self.values.entry("data").or_insert((Value::String(data), provenance));
        }
        self
    }
}

/// Converts a TOML value to a literal. `kind` is the expected kind, for errors.
fn literal(value: &DeValue<'_>, kind: &ValueKind) -> Result<Value, InvalidValue> {
    match value {
        DeValue::Boolean(value) => Ok(Value::Boolean(*value)),
        DeValue::String(text) => Ok(Value::String(text.to_string())),
        DeValue::Integer(digits) => {
            i64::from_str_radix(digits.as_str(), digits.radix()).map(Value::Integer).map_err(|_| {
                let hint = format!("the largest integer is {}", i64::MAX);
                InvalidValue::range("it does not fit in 64 bits", hint)
            })
        }
        DeValue::Float(digits) => {
            digits.as_str().parse().map(Value::Float).map_err(|_| kind.type_error())
        }
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => Err(kind.type_error()),
    }
}

const PATHS: [&str; 5] = ["data", DATASET.name, "out_dir", "init_from", "hellaswag"];

/// Refuses control characters in a path. They come from backslashes, like the tab in `"C:\texts"`.
fn without_control(key: &str, value: Value) -> Result<Value, InvalidValue> {
    match &value {
        Value::String(text) if PATHS.contains(&key) && text.contains(char::is_control) => {
            let hint = "double the backslashes, or use / instead";
            Err(InvalidValue::range("a path cannot contain control characters", hint))
        }
        _ => Ok(value),
    }
}

fn unknown_variable(variable: &str) -> String {
    let text = format!("unknown environment variable {variable} has no effect");
    match nearest(variable.trim_start_matches(VARIABLE_PREFIX)) {
        Some(key) => {
            format!("{text}; did you mean {VARIABLE_PREFIX}{}?", key.to_ascii_uppercase())
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(layer: &Layer) -> Option<&Value> {
        layer.values.get("data").map(|(value, _)| value)
    }

    #[test]
    fn flags_take_both_spellings() {
        let layer = Layer::flags([("batch-size", "8"), ("--n_layer", "5 * 2")]).unwrap();
        assert_eq!(layer.values["batch_size"].0, Value::Integer(8));
        assert_eq!(layer.values["n_layer"].0, Value::Integer(10));
    }

    #[test]
    fn the_environment_sets_keys_and_warns_about_unknown_ones() {
        let layer = Layer::environment([
            ("PATH", "/bin"),
            ("WGPT_COLOR", "never"),
            ("WGPT_BATCH_SIZE", "8"),
            ("WGPT_N_LAYER", ""),
            ("WGPT_BATCHSIZE", "8"),
        ])
        .unwrap();
        assert_eq!(layer.values.len(), 1);
        assert_eq!(layer.warnings.len(), 1, "{:?}", layer.warnings);
        let warning = &layer.warnings["WGPT_BATCHSIZE"];
        assert!(warning.contains("WGPT_BATCHSIZE"), "{warning}");
        assert!(warning.contains("WGPT_BATCH_SIZE?"), "{warning}");
    }

    #[test]
    fn dataset_sets_data_unless_data_is_set_too() {
        let shakespeare = Value::String("data/shakespeare".into());
        let layer = Layer::python("a.py", "dataset = 'shakespeare'").unwrap();
        assert_eq!(data(&layer), Some(&shakespeare));
        let absolute =
            if cfg!(windows) { &["/mnt/owt", r"C:\owt", r"\\s\owt"][..] } else { &["/mnt/owt"] };
        for dataset in absolute {
            let layer = Layer::flags([("dataset", dataset)]).unwrap();
            assert_eq!(data(&layer), Some(&Value::String(dataset.to_string())));
        }
        for text in ["data = 'x'\ndataset = 'y'", "dataset = 'y'\ndata = 'x'"] {
            let layer = Layer::python("a.py", text).unwrap();
            assert_eq!(data(&layer), Some(&Value::String("x".into())));
        }
    }

    #[test]
    fn errors_say_where() {
        for (result, parts) in [
            (Layer::toml("a.toml", "# x\nn_layers = 2"), ["a.toml:2:", "`n_layer`?"]),
            (Layer::python("a.py", "\n\nn_layers = 2"), ["a.py:3:", "`n_layer`?"]),
            (Layer::flags([("n-layers", "2")]), ["--n-layers", "`n_layer`?"]),
            (Layer::toml("a.toml", "\u{feff}bias = 1"), ["a.toml:1:", "true or false, not 1"]),
            (Layer::toml("a.toml", "bias = [1,\n2]"), ["a.toml:1:", "not [1, 2]"]),
            (Layer::toml("a.toml", "n_layer = 0"), ["a.toml:1:", "at least 1"]),
            (Layer::toml("a.toml", "seed = 1\nseed = 2"), ["a.toml:2:", "seed = 2"]),
            (Layer::toml("a.toml", "\n[model]\nn_layer = 2"), ["a.toml:2:", "[model]"]),
            (Layer::toml("a.toml", "\ndata = x y"), ["a.toml:2:", "data = x y"]),
            (Layer::environment([("WGPT_SEED", "x")]), ["WGPT_SEED", "not x;"]),
            (Layer::preset("gpt3"), ["`gpt3`", "did you mean `gpt2`?"]),
        ] {
            let error = result.unwrap_err().with_hint();
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
    }

    #[test]
    fn a_windows_path_in_quotes_is_explained() {
        let error = Layer::toml("a.toml", r#"data = "C:\Users\a""#).unwrap_err().with_hint();
        assert!(error.contains("'single quotes'"), "{error}");
        for text in [
            r#"data = "C:\texts""#,
            r#"out_dir = "D:\new""#,
            r#"init_from = "C:\runs""#,
            r#"hellaswag = "C:\tests.jsonl""#,
        ] {
            for read in [Layer::toml, Layer::python] {
                let error = read("a", text).unwrap_err().with_hint();
                assert!(error.contains("double the backslashes"), "{error}");
            }
        }
        for text in [r"data = 'C:\Users\a'", r#"data = "C:\\Users\\a""#] {
            let layer = Layer::toml("a.toml", text).unwrap();
            assert_eq!(data(&layer), Some(&Value::String(r"C:\Users\a".into())));
        }
    }

    #[test]
    fn toml_numbers_keep_their_value() {
        // With the byte order mark and line ends of Windows editors.
        let text = "\u{feff}n_layer = 0x10\r\nseed = 5_000\nbeta1 = 9e-1\nlearning_rate = 1";
        let layer = Layer::toml("a.toml", text).unwrap();
        assert_eq!(layer.values["n_layer"].0, Value::Integer(16));
        assert_eq!(layer.values["seed"].0, Value::Integer(5000));
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
