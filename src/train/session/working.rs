//! Reports of work that takes a while, for views that would stand still.

use std::time::Duration;

use web_time::Instant;

use super::Session;
use crate::gpu::{DeviceKind, OpenDevice, Watchdog};
use crate::plan::checkpoint_bytes;
use crate::protocol::{Event, Task, Working};

/// The time between two reports, and from the start of the work to the first.
const INTERVAL: Duration = Duration::from_millis(250);

/// The same for an update. Those that are shorter have their results to show.
const STEP_INTERVAL: Duration = Duration::from_secs(2);

/// The bytes of a checkpoint that is announced: smaller ones are written in a moment.
const LARGE_CHECKPOINT: u64 = 64 << 20;

/// Reports work in parts.
pub(super) struct Reporter<'a> {
    task: Task,
    /// All parts; 0 if unknown.
    total: u64,
    watchdog: &'a Watchdog,
    emit: &'a mut dyn FnMut(&Event),
    interval: Duration,
    reported: Instant,
}

impl<'a> Reporter<'a> {
    /// Begins to report `task`, which has `total` parts.
    pub fn new(
        task: Task,
        total: u64,
        watchdog: &'a Watchdog,
        emit: &'a mut dyn FnMut(&Event),
    ) -> Self {
        let interval = if task == Task::Step { STEP_INTERVAL } else { INTERVAL };
        Self { task, total, watchdog, emit, interval, reported: Instant::now() }
    }

    /// Begins to report an update of `micro_batches`. Announces the first one of a process, which
    /// waits for the compiler of the kernels.
    pub fn update(
        micro_batches: usize,
        is_first: bool,
        device: &'a OpenDevice,
        emit: &'a mut dyn FnMut(&Event),
    ) -> Self {
        let compiles = is_first && device.info.kind != DeviceKind::Cpu;
        let task = if compiles { Task::Compile } else { Task::Step };
        let total = if micro_batches > 1 { micro_batches as u64 } else { 0 };
        let mut reporter = Self::new(task, total, &device.watchdog, emit);
        if compiles {
            reporter.announce(0);
        }
        reporter
    }

    /// Reports that `done` parts are done, if that is due.
    pub fn report(&mut self, done: u64) {
        if self.reported.elapsed() >= self.interval {
            self.announce(done);
        }
    }

    /// Reports at once, before work that cannot report itself.
    fn announce(&mut self, done: u64) {
        // The reader of stdout may be slow.
        self.watchdog.allow_silence(Duration::MAX);
        let working = Working { task: self.task, done, total: self.total };
        (self.emit)(&Event::Working(working));
        self.watchdog.restart();
        self.reported = Instant::now();
    }
}

impl Session<'_> {
    /// Announces a checkpoint that takes a while to write.
    pub(super) fn announce_checkpoint(&mut self) {
        let vocab = self.model().architecture().vocab_size as u32;
        if checkpoint_bytes(&self.config, vocab) >= LARGE_CHECKPOINT {
            let watchdog = &self.device.watchdog;
            Reporter::new(Task::Checkpoint, 0, watchdog, &mut *self.emit).announce(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_lasts_is_reported() {
        let (watchdog, mut seen) = (Watchdog::new(true), Vec::new());
        let mut emit = |event: &Event| seen.push(event.clone());
        let mut reporter = Reporter::new(Task::Evaluation, 9, &watchdog, &mut emit);
        for (done, interval) in [(1, 3600), (2, 0), (3, 3600), (4, 0)] {
            reporter.interval = Duration::from_secs(interval);
            reporter.report(done);
        }
        let working = |done| Event::Working(Working { task: Task::Evaluation, done, total: 9 });
        assert_eq!(seen, [working(2), working(4)]);
    }
}
