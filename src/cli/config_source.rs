//! The sources of a configuration: a file, a preset, environment variables, flags.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize};

use super::CliError;
use super::args::flag_or_variable;
use super::help::Suggested;
use crate::config::{self, DATASET, IGNORED, InitFrom, KEYS, Kind, Layer, Resolved, preset_names};
use crate::runs::{self, ModelSource};

/// The sources of a configuration on the command line.
#[derive(Debug, Args)]
pub(super) struct ConfigSource {
    /// TOML file, or nanoGPT .py file (read, not executed)
    #[arg(value_name = "CONFIG")]
    pub file: Option<PathBuf>,
    /// Built-in configuration
    #[arg(long, value_name = "NAME", value_parser = Suggested::new(preset_names()))]
    pub preset: Option<String>,
    #[command(flatten)]
    pub flags: ConfigFlags,
}

/// The configuration of a run that continues.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    /// Its file, for messages.
    name: String,
    text: String,
}

impl Saved {
    /// Reads the configuration of a run.
    pub fn read(path: &Path) -> Result<Self, CliError> {
        let (name, text) = read_text(path)?;
        Ok(Self { name, text })
    }
}

impl ConfigSource {
    /// Resolves defaults, preset, file, environment and flags, the later over the earlier. `saved`
    /// takes the place of the file if none was given.
    pub fn resolve(self, saved: Option<&Saved>) -> Result<Resolved, CliError> {
        self.resolve_on(Vec::new(), saved)
    }

    /// Resolves as [`resolve`](Self::resolve), over `layers` if neither preset nor file was given.
    pub fn resolve_on(
        self,
        mut layers: Vec<Layer>,
        saved: Option<&Saved>,
    ) -> Result<Resolved, CliError> {
        let saved = saved.filter(|_| self.file.is_none());
        if self.is_named() {
            layers.clear();
        }
        if let Some(name) = flag_or_variable(self.preset.as_deref(), "WGPT_PRESET") {
            layers.push(Layer::preset(&name)?);
        }
        if let Some(path) = &self.file {
            layers.push(read_layer(path)?);
        } else if let Some(Saved { name, text }) = saved {
            layers.push(Layer::toml(name, text)?);
        }
        let begun = saved.is_some();
        // wgpt has no variables that are not UTF-8.
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        layers.push(Layer::environment(variables)?);
        layers.push(Layer::flags(self.flags.typed)?);
        let resolved = config::resolve(layers.clone());
        match resolved.as_ref().map(|resolved| &resolved.config.init_from) {
            // A model that cannot be opened is reported by the code that needs it.
            Ok(InitFrom::Path(path)) if !begun => match ModelSource::open(Path::new(path)) {
                Ok(model) => {
                    layers.push(Layer::model(path, runs::settings(&model.architecture))?);
                    Ok(config::resolve(layers)?)
                }
                Err(_) => Ok(resolved?),
            },
            _ => Ok(resolved?),
        }
    }

    /// Returns true if a file or a preset was given.
    pub fn is_named(&self) -> bool {
        self.file.is_some() || flag_or_variable(self.preset.as_deref(), "WGPT_PRESET").is_some()
    }

    /// Returns the value of a key from its flag, else from its environment variable.
    pub fn typed(&self, key: &str) -> Option<String> {
        let flag = self.flags.typed.iter().find(|(name, _)| name == key);
        let key = KEYS.iter().find(|known| known.name == key)?;
        flag_or_variable(flag.map(|(_, value)| value.as_str()), &key.variable())
    }

    /// Returns a short name of the configuration.
    pub fn name(&self) -> String {
        let preset = flag_or_variable(self.preset.as_deref(), "WGPT_PRESET");
        let stem = || Some(self.file.as_ref()?.file_stem()?.to_string_lossy().into_owned());
        stem().or(preset).unwrap_or_else(|| "run".into())
    }
}

/// Returns the name and the text of a file.
fn read_text(path: &Path) -> Result<(String, String), CliError> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path)
        .map_err(|source| CliError::File { path: path.to_path_buf(), source })?;
    let text = config::decode(&name, bytes)?;
    Ok((name, text))
}

fn read_layer(path: &Path) -> Result<Layer, CliError> {
    let (name, text) = read_text(path)?;
    Ok(match path.extension().and_then(|extension| extension.to_str()) {
        Some("py") => Layer::python(&name, &text)?,
        Some("toml") => Layer::toml(&name, &text)?,
        _ => {
            return Err(CliError::Usage {
                what: format!("{name}: neither a .toml nor a .py file"),
                hint: "a configuration is a TOML file or a nanoGPT .py file; `wgpt config init` \
                       writes one",
            });
        }
    })
}

/// The flags `--key=value` of all configuration keys, in nanoGPT's spelling or with dashes.
#[derive(Debug, Default)]
pub(super) struct ConfigFlags {
    typed: Vec<(String, String)>,
}

/// nanoGPT's options for Weights & Biases.
const WANDB: [&str; 3] = ["wandb_log", "wandb_project", "wandb_run_name"];

fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.name).chain([DATASET.name])
}

impl Args for ConfigFlags {
    fn augment_args(mut command: Command) -> Command {
        for key in KEYS.iter().chain([DATASET]) {
            let help = match key.default {
                "" | "\n" => key.help.to_string(),
                default => format!("{} [default: {default}]", key.help),
            };
            let mut arg = Arg::new(key.name)
                .long(key.name)
                .value_name("VALUE")
                .help(help)
                .help_heading(key.group)
                .allow_negative_numbers(true)
                .overrides_with(key.name);
            arg = match key.kind {
                Kind::Choice(words) => arg.value_parser(Suggested::new(words.iter().copied())),
                Kind::Bool => {
                    arg.value_parser(Suggested::new(["true", "false"])).hide_possible_values(true)
                }
                _ => arg,
            };
            if key.name.contains('_') {
                arg = arg.alias(key.name.replace('_', "-"));
            }
            command = command.arg(arg);
        }
        // nanoGPT's flags without a meaning here are accepted with a warning. `--device` has one.
        let ignored = IGNORED.iter().map(|key| key.name).filter(|name| !name.contains('*'));
        for name in ignored.filter(|name| *name != "device").chain(WANDB) {
            command = command.arg(Arg::new(name).long(name).hide(true));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConfigFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let ignored = IGNORED.iter().map(|key| key.name).chain(WANDB);
        for name in names().chain(ignored) {
            // `device` is a global flag of another type, `wandb_*` is a pattern.
            let Ok(Some(value)) = matches.try_get_one::<String>(name) else { continue };
            if name != "device" {
                self.typed.push((name.to_string(), value.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Arguments, Subcommands};

    fn flags(line: &str) -> Vec<(String, String)> {
        let words =
            ["wgpt", "train"].into_iter().chain(line.split(' ').filter(|word| !word.is_empty()));
        match Arguments::try_parse_from(words).unwrap().command {
            Some(Subcommands::Train(args)) => args.source.flags.typed,
            _ => panic!("not train"),
        }
    }

    #[test]
    fn both_spellings_of_a_key_are_read() {
        let want = vec![("batch_size".to_string(), "8".to_string())];
        for line in ["--batch_size=8", "--batch-size 8", "--batch_size=4 --batch-size=8"] {
            assert_eq!(flags(line), want, "{line}");
        }
        assert_eq!(flags("--compile=False --wandb_log=True --device cpu").len(), 2);
    }
}
