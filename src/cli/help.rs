//! Help, completions, and suggestions for mistyped commands.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use clap_complete::Shell;

use super::args::{Arguments, DEBUGGING, EVERYWHERE};
use crate::config;
use crate::protocol::Failure;
use crate::version::VERSION;

/// Parses the arguments of this process. If they are wrong or ask for help, prints an error or the help,
/// unless this is `silent`, and returns the exit code.
pub(super) fn parse(args: &[OsString], silent: bool) -> Result<Arguments, u8> {
    let mut command = Arguments::command();
    if args.iter().any(|arg| arg == "--help-all") {
        command = show_debugging(command);
    } else if args.iter().any(|arg| arg == "-h") {
        command = in_one_group(command);
    }
    let matches = command.try_get_matches_from(args);
    matches.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(|error| {
        if silent {
            return error.exit_code() as u8;
        }
        // A mistyped command is the name of a file for the window, which takes few flags.
        if error.kind() == ErrorKind::UnknownArgument
            && let Some(unknown) = first_word(args).and_then(unknown_command)
        {
            super::print_failure(&unknown, false);
            return unknown.exit as u8;
        }
        // An error quotes the arguments. Help does not, and has styles.
        let has_control = args.iter().any(|arg| arg.to_string_lossy().contains(char::is_control));
        if error.use_stderr() && has_control {
            super::terminal::message(error.render().to_string().trim_end());
        } else {
            let _ = error.print();
        }
        // clap's own exit codes: 0 for help and version, 2 for usage.
        error.exit_code() as u8
    })
}

fn show_debugging(command: Command) -> Command {
    let is_hidden = |arg: &Arg| arg.get_help_heading() == Some(DEBUGGING);
    command
        .mut_args(|arg| if is_hidden(&arg) { arg.hide(false) } else { arg })
        .mut_subcommands(show_debugging)
}

/// Puts the few settings that `-h` shows into one group: their own groups have one or two each.
fn in_one_group(command: Command) -> Command {
    let is_setting =
        |arg: &Arg| config::KEYS.iter().any(|key| arg.get_help_heading() == Some(key.group));
    let heading = |arg: Arg| match arg.get_help_heading() {
        Some(EVERYWHERE) => arg.help_heading(None),
        _ if is_setting(&arg) => arg.help_heading("frequent settings"),
        _ => arg,
    };
    command.mut_args(heading).mut_subcommands(in_one_group)
}

/// Returns the first argument that is neither a flag nor the value of one.
fn first_word(args: &[OsString]) -> Option<&OsStr> {
    let command = Arguments::command();
    let takes_value = |flag: &OsStr| {
        let name = flag.to_str().and_then(|flag| flag.strip_prefix("--"));
        let mut flags = command.get_arguments().filter(|arg| arg.get_action().takes_values());
        name.is_some() && flags.any(|arg| arg.get_long() == name)
    };
    let is_flag = |arg: &OsStr| arg.to_str().is_some_and(|arg| arg.starts_with('-'));
    let mut words = args.windows(2).filter(|pair| !is_flag(&pair[1]) && !takes_value(&pair[0]));
    words.next().map(|pair| pair[1].as_os_str())
}

/// Returns the error for a word that is neither a command nor a file, with the most similar command.
pub(super) fn unknown_command(word: &OsStr) -> Option<Failure> {
    let command = Arguments::command();
    let names = || command.get_subcommands().map(Command::get_name).chain(["help"]);
    if Path::new(word).exists() || names().any(|name| name == word) {
        return None;
    }
    let word = word.to_string_lossy();
    let nearest = config::most_similar(&word, names());
    let meant = nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
    let text = format!("`{word}` is neither a command nor a file{meant}");
    Some(Failure::usage(text, "`wgpt --help` lists the commands"))
}

/// Returns a command without its hidden flags and commands, which clap would complete too.
fn visible(command: &Command) -> Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    let shown = Command::new(command.get_name().to_string());
    let shown = if command.get_version().is_some() { shown.version(VERSION) } else { shown };
    shown.about(about).args(args.cloned()).subcommands(commands.map(visible))
}

pub(super) fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&Arguments::command()), "wgpt", &mut script);
    super::write_out(String::from_utf8_lossy(&script));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn help(path: &[&str], all: bool) -> String {
        let command = Arguments::command();
        let mut command = if all { show_debugging(command) } else { command };
        command.build();
        let last = path.iter().fold(&mut command, |command, name| {
            command.find_subcommand_mut(name).expect("a command")
        });
        last.render_long_help().to_string()
    }

    #[test]
    fn the_definition_is_valid() {
        Arguments::command().debug_assert();
        show_debugging(Arguments::command()).debug_assert();
    }

    #[test]
    fn short_help_fits_a_screen() {
        let mut command = in_one_group(Arguments::command()).term_width(80);
        command.build();
        for command in command.get_subcommands_mut() {
            let most = if command.get_name() == "train" { 48 } else { 58 };
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= most, "{help}");
        }
    }

    #[test]
    fn a_mistyped_command_is_corrected() {
        for (word, meant) in [
            ("trian", "`train`?"),
            ("smaple", "`sample`?"),
            ("run", "`runs`?"),
            ("xyzzy", "a file"),
        ] {
            let error = unknown_command(word.as_ref()).expect(word).text;
            assert!(error.ends_with(meant), "{error}");
        }
        for known in ["train", "Cargo.toml", "help"] {
            assert!(unknown_command(known.as_ref()).is_none(), "{known}");
        }
    }

    #[test]
    fn the_first_word_is_no_flag_and_no_value() {
        let args = words("wgpt --device cpu -v --color=never trian --preset=demo");
        assert_eq!(first_word(&args), Some("trian".as_ref()));
        assert_eq!(first_word(&words("wgpt --demo --quiet")), None);
    }

    #[test]
    fn help_has_examples_and_shows_debugging_flags_on_request_only() {
        for path in [&["train"][..], &["sample"], &[]] {
            for all in [false, true] {
                let text = help(path, all);
                assert!(text.contains("Examples:\n  wgpt"), "{text}");
                assert_eq!(text.contains("--ops"), all, "{path:?}: {text}");
            }
        }
        assert!(help(&["train"], true).contains("--no-supervise"));
        assert!(!help(&["train"], true).contains("--supervised"));
        assert!(help(&[], false).contains("--headless"));
    }

    #[test]
    fn examples_fit_a_terminal_and_parse() {
        let command = Arguments::command();
        let commands = command.get_subcommands().chain([&command]);
        let texts: Vec<String> =
            commands.filter_map(|command| Some(command.get_after_help()?.to_string())).collect();
        let examples = || texts.iter().flat_map(|text| text.lines().skip(1));
        assert!(examples().count() > 15, "{texts:#?}");
        for line in examples() {
            assert!(line.chars().count() <= 80, "{line}");
            let (_, line) = line.split_once("wgpt").expect("an example of wgpt");
            let line = line.split("  ").next().unwrap_or_default();
            let (mut args, mut quoted) = (vec![String::from("wgpt")], false);
            for c in line.trim_end().chars() {
                match (c, args.last_mut()) {
                    ('"', _) => quoted = !quoted,
                    (' ', _) if !quoted => args.push(String::new()),
                    (c, Some(arg)) => arg.push(c),
                    (_, None) => {}
                }
            }
            // A redirection is the shell's.
            args.retain(|arg| !arg.starts_with('<'));
            if let Err(error) = Arguments::command().try_get_matches_from(&args) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn completions_list_presets_and_choices() {
        let mut script = Vec::new();
        let mut command = visible(&Arguments::command());
        clap_complete::generate(Shell::Bash, &mut command, "wgpt", &mut script);
        let script = String::from_utf8(script).unwrap();
        for values in
            ["demo chat shakespeare-char", "tanh erf", "float32 tf32", "gpt2 char", "vulkan"]
        {
            assert!(script.contains(values), "{values}");
        }
        assert!(script.contains("--version"));
        for hidden in ["--ops", "--rank-limit", "--no-supervise", "worker"] {
            assert!(!script.contains(hidden), "{hidden}");
        }
    }
}
