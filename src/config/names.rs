//! Names of files and folders that are valid on every system.

use std::path::Path;

use super::{Arch, BUILTIN, Config, Layer, resolve};

/// The longest name, in characters.
const LONGEST: usize = 40;

/// Turns `text` into the name of a file or folder; returns `otherwise` if none of its characters can stay.
///
/// It consists of letters, digits, `-`, `_` and `.`, and neither begins nor ends with a dot. The name of
/// a Windows device gets a dash: `aux-`, `nul-.txt`.
pub(crate) fn file_name(text: &str, otherwise: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = text.chars().take(LONGEST).map(safe).collect();
    match name.trim_matches('.') {
        "" => otherwise.to_string(),
        name => match name.split_once('.') {
            Some((first, rest)) if is_device(first) => format!("{first}-.{rest}"),
            None if is_device(name) => format!("{name}-"),
            _ => name.to_string(),
        },
    }
}

/// Returns true for the name of a Windows device, which exists in every folder and with every extension.
fn is_device(name: &str) -> bool {
    match name.to_ascii_lowercase().as_bytes() {
        b"con" | b"prn" | b"aux" | b"nul" => true,
        [device @ .., b'0'..=b'9'] => device == b"com" || device == b"lpt",
        _ => false,
    }
}

/// Returns a name for the folder of a run that starts from a preset with this configuration.
///
/// A run with the model and the data of the preset is named after it, so `gpt2-xl-1` is never a model of two
/// layers. Other runs are named after their data and the shape of their model, like `foxes-6x384`. A name
/// that no preset has is returned unchanged.
pub(crate) fn run_name(preset: &str, config: &Config) -> String {
    let layer = Layer::preset(preset).and_then(|layer| resolve(vec![layer]));
    let Ok(base) = layer.map(|resolved| resolved.config) else {
        // The name of a file may have any characters.
        return preset.replace(char::is_control, "-");
    };
    let shape = |config: &Config| (config.arch, config.n_layer, config.n_head, config.n_embd);
    let same_data = base.data.is_empty() || base.data == config.data;
    if shape(&base) == shape(config) && same_data {
        return preset.to_string();
    }
    let data = config.data.strip_prefix(BUILTIN).unwrap_or(&config.data);
    let data = Path::new(data).file_name().unwrap_or_default().to_string_lossy();
    let arch = if config.arch == Arch::Gpt2 { "gpt".into() } else { config.arch.to_string() };
    format!("{}-{}x{}", file_name(&data, &arch), config.n_layer, config.n_embd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_on_every_system() {
        for (text, name) in [
            ("foxes", "foxes"),
            ("my text: a/b\\c?", "my-text--a-b-c-"),
            ("\u{fc}ber.uns", "\u{fc}ber.uns"),
            ("..", "text"),
            ("", "text"),
            (".hidden.", "hidden"),
            ("a. ", "a.-"),
            ("nul", "nul-"),
            ("AUX.v2", "AUX-.v2"),
            ("com1", "com1-"),
            ("com10", "com10"),
            ("lpt", "lpt"),
            ("console", "console"),
        ] {
            assert_eq!(file_name(text, "text"), name, "{text:?}");
        }
        assert_eq!(file_name(&"\u{fc}".repeat(100), "text").chars().count(), LONGEST);
    }

    #[test]
    fn a_run_is_named_after_its_preset_only_if_it_has_its_model() {
        let name = |preset: &str, flags: &[(&str, &str)]| {
            run_name(preset, &Config::of_preset(preset, flags))
        };
        assert_eq!(name("demo", &[]), "demo");
        assert_eq!(name("demo", &[("max_iters", "9")]), "demo");
        assert_eq!(name("demo", &[("data", "/a/my foxes")]), "my-foxes-2x96");
        assert_eq!(name("gpt2-xl", &[("data", "data/openwebtext")]), "gpt2-xl");
        let small = [("n_layer", "2"), ("data", "builtin:stories")];
        assert_eq!(name("gpt2-xl", &small), "stories-2x1600");
        assert_eq!(name("gpt2", &[("n_layer", "2")]), "gpt-2x768");
        assert_eq!(name("gpt2", &[("n_layer", "2"), ("data", "..")]), "gpt-2x768");
        let llama = [("arch", "llama"), ("bias", "false")];
        assert_eq!(name("gpt2", &llama), "llama-12x768");
        assert_eq!(run_name("mine", &Config::default()), "mine");
    }
}
