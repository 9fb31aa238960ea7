//! The arguments of a configuration: a file, a preset, and a flag for each setting.

use std::path::PathBuf;

use chrono::Local;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};

use super::values::Suggested;
use crate::config::{
    ConfigSource, DATASET, IGNORED, KEYS, RunLength, ValueKind, moment_text, next_moment,
    preset_names,
};

/// The settings that `-h` shows; `--help` shows all.
const FREQUENT: &str = "data init_from arch n_layer n_head n_embd block_size batch_size vram_budget \
                        dtype learning_rate max_iters max_time";

/// nanoGPT's options for Weights & Biases.
const WANDB: [&str; 3] = ["wandb_log", "wandb_project", "wandb_run_name"];

/// A file, `--preset`, and a flag `--key=value` for each setting, in nanoGPT's spelling or with dashes.
impl Args for ConfigSource {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("file")
            .value_name("CONFIG")
            .value_parser(value_parser!(PathBuf))
            .help("TOML file, or nanoGPT .py file (read, not executed)");
        let presets = preset_names().collect::<Vec<_>>().join(", ");
        let preset = Arg::new("preset")
            .long("preset")
            .value_name("NAME")
            .value_parser(Suggested::new(preset_names()))
            .hide_possible_values(true)
            .help("Built-in configuration, like demo, gpt2 or card-12gb")
            .long_help(format!("Built-in configuration: {presets}"));
        let mut command = command.args([file, preset]);
        for key in KEYS.iter().chain([DATASET]) {
            let help = match key.default {
                "" | "\n" => key.help.to_string(),
                default => format!("{} [default: {default}]", key.help),
            };
            let is_frequent = FREQUENT.split(' ').any(|name| name == key.name);
            let mut arg = Arg::new(key.name)
                .long(key.name)
                .value_name("VALUE")
                .help(help)
                .help_heading(key.group)
                .hide_short_help(!is_frequent)
                // The help of frequent settings and of booleans says them.
                .hide_possible_values(is_frequent || key.kind == ValueKind::Bool)
                .allow_negative_numbers(true)
                .overrides_with(key.name);
            arg = match key.kind {
                ValueKind::Choice(words) => arg.value_parser(Suggested::new(words.iter().copied())),
                ValueKind::Bool => arg.value_parser(Suggested::new(["true", "false"])),
                ValueKind::Moment => arg.value_parser(parse_end).visible_alias("until"),
                _ => arg,
            };
            if key.name == "max_time" {
                arg = arg.visible_alias("time");
            }
            if key.name.contains('_') {
                arg = arg.alias(key.name.replace('_', "-"));
            }
            command = command.arg(arg);
        }
        let lengths = ["tokens", "epochs"];
        let tokens = Arg::new("tokens")
            .value_name("N")
            .value_parser(RunLength::parse_tokens)
            .help("tokens to train on, like 1B, instead of max_iters");
        let epochs = Arg::new("epochs")
            .value_name("N")
            .value_parser(RunLength::parse_epochs)
            .help("passes over the data, instead of max_iters");
        for (name, arg) in lengths.into_iter().zip([tokens, epochs]) {
            let group = KEYS.iter().find(|key| key.name == "max_iters").map(|key| key.group);
            let arg = arg.long(name).help_heading(group).allow_negative_numbers(true);
            let others = lengths.into_iter().filter(|other| *other != name);
            command = command.arg(arg.conflicts_with_all(others.chain(["max_iters"])));
        }
        // nanoGPT's flags without a meaning here are accepted with a warning. `--device` has one.
        let ignored = IGNORED.iter().map(|(name, _)| *name).filter(|name| !name.contains('*'));
        for name in ignored.filter(|name| *name != "device").chain(WANDB) {
            command = command.arg(Arg::new(name).long(name).hide(true));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns an `end_at`, also of a time of day.
fn parse_end(text: &str) -> Result<String, String> {
    let moment = next_moment(text, &Local::now());
    let is_absolute = text.trim().is_empty() || ValueKind::Moment.parse(text).is_ok();
    match moment {
        Some(moment) => Ok(moment_text(&moment)),
        None if is_absolute => Ok(text.trim().into()),
        None => Err("give a moment in the future, like 07:30 or 2026-11-28 07:30".into()),
    }
}

impl FromArgMatches for ConfigSource {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut source = Self::default();
        source.update_from_arg_matches(matches)?;
        Ok(source)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one("file").cloned();
        self.preset = matches.get_one("preset").cloned();
        self.length = ["tokens", "epochs"].iter().find_map(|name| matches.get_one(name).copied());
        let names = KEYS.iter().chain([DATASET]).map(|key| key.name);
        for name in names.chain(IGNORED.iter().map(|(name, _)| *name)).chain(WANDB) {
            // `device` is a global flag of another type, `wandb_*` is a pattern.
            let Ok(Some(value)) = matches.try_get_one::<String>(name) else { continue };
            if name != "device" {
                self.flags.push((name.to_string(), value.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Arguments, Subcommands};

    fn flags(line: &str) -> Vec<(String, String)> {
        let words =
            ["wgpt", "train"].into_iter().chain(line.split(' ').filter(|word| !word.is_empty()));
        match Arguments::try_parse_from(words).unwrap().command {
            Some(Subcommands::Train(args)) => args.source.flags,
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

    #[test]
    fn a_run_can_end_by_the_clock() {
        for spelling in ["until", "end_at", "end-at"] {
            let found = flags(&format!("--{spelling}=07:30"));
            let [(key, text)] = &found[..] else { panic!("{found:?}") };
            assert!(key == "end_at" && text.contains("T07:30:00"), "{found:?}");
            // It is written as it was read.
            assert_eq!(flags(&format!("--{spelling}={text}")), found);
        }
        assert_eq!(flags("--until="), [("end_at".to_string(), String::new())]);
        for wrong in ["tonight", "2020-01-31 07:30", "8h"] {
            let error = Arguments::try_parse_from(["wgpt", "train", "--until", wrong]).unwrap_err();
            assert!(error.to_string().contains("in the future, like 07:30"), "{error}");
        }
    }
}
