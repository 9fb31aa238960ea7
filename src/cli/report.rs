//! The output of a run: JSON lines, plain lines, or a progress bar with lines above it.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::progress::Progress;
use crate::protocol::Event;
use crate::train::json_line;

/// A printer of the events of a run.
pub(super) struct Report {
    view: View,
    progress: Progress,
}

enum View {
    Json,
    Plain { quiet: bool },
    Bar(ProgressBar),
}

impl Report {
    /// Creates a progress bar on a terminal, plain lines elsewhere.
    pub fn new(json: bool, quiet: bool) -> Self {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let view = if json {
            View::Json
        } else if terminal && !dumb && !quiet {
            View::Bar(bar())
        } else {
            View::Plain { quiet }
        };
        Self { view, progress: Progress::default() }
    }

    /// Prints an event. Output that cannot be written is lost: that must not end a run.
    pub fn show(&mut self, event: &Event) {
        if !matches!(self.view, View::Json) {
            self.progress.apply(event);
            self.progress.forget_steps();
        }
        match &self.view {
            View::Json => print_event(event),
            View::Plain { quiet } => match event {
                Event::Paused { .. } | Event::Resumed { .. } if *quiet => {}
                event if is_message(event) => message!("{event}"),
                _ if *quiet => {}
                event => self.print(event),
            },
            View::Bar(bar) => {
                bar.set_length(self.progress.max_iters);
                bar.set_position(self.progress.iteration);
                bar.set_message(message(&self.progress));
                if matches!(event, Event::Done { .. }) {
                    bar.finish_and_clear();
                }
                match event {
                    Event::Step(_) => {}
                    event if is_message(event) => bar.suspend(|| message!("{event}")),
                    event => bar.suspend(|| self.print(event)),
                }
            }
        }
    }

    fn print(&self, event: &Event) {
        line(&event.to_string());
        let known = (self.progress.entropy_floor, self.progress.best_val_loss);
        if let (Event::Done { .. }, (Some(floor), Some(best))) = (event, known) {
            let above = best - floor;
            line(&format!(
                "the entropy of this data is {floor:.4}: no model can get below; {above:.4} to go"
            ));
        }
    }
}

/// Returns true for messages, which go to stderr; the rest is output on stdout.
fn is_message(event: &Event) -> bool {
    match event {
        Event::Warning { .. }
        | Event::Error { .. }
        | Event::Replan { .. }
        | Event::Waiting { .. }
        | Event::Paused { .. }
        | Event::Resumed { .. } => true,
        Event::Start { .. }
        | Event::Plan(_)
        | Event::Step(_)
        | Event::Eval { .. }
        | Event::Sample { .. }
        | Event::Checkpoint { .. }
        | Event::Done { .. } => false,
    }
}

/// Prints an event as a JSON line to stdout.
pub(super) fn print_event(event: &Event) {
    line(&json_line(event));
}

fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
    ProgressBar::new(0).with_style(style)
}

fn message(progress: &Progress) -> String {
    let mut parts = Vec::new();
    if let Some(loss) = progress.loss {
        parts.push(format!("loss {loss:.4}"));
    }
    if let Some(loss) = progress.val_loss {
        parts.push(format!("val {loss:.4}"));
    }
    if let Some(speed) = progress.tokens_per_s {
        parts.push(format!("{speed:.0} tokens/s"));
    }
    if let Some(seconds) = progress.seconds_left() {
        let left = std::time::Duration::from_secs(seconds as u64);
        parts.push(format!("{} left", humantime::format_duration(left)));
    }
    parts.join(", ")
}
