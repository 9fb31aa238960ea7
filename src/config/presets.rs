//! The built-in configs of `--preset`.

const GPT2: &str = include_str!("../../assets/presets/gpt2.toml");
const GPT2_MEDIUM: &str = include_str!("../../assets/presets/gpt2-medium.toml");
const GPT2_LARGE: &str = include_str!("../../assets/presets/gpt2-large.toml");
const GPT2_XL: &str = include_str!("../../assets/presets/gpt2-xl.toml");

/// Names and TOML files, in the order of the help. A later file overrides an earlier one.
const PRESETS: &[(&str, &[&str])] = &[
    ("demo", &[include_str!("../../assets/presets/demo.toml")]),
    ("chat", &[include_str!("../../assets/presets/chat.toml")]),
    ("shakespeare-char", &[include_str!("../../assets/presets/shakespeare-char.toml")]),
    ("gpt2-15m", &[include_str!("../../assets/presets/gpt2-15m.toml")]),
    ("gpt2-30m", &[include_str!("../../assets/presets/gpt2-30m.toml")]),
    ("gpt2-60m", &[include_str!("../../assets/presets/gpt2-60m.toml")]),
    ("gpt2", &[GPT2]),
    ("gpt2-medium", &[GPT2_MEDIUM]),
    ("gpt2-large", &[GPT2_LARGE]),
    ("gpt2-xl", &[GPT2_XL]),
    ("llama-15m", &[include_str!("../../assets/presets/llama-15m.toml")]),
    ("llama-30m", &[include_str!("../../assets/presets/llama-30m.toml")]),
    ("llama-60m", &[include_str!("../../assets/presets/llama-60m.toml")]),
    ("llama-124m", &[include_str!("../../assets/presets/llama-124m.toml")]),
    ("smollm2-135m", &[include_str!("../../assets/presets/smollm2-135m.toml")]),
    ("smollm2-360m", &[include_str!("../../assets/presets/smollm2-360m.toml")]),
    ("qwen3-0.6b", &[include_str!("../../assets/presets/qwen3-0.6b.toml")]),
    ("smollm2-1.7b", &[include_str!("../../assets/presets/smollm2-1.7b.toml")]),
    ("llama-3.2-1b", &[include_str!("../../assets/presets/llama-3.2-1b.toml")]),
    ("llama-3.2-3b", &[include_str!("../../assets/presets/llama-3.2-3b.toml")]),
    ("qwen3-1.7b", &[include_str!("../../assets/presets/qwen3-1.7b.toml")]),
    ("qwen3-4b", &[include_str!("../../assets/presets/qwen3-4b.toml")]),
    ("qwen3-8b", &[include_str!("../../assets/presets/qwen3-8b.toml")]),
    ("card-4gb", &[include_str!("../../assets/presets/card-4gb.toml")]),
    ("card-6gb", &[include_str!("../../assets/presets/card-6gb.toml")]),
    ("card-8gb", &[include_str!("../../assets/presets/card-8gb.toml")]),
    ("card-12gb", &[include_str!("../../assets/presets/card-12gb.toml")]),
    ("card-16gb", &[include_str!("../../assets/presets/card-16gb.toml")]),
    ("card-24gb", &[include_str!("../../assets/presets/card-24gb.toml")]),
    ("largest-4gb", &[GPT2, include_str!("../../assets/presets/largest-4gb.toml")]),
    ("largest-6gb", &[GPT2_MEDIUM, include_str!("../../assets/presets/largest-6gb.toml")]),
    ("largest-8gb", &[GPT2_MEDIUM, include_str!("../../assets/presets/largest-8gb.toml")]),
    ("largest-12gb", &[GPT2_LARGE, include_str!("../../assets/presets/largest-12gb.toml")]),
    ("largest-16gb", &[GPT2_LARGE, include_str!("../../assets/presets/largest-16gb.toml")]),
    ("largest-24gb", &[GPT2_XL, include_str!("../../assets/presets/largest-24gb.toml")]),
];

/// A line for each preset: its name and its title.
const TITLES: &str = include_str!("../../assets/presets/titles.txt");

/// Returns a short description of a preset.
pub fn preset_title(preset: &str) -> &str {
    let mut titles = TITLES.lines().filter_map(|line| line.split_once(' '));
    titles.find(|(name, _)| *name == preset).map_or(preset, |(_, title)| title)
}

pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// Returns the TOML files of a preset; each overrides the one before.
pub(super) fn preset_texts(name: &str) -> Option<&'static [&'static str]> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, texts)| *texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Gelu, Layer, resolve};

    fn preset(name: &str) -> Config {
        Config::of_preset(name, &[])
    }

    #[test]
    fn every_preset_has_a_title() {
        for name in preset_names() {
            assert_ne!(preset_title(name), name);
        }
        assert_eq!(TITLES.lines().count(), preset_names().count());
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
        for name in ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"] {
            let config = preset(name);
            assert!(config.bias, "{name}");
            assert_eq!(config.gelu, Gelu::Tanh, "{name}");
            assert_eq!(config.global_batch(), 480, "{name}");
            assert!((config.min_lr * 10.0 - config.learning_rate).abs() < 1e-12, "{name}");
        }
    }

    #[test]
    fn the_llama_presets_are_the_published_models_or_have_the_weights_of_gpt2() {
        for (name, vocab, parameters) in [
            ("llama-15m", 50_257, 16_079_360),
            ("llama-124m", 50_257, 123_551_232),
            ("smollm2-135m", 49_152, 134_515_008),
            ("smollm2-360m", 49_152, 361_821_120),
            ("qwen3-0.6b", 151_936, 596_049_920),
            ("smollm2-1.7b", 49_152, 1_711_376_384),
            ("llama-3.2-1b", 128_256, 1_235_814_400),
            ("llama-3.2-3b", 128_256, 3_212_749_824),
            ("qwen3-1.7b", 151_936, 1_720_574_976),
            ("qwen3-4b", 151_936, 4_022_468_096),
            ("qwen3-8b", 151_936, 8_190_735_360),
        ] {
            let config = preset(name);
            assert_eq!(config.parameters(vocab), parameters, "{name}");
            let stated = if config.vocab_size == 0 { 50_257 } else { config.vocab_size };
            assert_eq!(u64::from(stated), vocab, "{name}");
        }
        let untied = Config::of_preset("smollm2-135m", &[("tie_embeddings", "false")]);
        assert_eq!(untied.parameters(49_152), 134_515_008 + 49_152 * 576);
        assert_eq!(preset("llama-30m").ffn_size(), 1024);
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
