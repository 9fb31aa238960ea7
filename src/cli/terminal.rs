//! Text on the terminal: coloured messages on stderr, panics as messages, and results without foreign control
//! characters.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{Style, Styles};
use textwrap::{WordSeparator, WordSplitter};

use crate::protocol::Exit;
use crate::text::escape_terminal;
use crate::worker::flag_or_variable;
use crate::worker::signals::exit;

/// The labels at the beginning of a line, in the colours of clap's own messages.
const LABELS: [(&str, &Style); 4] = [
    ("error:", STYLES.get_error()),
    ("warning:", STYLES.get_invalid()),
    ("note:", STYLES.get_valid()),
    ("hint:", STYLES.get_valid()),
];

const STYLES: &Styles = &Styles::styled();

/// The beginning of the standard library's panic about a thread that the system does not start.
const NO_THREAD: &str = "failed to spawn thread";

/// Removes the text before the cursor. It may be a progress bar, also of another process, which draws
/// it again below.
const CLEAR_LINE: &str = "\r\u{1b}[2K";

/// Prints a message to stderr, wrapped at words. If stderr is closed, the message is lost, because that must
/// not end a run.
pub(super) fn message(text: &str) {
    unwrapped(&wrapped(text, &std::io::stderr()));
}

/// Returns text for `output`: on a terminal, its lines are wrapped at words and keep their indentation.
pub(super) fn wrapped<'a>(text: &'a str, output: &impl IsTerminal) -> Cow<'a, str> {
    if !output.is_terminal() {
        return text.into();
    }
    let lines = text.split('\n').map(|line| {
        let indent = &line[..line.len() - line.trim_start().len()];
        textwrap::fill(line, at_spaces(textwrap::termwidth()).subsequent_indent(indent))
    });
    lines.collect::<Vec<_>>().join("\n").into()
}

/// Prints a message like `message`, but does not wrap its lines, because a command to copy must stay on one.
pub(super) fn unwrapped(text: &str) {
    let stderr = std::io::stderr();
    let is_drawn = draws(&stderr);
    if cfg!(unix) && is_drawn {
        let _ = (&stderr).write_all(CLEAR_LINE.as_bytes());
    }
    let mut stderr = anstream::stderr().lock();
    if cfg!(windows) && is_drawn {
        // The stream knows whether this console reads escape sequences.
        let _ = stderr.write_all(CLEAR_LINE.as_bytes());
    }
    let _ = stderr.write_all(paint(&escape_terminal(text)).as_bytes());
}

/// Returns text for stdout: with visible control characters on a terminal, elsewhere unchanged.
pub(super) fn shown_on_stdout(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { escape_terminal(text).into() } else { text.into() }
}

/// Returns options that wrap text at `width` columns, but only at spaces: flags and paths stay whole.
pub(super) fn at_spaces<'a>(width: usize) -> textwrap::Options<'a> {
    textwrap::Options::new(width)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
}

/// Returns true if lines on `output` can be redrawn.
pub(super) fn draws(output: &impl IsTerminal) -> bool {
    output.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Adds colours to the labels of lines, and a line break.
fn paint(text: &str) -> String {
    let mut painted = String::new();
    for line in text.split('\n') {
        let words = line.trim_start();
        let indent = &line[..line.len() - words.len()];
        let label = LABELS.iter().find_map(|(label, style)| {
            words.strip_prefix(label).map(|rest| format!("{style}{label}{style:#}{rest}"))
        });
        painted += indent;
        painted += label.as_deref().unwrap_or(words);
        painted.push('\n');
    }
    painted
}

/// Sets for the whole process if messages have colours. `--color` decides, or else `WGPT_COLOR`. Without
/// them a terminal has colours, unless `NO_COLOR` is set or `TERM` is `dumb`. This reads the arguments
/// before clap does, because clap's errors have colours too.
pub(super) fn set_color(args: &[OsString]) {
    let choice = match flag_or_variable(color_flag(args), "WGPT_COLOR").as_deref() {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    };
    choice.write_global();
}

fn color_flag(args: &[OsString]) -> Option<&str> {
    let mut args = args.iter().filter_map(|arg| arg.to_str()).take_while(|arg| *arg != "--");
    let mut found = None;
    while let Some(arg) = args.next() {
        found = match arg.strip_prefix("--color") {
            Some("") => args.next(),
            Some(value) => value.strip_prefix('=').or(found),
            None => found,
        };
    }
    found
}

pub(super) fn has_color() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}

/// Reports a panic as an error message, without the paths of the machine that built wgpt.
pub(super) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let file = panic.location().map_or("", std::panic::Location::file);
        // These are caught and become an error message: in the crates that load the libraries of the
        // window, and in the one that reads Parquet.
        let caught = ["xkbcommon-dl", "wayland-sys", "parquet-"];
        if caught.iter().any(|name| file.contains(name)) {
            return;
        }
        let text = panic.payload_as_str().unwrap_or("no message");
        // Further lines are a library's backtrace.
        let text = text.lines().next().unwrap_or_default();
        if text.starts_with(NO_THREAD) {
            message(&format!("error: the system refused a thread: {text}"));
            message(
                "  hint: raise the limits of memory (`ulimit -v`) and of processes (`ulimit -u`), or \
                 close other programs",
            );
            exit(Exit::Failure as i32);
        }
        let place = panic.location().map_or_else(String::new, |location| {
            format!(" ({}:{})", without_machine(location.file()), location.line())
        });
        message(&format!("error: wgpt panicked: {text}{place}"));
        message("  hint: this is a bug in wgpt: please report it with this message");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            message(&trace.to_string());
        }
    }));
}

/// Returns the path of a source file from the folder of its crate on.
fn without_machine(file: &str) -> &str {
    let parts: Vec<&str> = file.split(['/', '\\']).collect();
    let folders = &parts[..parts.len() - 1];
    let source = folders.iter().rposition(|part| *part == "src");
    let first = source.map_or(folders.len(), |at| at.saturating_sub(1));
    let start: usize = parts[..first].iter().map(|part| part.len() + 1).sum();
    &file[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_paths_are_not_wrapped() {
        let lines = textwrap::wrap("see out/long-name or --max_time=8h", at_spaces(12));
        assert_eq!(lines, ["see", "out/long-name", "or", "--max_time=8h"]);
    }

    #[test]
    fn labels_at_the_start_of_a_line_have_colors() {
        let red = STYLES.get_error();
        let green = STYLES.get_valid();
        assert_eq!(
            paint("error: no error: here\n  hint: none"),
            format!("{red}error:{red:#} no error: here\n  {green}hint:{green:#} none\n")
        );
        assert_eq!(paint("step 1: an error: 2"), "step 1: an error: 2\n");
    }

    #[test]
    fn the_last_color_flag_counts() {
        let flag = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            color_flag(&args).map(str::to_string)
        };
        assert_eq!(flag("wgpt --color=always train").as_deref(), Some("always"));
        assert_eq!(flag("wgpt --color always train --color never").as_deref(), Some("never"));
        assert_eq!(flag("wgpt sample --colorful -- --color=always"), None);
    }

    #[test]
    fn paths_of_the_build_machine_are_cut_off() {
        for (file, want) in [
            ("src/cli/mod.rs", "src/cli/mod.rs"),
            ("/home/a/wgpt/src/cli/mod.rs", "wgpt/src/cli/mod.rs"),
            ("/home/a/.cargo/registry/src/index-1/burn-0.22.1/src/b.rs", "burn-0.22.1/src/b.rs"),
            (r"C:\a\registry\src\index-1\burn-0.22.1\src\b.rs", r"burn-0.22.1\src\b.rs"),
            ("/rustc/1234/library/core/src/option.rs", "core/src/option.rs"),
            ("/home/a/build/out.rs", "out.rs"),
        ] {
            assert_eq!(without_machine(file), want, "{file}");
        }
    }
}
