//! The pace of a run: the time of its updates, and estimates from it.

use std::time::Duration;

use web_time::Instant;

use super::training::Training;
use crate::plan::{DeviceSpeed, Totals, Work};

/// The time and the updates after which the speed of a run is first known. Then it is kept after
/// twice the time, and so on: other programs may have slowed the first updates down.
const KNOWN_AFTER: Duration = Duration::from_secs(5);
const KNOWN_UPDATES: u64 = 3;

/// The time spent on updates since the last log line.
pub(super) struct UpdateClock {
    since: Instant,
    pub paused: Duration,
    pub updates: u64,
}

impl UpdateClock {
    pub fn start() -> Self {
        Self { since: Instant::now(), paused: Duration::ZERO, updates: 0 }
    }

    pub fn spent(&self) -> Duration {
        self.since.elapsed().saturating_sub(self.paused)
    }

    /// Returns the milliseconds of `time` per update.
    pub fn per_update(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e3 / self.updates as f64
    }
}

/// The updates since the speed of a run was last kept, and their time.
#[derive(Default)]
pub(super) struct PaceMonitor {
    /// True after the first log interval, which compiles the kernels.
    is_warm: bool,
    time: Duration,
    updates: u64,
    kept: u32,
    /// True once the user was warned that the run takes long, or no warning is needed.
    pub is_told: bool,
}

impl PaceMonitor {
    /// Counts the updates of a log interval. Returns the seconds of an update when they are to be kept.
    pub fn count(&mut self, time: Duration, updates: u64) -> Option<f64> {
        if !std::mem::replace(&mut self.is_warm, true) {
            return None;
        }
        self.time += time;
        self.updates += updates;
        let next = KNOWN_AFTER.saturating_mul(2u32.saturating_pow(self.kept));
        if self.time < next || self.updates < KNOWN_UPDATES {
            return None;
        }
        let seconds = self.time.as_secs_f64() / self.updates as f64;
        *self =
            Self { is_warm: true, kept: self.kept + 1, is_told: self.is_told, ..Self::default() };
        Some(seconds)
    }
}

pub(super) fn update_work(training: &Training) -> Work {
    let Training { inputs, steps, learner, .. } = training;
    Work::update(&inputs.config, learner.vocabulary(), steps.plan())
}

/// Returns the totals of the run. Its time is only estimated where no `max_time` plans it.
pub(super) fn totals(training: &Training, speed: Option<&DeviceSpeed>) -> Totals {
    let Training { inputs, steps, learner, .. } = training;
    let speed = speed.filter(|_| inputs.config.max_time.is_none());
    let data = Some(inputs.data_size());
    Totals::new(&inputs.config, learner.vocabulary(), steps.plan(), data, speed, false)
}
