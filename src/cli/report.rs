//! Events as JSON lines, as plain lines, or as a bar with lines above it.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::progress::Progress;
use crate::protocol::Event;

/// Shows the events of a run.
pub(super) enum Report {
    Json,
    Plain { quiet: bool },
    Bar { bar: ProgressBar, progress: Progress },
}

impl Report {
    /// A bar on a terminal, plain lines elsewhere.
    pub fn new(json: bool, quiet: bool) -> Self {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        if json {
            Report::Json
        } else if terminal && !dumb && !quiet {
            let style = "{elapsed_precise} [{bar:30}] {pos}/{len} {msg}";
            let style = ProgressStyle::with_template(style)
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> ");
            let bar = ProgressBar::new(0).with_style(style);
            Report::Bar { bar, progress: Progress::default() }
        } else {
            Report::Plain { quiet }
        }
    }

    /// Shows one event. What cannot be written is lost: a run does not end because nobody reads it.
    pub fn show(&mut self, event: &Event) {
        match self {
            Report::Json => {
                let _ = writeln!(std::io::stdout(), "{}", event.to_json());
            }
            Report::Plain { quiet } => {
                if matches!(event, Event::Warning { .. }) {
                    eprintln!("{event}");
                } else if !*quiet {
                    let _ = writeln!(std::io::stdout(), "{event}");
                }
            }
            Report::Bar { bar, progress } => {
                progress.apply(event);
                bar.set_length(progress.max_iters);
                bar.set_position(progress.iteration);
                bar.set_message(message(progress));
                if !matches!(event, Event::Step(_)) {
                    bar.suspend(|| {
                        let _ = writeln!(std::io::stdout(), "{event}");
                    });
                }
                if matches!(event, Event::Done { .. }) {
                    bar.finish_and_clear();
                }
            }
        }
    }
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
