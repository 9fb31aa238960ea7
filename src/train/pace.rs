//! The pace of a run: the time of its updates, and estimates from it.

use std::collections::VecDeque;
use std::time::Duration;

use super::clock::Moment;
use super::training::Training;
use crate::gpu::OtherPrograms;
use crate::plan::{DeviceSpeed, Totals, Work};

/// The time and the updates after which the speed of a run is first known. Then it is kept after
/// twice the time, and so on: other programs may have slowed the first updates down.
const KNOWN_AFTER: Duration = Duration::from_secs(5);
const KNOWN_UPDATES: u64 = 3;

/// The time spent on updates since the last log line.
pub(super) struct UpdateClock {
    since: Moment,
    pub paused: Duration,
    /// The part of the time spent in which the device was to cool down.
    pub cooled: Duration,
    pub updates: u64,
}

impl UpdateClock {
    pub fn start() -> Self {
        Self { since: Moment::now(), paused: Duration::ZERO, cooled: Duration::ZERO, updates: 0 }
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
    others: OtherPrograms,
    /// True once the user was warned that the run takes long, or no warning is needed.
    pub is_told: bool,
}

impl PaceMonitor {
    /// Counts the updates of a log interval. When their speed is to be kept, returns the seconds of an update, and the
    /// share of the CPUs that other programs used.
    pub fn count(&mut self, time: Duration, updates: u64) -> Option<(f64, f64)> {
        if !std::mem::replace(&mut self.is_warm, true) {
            self.others.share();
            return None;
        }
        self.time += time;
        self.updates += updates;
        let next = KNOWN_AFTER.saturating_mul(2u32.saturating_pow(self.kept));
        if self.time < next || self.updates < KNOWN_UPDATES {
            return None;
        }
        let seconds = self.time.as_secs_f64() / self.updates as f64;
        self.kept += 1;
        (self.time, self.updates) = (Duration::ZERO, 0);
        Some((seconds, self.others.share()))
    }
}

/// The recent progress of a run, from which follows how many updates fit into the rest of its time.
#[derive(Default)]
pub(super) struct RecentPace {
    /// The time used and the updates made, at moments of the last [`WINDOW`].
    marks: VecDeque<(Duration, u64)>,
    /// The longest time of an evaluation, with the sample and the checkpoint that go with it. The run ends with one.
    ending: Duration,
}

/// The time over which the pace is measured, with some evaluations in it, and the time between two marks, as
/// shares of the time of the run.
const WINDOW: f64 = 0.15;
const MARK: f64 = 0.01;

/// The time that is left over, as a share of all: a speed that falls in the last moments costs no update.
const SPARE: f64 = 0.005;

impl RecentPace {
    pub fn ended_evaluation(&mut self, took: Duration) {
        self.ending = self.ending.max(took);
    }

    /// Takes the time `used` of `limit`, and the updates made. Now and then, and if it `must` be known, returns the
    /// number of further updates that end in time.
    pub fn updates_left(
        &mut self,
        used: Duration,
        made: u64,
        limit: Duration,
        must: bool,
    ) -> Option<u64> {
        let since = |at: Duration| used.saturating_sub(at);
        let marks = &mut self.marks;
        if marks.back().is_some_and(|(at, _)| !must && since(*at) < limit.mul_f64(MARK)) {
            return None;
        }
        marks.push_back((used, made));
        // Towards the end the latest speed counts.
        let window = limit.saturating_sub(used).max(limit.mul_f64(3.0 * MARK));
        let window = window.min(limit.mul_f64(WINDOW));
        while marks.get(1).is_some_and(|(at, _)| since(*at) > window) {
            marks.pop_front();
        }
        let (at, before) = *marks.front()?;
        let (time, updates) = (since(at), made.saturating_sub(before));
        if updates == 0 || !must && (updates < KNOWN_UPDATES || time < limit.mul_f64(2.0 * MARK)) {
            return None;
        }
        let left = limit.saturating_sub(used + self.ending + limit.mul_f64(SPARE));
        Some((left.as_secs_f64() / time.as_secs_f64() * updates as f64) as u64)
    }
}

pub(super) fn update_work(training: &Training) -> Work {
    let Training { inputs, steps, learner, .. } = training;
    Work::update(&inputs.config, learner.vocabulary(), steps.plan())
}

/// Returns the totals of the run. Its time is only estimated where no limit plans it.
pub(super) fn totals(training: &Training, speed: Option<&DeviceSpeed>) -> Totals {
    let Training { inputs, steps, learner, .. } = training;
    let speed = speed.filter(|_| !inputs.config.is_timed());
    let data = Some(inputs.data_size());
    Totals::new(&inputs.config, learner.vocabulary(), steps.plan(), data, speed, false)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::config::{Config, Schedule};
    use crate::train::position::Position;

    const LIMIT: f64 = 3600.0;

    /// Simulates a run of an hour that was planned for `planned` updates. `update` returns the seconds that an update
    /// takes at a moment, and every 180 s there is an evaluation of 20 s. Returns the time used, the rate at the end as
    /// a share of the peak, and how often the end was moved.
    fn trained(planned: u64, most: u64, update: impl Fn(f64) -> f64) -> (f64, f64, usize) {
        let mut config = Config {
            schedule: Schedule::Wsd,
            decay_fraction: 0.6,
            fill_time: true,
            min_lr: 0.0,
            warmup_iters: 0,
            max_iters: NonZeroU64::new(planned).unwrap(),
            ..Config::default()
        };
        let (mut recent, mut position) = (RecentPace::default(), Position::default());
        let (mut used, mut evaluated, mut moved, mut rate) = (0.0, 0.0, 0, 0.0);
        while position.iteration < config.max_iters.get() && used < LIMIT {
            if used >= evaluated {
                used += 20.0;
                evaluated += 180.0;
                recent.ended_evaluation(Duration::from_secs(20));
            }
            let limit = Duration::from_secs_f64(LIMIT);
            let possible = recent.updates_left(
                Duration::from_secs_f64(used),
                position.iteration,
                limit,
                position.iteration == config.decay_start(),
            );
            let left = possible.and_then(|possible| position.retiming(&config, possible, most));
            if let Some(left) = left {
                config = config.retimed(position.iteration, left);
                moved += 1;
            }
            rate = position.learning_rate(&config) / config.learning_rate;
            used += update(used);
            position.iteration += 1;
        }
        (used + 20.0, rate, moved)
    }

    #[test]
    fn a_run_ends_with_its_time_whatever_its_speed_is() {
        let most = u64::MAX;
        // Planned for twice or 40 times its speed and a fifth of it; the right one is 6400 updates.
        for planned in [40, 1280, 6400, 12_800, 256_000] {
            let (used, rate, moved) = trained(planned, most, |_| 0.5);
            assert!((0.97 * LIMIT..=LIMIT).contains(&used), "{planned}: {used}");
            assert!(rate < 0.03, "{planned}: {rate}");
            assert!(moved <= 20, "{planned}: {moved}");
        }
        // Another program comes and goes, and one comes for the last quarter.
        let comes_and_goes =
            |now: f64| if ((now / 300.0) as u64).is_multiple_of(2) { 0.5 } else { 1.5 };
        let comes = |now: f64| if now > 0.75 * LIMIT { 1.2 } else { 0.5 };
        for (name, update) in [("goes", &comes_and_goes as &dyn Fn(f64) -> f64), ("comes", &comes)]
        {
            let (used, rate, moved) = trained(6400, most, update);
            assert!((0.97 * LIMIT..=LIMIT + 2.0).contains(&used), "{name}: {used}");
            assert!(rate < 0.06, "{name}: {rate}");
            assert!(moved <= 60, "{name}: {moved}");
        }
    }

    #[test]
    fn a_run_makes_no_more_updates_than_teach_something() {
        let (used, rate, _) = trained(1280, 2000, |_| 0.5);
        assert!(used < 0.5 * LIMIT && rate < 0.03, "{used}, {rate}");
    }
}
