//! Prints the events of a run as JSON lines, plain lines, or a progress bar with lines above it.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::activity::{Activity, spinner_style, style};
use super::next::next_step;
use super::print_failure;
use super::terminal::{draws, shown_on_stdout, unwrapped, wrapped};
use crate::plan::ExpectedBits;
use crate::protocol::{Event, Failure, Progress, RunPhase, StopReason};
use crate::runs::json_line;
use crate::text::duration;
use crate::worker::{RunOutput, SETTING_UP, print_set_up};

pub(super) struct EventPrinter {
    view: Display,
    json: bool,
    quiet: bool,
    progress: Progress,
    expected: Option<ExpectedBits>,
    /// The lowest bits per byte of the validation split so far.
    bits: Option<f64>,
}

enum Display {
    /// Only rank 0 prints.
    Silent,
    Json,
    Plain(Activity, LinePace),
    Bar(ProgressBar),
}

/// The pace of log lines in a file or a pipe.
struct LinePace {
    /// The time until the next line, and when it may be printed; `None` to print each.
    next: Option<(Duration, Instant)>,
    /// The skipped updates that the lines have told so far.
    skipped: u64,
}

impl LinePace {
    const FIRST: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(30);

    fn new(prints_each: bool) -> Self {
        Self { next: (!prints_each).then(|| (Self::FIRST, Instant::now())), skipped: 0 }
    }

    /// Returns true if a line is due, and waits longer for each one after it.
    fn is_due(&mut self, now: Instant) -> bool {
        let Some((wait, at)) = self.next else { return true };
        if now < at {
            return false;
        }
        self.next = Some((wait.mul_f64(1.25).min(Self::LONGEST), now + wait));
        true
    }
}

impl EventPrinter {
    /// Creates a progress bar on a terminal and plain lines elsewhere: each log line of the run if it `prints_each`, else
    /// one every 2 to 30 seconds.
    pub fn new(json: bool, quiet: bool, is_first: bool, prints_each: bool) -> Self {
        let is_drawn = draws(&std::io::stdout()) && draws(&std::io::stderr());
        let view = match (json, quiet) {
            _ if !is_first => Display::Silent,
            (true, _) => Display::Json,
            (false, true) => Display::Plain(Activity::Hidden, LinePace::new(true)),
            (false, false) if is_drawn => {
                let bar = ProgressBar::new(0).with_style(spinner_style());
                bar.enable_steady_tick(Duration::from_millis(250));
                Display::Bar(bar)
            }
            (false, false) => Display::Plain(Activity::lines(), LinePace::new(prints_each)),
        };
        Self { view, json, quiet, progress: Progress::default(), expected: None, bits: None }
    }

    /// Compares the result of the run with what was expected.
    pub fn expecting(self, expected: Option<ExpectedBits>) -> Self {
        Self { expected, ..self }
    }

    /// Returns the folder of the run, unless it never began, or a person has stopped it.
    pub fn ended_by_itself(&self) -> Option<&Path> {
        let is_stopped = self.progress.state == RunPhase::Finished(StopReason::Stopped);
        self.progress.run.as_deref().filter(|_| !is_stopped)
    }

    /// Returns a title and a text about a run that has ended.
    pub fn result(&self, run: &Path) -> [String; 2] {
        let name = run.file_name().unwrap_or(run.as_os_str()).to_string_lossy();
        match &self.progress.state {
            RunPhase::Failed(error) => [format!("{name} has failed"), error.text.clone()],
            _ => {
                let loss = self.progress.best_val_loss;
                let loss = loss.map(|loss| format!("Its best validation loss is {loss:.4}."));
                [format!("{name} has finished"), loss.unwrap_or_default()]
            }
        }
    }

    fn print(&self, event: &Event) {
        match event {
            Event::Paused { .. } | Event::Resumed { .. } if self.quiet => {}
            // Messages go to stderr, all other events to stdout.
            Event::Warning { .. }
            | Event::Error(_)
            | Event::Replan { .. }
            | Event::Waiting(_)
            | Event::Paused { .. }
            | Event::Resumed { .. } => message!("{}", event.labelled()),
            _ if self.quiet => {}
            Event::Done { reason, .. } => {
                line(&event.to_string());
                if let (StopReason::Finished, Some(expected), Some(bits)) =
                    (reason, self.expected, self.bits)
                {
                    line(&expected.verdict(bits));
                }
                let Progress { entropy_floor, best_val_loss, .. } = self.progress;
                if let (Some(floor), Some(best)) = (entropy_floor, best_val_loss) {
                    let above = best - floor;
                    line(&format!(
                        "lowest possible loss on this data: {floor:.4} ({above:.4} above it)"
                    ));
                }
                if let Some(next) = next_step(&self.progress) {
                    unwrapped(&next);
                }
            }
            event => line(&event.labelled()),
        }
    }
}

impl RunOutput for EventPrinter {
    /// Prints an event. Output that cannot be written is lost: that must not end a run.
    fn emit(&mut self, event: &Event) {
        self.progress.apply(event);
        if let Event::Eval { bits_per_byte: Some(bits), .. } = event {
            self.bits = Some(self.bits.map_or(*bits, |lowest| lowest.min(*bits)));
        }
        self.progress.curves.forget_steps();
        // They are printed once. The last sample has the prompt of the next step.
        let Progress { samples, checkpoints, log, .. } = &mut self.progress;
        samples.drain(..samples.len().saturating_sub(1));
        checkpoints.clear();
        log.clear();
        match &mut self.view {
            Display::Silent => {}
            Display::Json => {
                print_event(event);
                // A worker prints none of its errors.
                if matches!(event, Event::Error(_)) {
                    message!("{}", event.labelled());
                }
            }
            Display::Plain(activity, pace) => match event {
                Event::Working(working) => activity.show(working.to_string()),
                Event::Step(step) if !self.quiet => {
                    activity.clear();
                    if pace.is_due(Instant::now()) {
                        line(&step.line(pace.skipped));
                        pace.skipped = step.skipped;
                    }
                }
                event => {
                    activity.clear();
                    self.print(event);
                }
            },
            Display::Bar(bar) => {
                draw(bar, &self.progress);
                if !matches!(event, Event::Working(_) | Event::Step(_)) {
                    bar.clone().suspend(|| self.print(event));
                }
            }
        }
    }

    fn say(&self, text: &str) {
        match &self.view {
            Display::Bar(bar) => bar.suspend(|| message!("{text}")),
            Display::Json | Display::Plain(..) => message!("{text}"),
            Display::Silent => {}
        }
    }

    fn set_up(&mut self) -> Option<Sender<()>> {
        if matches!(self.view, Display::Json) {
            return Some(print_set_up(print_event));
        }
        self.emit(&SETTING_UP);
        None
    }

    fn on_failure(&self) -> fn(&Failure) {
        if self.json {
            |failure| print_failure(failure, true)
        } else {
            |failure| print_failure(failure, false)
        }
    }
}

pub(super) fn print_event(event: &Event) {
    // One line, also on a terminal, which mpirun gives to its ranks.
    let _ = writeln!(std::io::stdout(), "{}", shown_on_stdout(&json_line(event)));
}

fn line(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{}", wrapped(&shown_on_stdout(text), &stdout));
}

fn draw(bar: &ProgressBar, progress: &Progress) {
    if progress.has_ended() {
        return bar.finish_and_clear();
    }
    if progress.max_iters > 0 && bar.length() != Some(progress.max_iters) {
        // The text is cut at the end of the line and never wraps.
        bar.set_style(style("[{bar:12}] {pos}/{len} {wide_msg}"));
        bar.set_length(progress.max_iters);
    }
    bar.set_position(progress.iteration);
    bar.set_message(text(progress));
}

/// Returns the text next to the bar, the most important figures first.
fn text(progress: &Progress) -> String {
    let parts = [
        progress.working.map(|working| working.to_string()),
        progress.loss.map(|loss| format!("loss {loss:.4}")),
        progress.val_loss.map(|loss| format!("val {loss:.4}")),
        progress.remaining().map(|left| format!("{} left", duration(left))),
        progress.tokens_per_s.map(|speed| format!("{speed:.0} tokens/s")),
        progress.last_step.as_ref().and_then(|step| Some(step.health?.to_string())),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Sample;

    /// A run of 600,000 updates in the middle of an evaluation.
    fn evaluating() -> Progress {
        let mut progress = Progress { max_iters: 600_000, ..Progress::default() };
        for line in [
            r#"{"event":"eval","iter":0,"train_loss":10.98765,"val_loss":10.98764}"#,
            r#"{"event":"step","iter":2000,"loss":10.1234,"lr":6e-4,"grad_norm":1.0,"tokens":491520,
                "ms":12345.678,"tokens_per_s":39813.1}"#,
            r#"{"event":"working","task":"evaluation","done":37,"total":400}"#,
        ] {
            progress.apply(&serde_json::from_str(line).unwrap());
        }
        progress
    }

    #[test]
    fn lines_come_by_time_and_ever_more_slowly() {
        let mut pace = LinePace::new(false);
        let start = Instant::now() + Duration::from_secs(1);
        let times = (0..7200).map(|tenths| Duration::from_millis(100 * tenths));
        let printed: Vec<f64> = times
            .filter(|time| pace.is_due(start + *time))
            .map(|time| time.as_secs_f64())
            .collect();
        assert_eq!(printed[..3], [0.0, 2.0, 4.5]);
        let waits: Vec<f64> = printed.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1] + 0.2), "{waits:?}");
        assert!((29.8..30.3).contains(&waits[waits.len() - 1]), "{waits:?}");
        assert!(printed.len() < 40, "{printed:?}");
        let mut each = LinePace::new(true);
        assert!((0..9).all(|_| each.is_due(start)));
    }

    #[test]
    fn a_bar_counts_the_updates_of_a_run() {
        let bar = ProgressBar::hidden();
        draw(&bar, &evaluating());
        assert_eq!((bar.position(), bar.length()), (2001, Some(600_000)));
        assert!(bar.message().starts_with("evaluating 37/400, loss 10.1234, val"), "{bar:?}");
    }

    #[test]
    fn the_text_next_to_a_bar_has_rounded_times() {
        let mut progress = evaluating();
        progress.working = None;
        let want = "loss 10.1234, val 10.9876, 85d 11h left, 39813 tokens/s";
        assert_eq!(text(&progress), want);
        let mut step = progress.last_step.take().unwrap();
        step.health = serde_json::from_str(r#"{"utilization":0.97,"celsius":71.0}"#).unwrap();
        progress.last_step = Some(step);
        assert_eq!(text(&progress), format!("{want}, 97% busy, 71 °C"));
    }

    #[test]
    fn a_long_run_takes_no_more_memory_than_a_short_one() {
        let progress = evaluating();
        let mut printer = EventPrinter {
            view: Display::Silent,
            json: false,
            quiet: true,
            progress,
            expected: None,
            bits: None,
        };
        for iter in 0..9 {
            let text = format!("text {iter}");
            let prompt = String::new();
            printer.emit(&Event::Sample(Sample { iter, prompt, text, tokens: vec![] }));
            printer.emit(&Event::Warning { text: "hot".into() });
        }
        let Progress { samples, log, .. } = printer.progress;
        assert_eq!((samples.len(), samples[0].iter, log.len()), (1, 8, 0));
    }
}
