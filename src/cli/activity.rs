//! Shows the progress of long work.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::terminal::draws;
use crate::text::escape_line;

/// Shows on stderr what a command does: on a terminal a line that is redrawn, elsewhere a line every ten
/// seconds.
pub(super) enum Activity {
    Hidden,
    Spinner(Option<ProgressBar>),
    Lines(Lines),
}

impl Activity {
    pub fn new(quiet: bool) -> Self {
        if quiet {
            Activity::Hidden
        } else if draws(&std::io::stderr()) {
            Activity::Spinner(None)
        } else {
            Activity::lines()
        }
    }

    pub fn lines() -> Self {
        Activity::Lines(Lines::new(Duration::from_secs(10), |text| message!("{text}")))
    }

    /// Shows `text` until the next call.
    pub fn show(&mut self, text: String) {
        let text = escape_line(&text);
        match self {
            Activity::Hidden => {}
            Activity::Spinner(bar) => {
                let bar = bar.get_or_insert_with(|| {
                    let bar = ProgressBar::new_spinner().with_style(spinner_style());
                    bar.enable_steady_tick(Duration::from_millis(120));
                    bar
                });
                bar.set_message(text);
            }
            Activity::Lines(lines) => lines.set(Some(text)),
        }
    }

    pub fn clear(&mut self) {
        match self {
            Activity::Hidden => {}
            // A bar that is dropped clears its line.
            Activity::Spinner(bar) => *bar = None,
            Activity::Lines(lines) => lines.set(None),
        }
    }
}

/// The style for work of unknown length. The text is cut at the end of the line.
pub(super) fn spinner_style() -> ProgressStyle {
    style("{spinner} {wide_msg}")
}

/// Returns a bar of `length` steps on stderr.
pub(super) fn bar(is_hidden: bool, length: u64, template: &str) -> ProgressBar {
    let bar = if is_hidden { ProgressBar::hidden() } else { ProgressBar::new(length) };
    bar.set_length(length);
    bar.with_style(style(template))
}

pub(super) fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// Prints text at an interval while it is set, on a thread, because the work may block. The text is stored with
/// the time at which it was set or printed last.
pub(super) struct Lines(Arc<Mutex<Option<(String, Instant)>>>);

impl Lines {
    fn new(interval: Duration, print: impl Fn(&str) + Send + 'static) -> Self {
        let line = Arc::new(Mutex::new(None::<(String, Instant)>));
        let weak = Arc::downgrade(&line);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(interval / 20);
                let Some(line) = weak.upgrade() else { return };
                let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((text, since)) = line.as_mut()
                    && since.elapsed() >= interval
                {
                    print(text);
                    *since = Instant::now();
                }
            }
        });
        Self(line)
    }

    /// Changes the text, but not the time since it was printed.
    fn set(&self, text: Option<String>) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = line.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        *line = text.map(|text| (text, since));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn only_work_that_lasts_is_printed() {
        let interval = Duration::from_millis(100);
        let (sender, receiver) = channel();
        let lines = Lines::new(interval, move |text| {
            let _ = sender.send(text.to_string());
        });
        lines.set(Some("short".into()));
        lines.set(None);
        let (began, mut printed) = (Instant::now(), Vec::new());
        while printed.is_empty() && began.elapsed() < 100 * interval {
            // A change of the text does not begin the time anew.
            lines.set(Some("long".into()));
            std::thread::sleep(interval / 10);
            printed.extend(receiver.try_iter());
        }
        assert!(began.elapsed() >= interval * printed.len() as u32, "{printed:?}");
        assert!(!printed.is_empty() && printed.iter().all(|text| text == "long"), "{printed:?}");
        // The thread ends with the value, and the channel with the thread.
        drop(lines);
        assert!(receiver.iter().all(|text| text == "long"));
    }
}
