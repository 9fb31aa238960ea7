//! Resolves a configuration from its file, preset, environment variables and flags.

use std::path::Path;

use crate::config::{
    self, ConfigError, ConfigSource, InitFrom, KEYS, Layer, Resolved, RunLength, merge, resolve,
};
use crate::data::Dataset;
use crate::disk;
use crate::model::Architecture;
use crate::protocol::Failure;
use crate::runs::{self, AdapterSource, ModelSource};

impl ConfigSource {
    /// Resolves defaults, preset, file, environment and flags, the later over the earlier. If neither
    /// preset nor file was given, `layers` take their place. `saved`, the file and the text of a run that
    /// continues, takes the place of the file.
    pub fn resolve(
        self,
        layers: Vec<Layer>,
        saved: Option<&(String, String)>,
    ) -> Result<Resolved, Failure> {
        self.resolve_as(layers, saved, false)
    }

    /// The same, also without the model to start from if the run `may_lack_model`: another rank reads it, or a
    /// checkpoint takes its place.
    pub fn resolve_as(
        self,
        mut layers: Vec<Layer>,
        saved: Option<&(String, String)>,
        may_lack_model: bool,
    ) -> Result<Resolved, Failure> {
        if self.length.is_some() {
            let settled = self.with_settled_length(&layers, saved)?;
            return settled.resolve_as(layers, saved, may_lack_model);
        }
        let saved = saved.filter(|_| self.file.is_none());
        if self.is_named() {
            layers.clear();
        }
        if let Some(name) = self.preset() {
            layers.push(Layer::preset(&name)?);
        }
        if let Some(path) = &self.file {
            layers.push(read_layer(path)?);
        } else if let Some((name, text)) = saved {
            layers.push(Layer::toml(name, text)?);
        }
        layers.push(Layer::environment(variables())?);
        layers.push(Layer::flags(self.flags)?);
        // A run that continues has the shapes of its model already.
        if saved.is_some() {
            return Ok(resolve(layers)?);
        }
        resolve_with_model(layers, may_lack_model)
    }

    /// Replaces the length by the settings that it means, if there is one.
    pub fn with_settled_length(
        mut self,
        layers: &[Layer],
        saved: Option<&(String, String)>,
    ) -> Result<Self, Failure> {
        let Some(length) = self.length.take() else { return Ok(self) };
        let resolved = self.clone().resolve_as(layers.to_vec(), saved, true)?;
        let train = match length {
            RunLength::Tokens(_) => 0,
            RunLength::Epochs(_) => Dataset::open(resolved.config.require_data()?, 1)?.train.len(),
        };
        let settings = RunLength::settings(length.tokens(train), &resolved);
        self.flags.extend(settings.into_iter().map(|(key, text)| (key.to_string(), text)));
        Ok(self)
    }

    fn preset(&self) -> Option<String> {
        flag_or_variable(self.preset.as_deref(), "WGPT_PRESET")
    }

    /// Returns true if a file or a preset was given.
    pub fn is_named(&self) -> bool {
        self.file.is_some() || self.preset().is_some()
    }

    /// Returns the value of a key from its flag, or else from its environment variable.
    pub fn typed(&self, key: &str) -> Option<String> {
        let flag = self.flags.iter().find(|(name, _)| name == key);
        let key = KEYS.iter().find(|known| known.name == key)?;
        flag_or_variable(flag.map(|(_, value)| value.as_str()), &key.variable())
    }

    /// Returns a name for runs: the name of the file, of the preset, or of the data.
    pub fn name(&self) -> String {
        let stem = self.file.as_deref().and_then(Path::file_stem);
        let stem = stem.map(|stem| stem.to_string_lossy().into_owned());
        let data = self.typed("data").unwrap_or_default();
        let data = data.trim_end_matches(['/', '\\', '.']).rsplit(['/', '\\', ':']).next();
        let data = data.filter(|name| !name.is_empty()).map(str::to_string);
        stem.or_else(|| self.preset()).or(data).unwrap_or_else(|| "run".into())
    }
}

/// Returns the variables of this process; a page has none. No variable of wgpt is not UTF-8.
fn variables() -> impl Iterator<Item = (String, String)> {
    let variables = (!cfg!(target_arch = "wasm32")).then(std::env::vars_os);
    variables
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Returns the value of a flag, or else of an environment variable.
pub(crate) fn flag_or_variable(flag: Option<&str>, variable: &str) -> Option<String> {
    let set = || std::env::var(variable).ok().filter(|value| !value.is_empty());
    flag.map(str::to_string).or_else(set)
}

/// Resolves layers. If the run begins with a model, the shapes of that model are a layer above all others.
fn resolve_with_model(mut layers: Vec<Layer>, may_lack_model: bool) -> Result<Resolved, Failure> {
    let merged = merge(layers.clone())?;
    let InitFrom::Path(path) = &merged.config.init_from else { return Ok(resolve(layers)?) };
    let model = match ModelSource::open(Path::new(path)) {
        Ok(model) => model,
        // A model of the list can be planned before it is fetched.
        Err(error) => {
            match listed_architecture(path)? {
                Some(architecture) => {
                    layers.push(Layer::model(path, runs::settings(&architecture))?);
                }
                // The configuration of a run has all shapes.
                None if may_lack_model || merged.is_set("n_layer") => {}
                None => return Err(error),
            }
            return Ok(resolve(layers)?);
        }
    };
    let block_size = model.window();
    let mut settings = runs::settings(&Architecture { block_size, ..model.architecture });
    // An adapter continues as what it is.
    if let Some(AdapterSource { lora, .. }) = &model.adapter {
        settings.push(("lora_rank", lora.rank.to_string()));
        settings.push(("lora_alpha", lora.alpha.to_string()));
        settings.push(("lora_targets", lora.targets.join(",")));
    }
    layers.push(Layer::model(path, settings)?);
    Ok(resolve(layers)?)
}

/// Returns the architecture of a model in the list of `wgpt get`.
#[cfg(not(target_arch = "wasm32"))]
fn listed_architecture(name: &str) -> Result<Option<Architecture>, ConfigError> {
    let Some(preset) = crate::hub::preset_of(name) else { return Ok(None) };
    let config = resolve(vec![Layer::preset(preset)?])?.config;
    let vocab = if config.vocab_size > 0 { config.vocab_size } else { config::GPT2_VOCABULARY };
    Ok(Some(Architecture::new(&config, vocab)))
}

/// A page fetches no models.
#[cfg(target_arch = "wasm32")]
fn listed_architecture(_: &str) -> Result<Option<Architecture>, ConfigError> {
    Ok(None)
}

pub(crate) fn read_text(path: &Path) -> Result<(String, String), Failure> {
    let name = path.display().to_string();
    let bytes = disk::read_regular(path).map_err(Failure::file(path))?;
    let text = config::decode(&name, bytes)?;
    Ok((name, text))
}

fn read_layer(path: &Path) -> Result<Layer, Failure> {
    let (name, text) = read_text(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("py") => Ok(Layer::python(&name, &text)?),
        Some("toml") => Ok(Layer::toml(&name, &text)?),
        _ => Err(Failure::usage(
            format!("{name}: neither a .toml nor a .py file"),
            "a configuration is a TOML file or a nanoGPT .py file; `wgpt config init` writes one",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(flags: &[(&str, &str)]) -> ConfigSource {
        let flags = flags.iter().map(|(key, text)| (key.to_string(), text.to_string()));
        ConfigSource { flags: flags.collect(), ..ConfigSource::default() }
    }

    /// The first rank reads the model for all others, whose machines may lack it.
    #[test]
    fn a_model_that_is_not_there_is_an_error_where_its_shapes_are_needed() {
        let missing = ("init_from", "not/there");
        let error = source(&[missing]).resolve(Vec::new(), None).unwrap_err();
        assert!(error.text.contains("not/there: does not exist"), "{error:?}");
        assert!(source(&[missing]).resolve_as(Vec::new(), None, true).is_ok());
        // As in the configuration that a run has recorded.
        assert!(source(&[missing, ("n_layer", "2")]).resolve(Vec::new(), None).is_ok());
    }

    #[cfg(not(target_arch = "wasm32"))]
    #[test]
    fn a_listed_model_has_its_shapes_before_it_is_fetched() {
        let listed = ("init_from", "hf:HuggingFaceTB/SmolLM2-360M");
        let config = source(&[listed]).resolve(Vec::new(), None).unwrap().config;
        assert_eq!(
            (config.n_embd.get(), config.n_layer.get(), config.vocab_size),
            (960, 32, 49_152)
        );
    }

    #[test]
    fn a_length_becomes_settings_once() {
        let length = Some(RunLength::Tokens(1e6));
        let flags =
            [("batch_size", "10"), ("block_size", "100"), ("gradient_accumulation_steps", "1")];
        let typed = ConfigSource { length, ..source(&flags) };
        let settled = typed.clone().with_settled_length(&[], None).unwrap();
        assert_eq!(settled.length, None);
        let updates =
            |source: ConfigSource| source.resolve(Vec::new(), None).unwrap().config.max_iters.get();
        assert_eq!((updates(typed), updates(settled)), (1000, 1000));
    }
}
