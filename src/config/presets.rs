//! The built-in configs of `--preset`.

use std::path::Path;

use super::{BUILTIN, Config, Layer, file_name, resolve};

const GPT2: &str = include_str!("../../assets/presets/gpt2.toml");
const GPT2_MEDIUM: &str = include_str!("../../assets/presets/gpt2-medium.toml");
const GPT2_LARGE: &str = include_str!("../../assets/presets/gpt2-large.toml");
const GPT2_XL: &str = include_str!("../../assets/presets/gpt2-xl.toml");

/// Names and TOML texts, in the order of help texts. A later text overrides an earlier one.
const PRESETS: &[(&str, &[&str])] = &[
    ("demo", &[include_str!("../../assets/presets/demo.toml")]),
    ("chat", &[include_str!("../../assets/presets/chat.toml")]),
    ("shakespeare-char", &[include_str!("../../assets/presets/shakespeare-char.toml")]),
    ("gpt2", &[GPT2]),
    ("gpt2-medium", &[GPT2_MEDIUM]),
    ("gpt2-large", &[GPT2_LARGE]),
    ("gpt2-xl", &[GPT2_XL]),
    ("card-4gb", &[GPT2, include_str!("../../assets/presets/card-4gb.toml")]),
    ("card-6gb", &[GPT2_MEDIUM, include_str!("../../assets/presets/card-6gb.toml")]),
    ("card-8gb", &[GPT2_MEDIUM, include_str!("../../assets/presets/card-8gb.toml")]),
    ("card-12gb", &[GPT2_LARGE, include_str!("../../assets/presets/card-12gb.toml")]),
    ("card-16gb", &[GPT2_LARGE, include_str!("../../assets/presets/card-16gb.toml")]),
    ("card-24gb", &[GPT2_XL, include_str!("../../assets/presets/card-24gb.toml")]),
];

/// Lists the presets that [`Layer::preset`](super::Layer::preset) knows.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// Returns the TOML texts of a preset; each overrides the one before.
pub(super) fn preset_texts(name: &str) -> Option<&'static [&'static str]> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, texts)| *texts)
}

/// Returns a name for the folder of a run that starts from a preset with this configuration.
///
/// The name is the preset's as long as the run has its model, and its data where it brings some: a
/// run `gpt2-xl-1` is never a model of two layers. Else the name says the data and the shape of the
/// model, as `foxes-6x384`. A name that is not a preset's is returned as it is.
pub(crate) fn run_name(preset: &str, config: &Config) -> String {
    let layer = Layer::preset(preset).and_then(|layer| resolve(vec![layer]));
    let Ok(base) = layer.map(|resolved| resolved.config) else { return preset.to_string() };
    let shape = |config: &Config| (config.n_layer, config.n_head, config.n_embd);
    let same_data = base.data.is_empty() || base.data == config.data;
    if shape(&base) == shape(config) && same_data {
        return preset.to_string();
    }
    let data = config.data.strip_prefix(BUILTIN).unwrap_or(&config.data);
    let data = Path::new(data).file_name().unwrap_or_default().to_string_lossy();
    format!("{}-{}x{}", file_name(&data, "gpt"), config.n_layer, config.n_embd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Gelu;

    fn preset(name: &str) -> Config {
        resolve(vec![Layer::preset(name).unwrap()]).unwrap().config
    }

    #[test]
    fn every_preset_resolves_without_a_warning() {
        for name in preset_names() {
            let resolved = resolve(vec![Layer::preset(name).unwrap()]).unwrap();
            assert_eq!(resolved.warnings, Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn the_gpt2_presets_are_the_published_models() {
        for (name, parameters) in [
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("gpt2-xl", 1_557_611_200),
        ] {
            let config = preset(name);
            assert_eq!(config.parameters(50_257), parameters, "{name}");
            assert_eq!(config.gelu, Gelu::Tanh, "{name}");
            assert_eq!(config.global_batch(), 480, "{name}");
            assert!((config.min_lr * 10.0 - config.learning_rate).abs() < 1e-12, "{name}");
        }
    }

    #[test]
    fn a_run_is_named_after_its_preset_only_if_it_has_its_model() {
        let name = |preset: &str, flags: &[(&str, &str)]| {
            let flags = flags.iter().map(|(key, text)| (key.to_string(), text.to_string()));
            let layers = vec![Layer::preset(preset).unwrap(), Layer::flags(flags).unwrap()];
            run_name(preset, &resolve(layers).unwrap().config)
        };
        assert_eq!(name("demo", &[]), "demo");
        assert_eq!(name("demo", &[("max_iters", "9")]), "demo");
        assert_eq!(name("demo", &[("data", "/a/my foxes")]), "my-foxes-2x96");
        assert_eq!(name("gpt2-xl", &[("data", "data/openwebtext")]), "gpt2-xl");
        let small = [("n_layer", "2"), ("data", "builtin:stories")];
        assert_eq!(name("gpt2-xl", &small), "stories-2x1600");
        assert_eq!(name("gpt2", &[("n_layer", "2")]), "gpt-2x768");
        assert_eq!(name("gpt2", &[("n_layer", "2"), ("data", "..")]), "gpt-2x768");
        assert_eq!(run_name("mine", &Config::default()), "mine");
    }

    #[test]
    fn shakespeare_char_is_the_config_of_nanogpt() {
        let config = preset("shakespeare-char");
        // nanoGPT prints the count without the position embedding.
        assert_eq!(config.parameters(65) - 256 * 384, 10_646_784);
        assert_eq!((config.beta2, config.dropout, config.gelu), (0.99, 0.2, Gelu::Erf));
        assert_eq!(config.global_batch(), 64);
    }

    #[test]
    fn the_small_models_bring_their_data() {
        assert_eq!(preset("demo").require_data(), Ok("builtin:stories"));
        assert_eq!(preset("chat").require_data(), Ok("builtin:chats"));
    }
}
