//! The command line: arguments -> a library call -> text, a progress bar or JSON lines.
//!
//! Results go to stdout, messages to stderr.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;

use crate::protocol::{Event, Exit, Failure};
use crate::ranks::Launch;
use crate::worker;

/// Prints a message to stderr.
macro_rules! message {
    ($($text:tt)*) => { $crate::cli::terminal::message(&format!($($text)*)) };
}

/// Prints a line of output to stdout.
macro_rules! output {
    ($($text:tt)*) => { $crate::cli::write_out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes to stdout, or ends the process: silently if the reader is gone (`| head`), with an error
/// if the disk is full.
fn write_out(text: impl Display) {
    let text = text.to_string();
    let text = terminal::shown_on_stdout(&text);
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()).map_err(output_error) {
        print_failure(&error, false);
        std::process::exit(error.exit as i32);
    }
}

/// Returns the error about output that cannot be written. If its reader is gone, like `head`, it has read
/// enough.
fn output_error(error: std::io::Error) -> Failure {
    let is_read = error.kind() == ErrorKind::BrokenPipe;
    let exit = if is_read { Exit::Success } else { Exit::Failure };
    let text = format!("cannot write the output: {error}");
    Failure { exit, ..Failure::new(text, "check that the disk has room") }
}

/// Prints an error, with `json` also as an event. A reader of stdout that is gone is not an error.
fn print_failure(failure: &Failure, json: bool) {
    if failure.exit == Exit::Success {
        return;
    }
    let event = Event::Error(failure.clone().into());
    message!("{}", event.labelled());
    if json {
        event_printer::print_event(&event);
    }
}

mod activity;
mod allocator;
mod args;
mod bench;
mod bench_result;
mod benchmark_row;
mod chat_loop;
mod commands;
mod eval;
mod event_printer;
mod export;
mod find_model;
mod get;
mod help;
mod kernels;
mod manual;
mod next;
mod on_finish;
mod pages;
mod plan;
mod recipe;
mod run_list;
mod sample;
mod sweep;
mod target;
mod terminal;
mod text_loss;
mod torch;
mod train;
mod typed_lines;

pub use allocator::Allocator;
use args::{Arguments, Subcommands};

/// Runs the command line of this process; returns its exit code.
#[allow(clippy::disallowed_methods, reason = "parses the command line")]
pub fn main() -> ExitCode {
    terminal::report_panics();
    allocator::report_limits();
    let args = headless_as_train(std::env::args_os());
    terminal::set_color(&args);
    let is_other_rank = Launch::of_this_process().is_some_and(|launch| launch.rank > 0);
    let arguments = match help::parse(&args, is_other_rank) {
        Ok(arguments) => arguments,
        Err(code) => {
            if is_other_rank {
                // Rank 0 prints it. The launcher ends all when the first one ends.
                std::thread::sleep(worker::REPORT_TIME);
            }
            return ExitCode::from(code);
        }
    };
    if !matches!(arguments.command, Some(Subcommands::Worker { .. })) {
        start_logging(arguments.global.verbose);
    }
    run(arguments).unwrap_or_else(|error| {
        print_failure(&error, false);
        ExitCode::from(error.exit as u8)
    })
}

/// Replaces `--headless` by `train`, and mpirun's `-np` by `-n`.
fn headless_as_train(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    // clap would read `-np` as `-n p`.
    let args = args.map(|arg| if arg == "-np" { "-n".into() } else { arg });
    let (headless, mut args): (Vec<_>, Vec<_>) = args.partition(|arg| arg == "--headless");
    if !headless.is_empty() && args.get(1).is_none_or(|arg| arg != "train") {
        args.insert(1, "train".into());
    }
    args
}

fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::ERROR,
        1 => LevelFilter::WARN,
        2 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(anstream::stderr)
        .with_ansi(terminal::has_color())
        .init();
}

fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { global, command, .. } = arguments;
    #[cfg(feature = "gui")]
    let Some(command) = command else { return window(arguments.window, &global) };
    #[cfg(feature = "gui")]
    if arguments.window.has_flags() {
        let text = "--demo, --screenshot-to and --theme open the window and take no command";
        return Err(Failure::usage(text, "leave out either the flags or the command"));
    }
    #[cfg(not(feature = "gui"))]
    let command = command.expect("clap requires a subcommand in a build without the window");
    match command {
        Subcommands::Train(args) => return train::run(args, &global, Vec::new(), 1),
        Subcommands::Launch(args) => return train::launch(args, &global),
        Subcommands::Sweep(args) => sweep::run(args, &global)?,
        Subcommands::Get(args) => get::run(args, &global)?,
        Subcommands::Prepare(args) => commands::prepare(args, &global)?,
        Subcommands::Sample(args) => sample::run(args, &global)?,
        Subcommands::Chat(args) => chat_loop::run(args, &global)?,
        Subcommands::Eval(args) => eval::run(args, &global)?,
        Subcommands::Runs { folder, json } => run_list::run(folder, json, &global)?,
        Subcommands::Compare { runs, output, json } => pages::compare(&runs, output, json)?,
        Subcommands::Report { run, output } => pages::report(run, output, &global)?,
        Subcommands::Export(args) => export::export(args, &global)?,
        Subcommands::Import { model, output, data } => {
            export::import(&model, &output, data.as_deref(), &global)?;
        }
        Subcommands::Devices { json } => commands::devices(json, &global),
        Subcommands::Doctor { kernels: true, json } => kernels::run(json, &global)?,
        Subcommands::Doctor { json, .. } => commands::doctor(json),
        Subcommands::Plan(args) => plan::run(args, &global)?,
        Subcommands::Bench(args) => bench::run(args, &global)?,
        Subcommands::Config(action) => commands::config(action)?,
        Subcommands::Presets => commands::presets(),
        Subcommands::Completions { shell } => help::completions(shell),
        Subcommands::Man { folder } => manual::run(&folder)?,
        Subcommands::Worker { rank: Some(rank) } => return train::rank(&rank),
        Subcommands::Worker { rank: None } => {
            return Ok(worker::serve(terminal::message, start_logging));
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "gui")]
fn window(args: args::WindowArgs, global: &args::Global) -> Result<ExitCode, Failure> {
    #[cfg(windows)]
    use crate::gui::explorer::{Owner, alert, owner};

    #[cfg(windows)]
    let owner = if args.no_console { Owner::Explorer } else { owner() };
    #[cfg(windows)]
    if owner == Owner::Other {
        return Ok(ExitCode::SUCCESS);
    }
    let args::WindowArgs { inputs, demo, screenshot_to: screenshot, theme, .. } = args;
    let unknown = inputs.iter().find_map(|path| help::unknown_command(path.as_os_str()));
    let mut options = crate::gui::environment();
    options.demo = demo;
    options.screenshot = screenshot;
    options.is_dark = theme.map(|theme| theme == "dark");
    options.overrides.device = global.device.clone().or(options.overrides.device);
    options.no_self_test = global.self_test().skip;
    options.inputs = inputs;
    let open = |()| crate::gui::open(options, crate::gui::App::new);
    let opened = unknown.map_or(Ok(()), Err).and_then(open);
    #[cfg(windows)]
    if let (Owner::Explorer, Err(error)) = (owner, &opened) {
        alert(&format!("{}\n\n{}", error.text, error.hint));
    }
    opened.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headless_is_train() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let read = |line: &str| headless_as_train(words(line).into_iter());
        assert_eq!(read("wgpt --headless --preset=demo"), words("wgpt train --preset=demo"));
        assert_eq!(read("wgpt train --headless"), words("wgpt train"));
        assert_eq!(read("wgpt sample out"), words("wgpt sample out"));
        assert_eq!(read("wgpt launch -np 4"), words("wgpt launch -n 4"));
    }
}
