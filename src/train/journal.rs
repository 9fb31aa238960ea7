//! The events of a run on their way to its folder and to the process that started it.

use std::time::Duration;

use web_time::Instant;

use crate::gpu::Watchdog;
use crate::model::LossScale;
use crate::protocol::{Event, Exit, Failure, Task, Working};
use crate::runs::{RunFolder, has_checkpoint};

/// The time between two reports, and from the start of the work to the first.
const INTERVAL: Duration = Duration::from_millis(250);

/// The same for an update. Those that are shorter have their results to show.
const STEP_INTERVAL: Duration = Duration::from_secs(2);

/// Records events in the run folder, and sends them to the process that started the run.
pub(super) struct Journal<'a> {
    pub folder: RunFolder,
    watchdog: Watchdog,
    emit: &'a mut dyn FnMut(&Event),
}

impl<'a> Journal<'a> {
    pub fn new(folder: RunFolder, watchdog: &Watchdog, emit: &'a mut dyn FnMut(&Event)) -> Self {
        Self { folder, watchdog: watchdog.clone(), emit }
    }

    pub fn emit(&mut self, event: Event) {
        // The reader of stdout may be slow.
        let silence = self.watchdog.allow_silence(Duration::MAX);
        // A full disk must not end the run at a log line.
        let _ = self.folder.record(&event);
        let failed = self.folder.scalars.append(&event);
        (self.emit)(&event);
        drop(silence);
        for text in failed {
            self.warn(text);
        }
    }

    pub fn warn(&mut self, text: impl Into<String>) {
        self.emit(Event::Warning { text: text.into() });
    }

    /// Begins to report `task`, which has `total` parts, or an unknown number if that is 0. Views would
    /// stand still meanwhile.
    pub fn report(&mut self, task: Task, total: u64) -> TaskReporter<'_> {
        let interval = if task == Task::Step { STEP_INTERVAL } else { INTERVAL };
        TaskReporter {
            working: Working { task, done: 0, total },
            watchdog: &self.watchdog,
            emit: self.emit,
            interval,
            reported: Instant::now(),
        }
    }

    /// Returns the error of a run whose loss or gradient was not finite after `iter` updates.
    pub fn not_finite(&self, iter: u64, scaling: Option<LossScale>) -> Failure {
        let (first, or) = if has_checkpoint(&self.folder.path) {
            ("continue from the last checkpoint with --resume and", "start again with")
        } else {
            ("start again with", "with")
        };
        let mut hint = format!("{first} a lower learning_rate or a higher warmup_iters");
        let text = match scaling {
            None => format!("the loss or the gradient is not finite at iteration {iter}"),
            Some(LossScale { scale, skipped_in_a_row, .. }) => {
                hint += &format!(", or {or} --dtype=float32, which has a larger range");
                format!(
                    "loss scaling has skipped {skipped_in_a_row} updates in a row, up to iteration \
                     {iter}: their gradients are not finite in float16, even with a scale of {scale}"
                )
            }
        };
        Failure { exit: Exit::NotFinite, is_common: true, ..Failure::new(text, hint) }
    }
}

pub(super) struct TaskReporter<'a> {
    working: Working,
    watchdog: &'a Watchdog,
    emit: &'a mut dyn FnMut(&Event),
    interval: Duration,
    reported: Instant,
}

impl TaskReporter<'_> {
    /// Reports that `done` parts are done, if that is due.
    pub fn report(&mut self, done: u64) {
        if self.reported.elapsed() >= self.interval {
            self.announce(done);
        }
    }

    /// Reports at once, before work that cannot report itself.
    pub fn announce(&mut self, done: u64) {
        // The reader of stdout may be slow.
        let _silence = self.watchdog.allow_silence(Duration::MAX);
        self.working.done = done;
        (self.emit)(&Event::Working(self.working));
        self.reported = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_lasts_is_reported() {
        let watchdog = Watchdog::new(true);
        let mut seen = Vec::new();
        let working = |done| Working { task: Task::Evaluation, done, total: 9 };
        let mut reporter = TaskReporter {
            working: working(0),
            watchdog: &watchdog,
            emit: &mut |event: &Event| seen.push(event.clone()),
            interval: INTERVAL,
            reported: Instant::now(),
        };
        for (done, interval) in [(1, 3600), (2, 0), (3, 3600), (4, 0)] {
            reporter.interval = Duration::from_secs(interval);
            reporter.report(done);
        }
        assert_eq!(seen, [2, 4].map(|done| Event::Working(working(done))));
    }
}
