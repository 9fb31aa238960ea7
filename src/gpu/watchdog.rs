//! Detects the failure of a device: its driver reports it, or the device does not answer for too long.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use web_time::Instant;

use super::error::DeviceError;

/// Watches a device and holds its first failure, which the driver reported on one of its threads, or
/// which [`check`](Self::check) found because the device was silent for too long.
#[derive(Clone, Debug, Default)]
pub struct Watchdog(Arc<WatchdogState>);

#[derive(Debug, Default)]
struct WatchdogState {
    failure: OnceLock<DeviceError>,
    timer: Mutex<Option<Timer>>,
    is_software: bool,
}

/// The time since the last answer of the device.
#[derive(Clone, Copy, Debug)]
struct Timer {
    answered: Instant,
    /// The silence since then that [`Watchdog::check`] has counted. It is less than the wall time if
    /// the process was stopped or the machine slept.
    silence: Duration,
    checked: Instant,
    heartbeats: u32,
    longest: Duration,
    /// The silence that is allowed until the next answer.
    allowed: Duration,
}

impl Timer {
    fn start(now: Instant) -> Self {
        Self {
            answered: now,
            silence: Duration::ZERO,
            checked: now,
            heartbeats: 0,
            longest: Duration::ZERO,
            allowed: Duration::ZERO,
        }
    }

    /// Restarts the timer. An allowed silence does not count as the device's.
    fn restart(self, now: Instant) -> Self {
        let Self { heartbeats, mut longest, .. } = self;
        if self.allowed.is_zero() {
            let counted = longest.max(self.silence + MAX_TICK);
            longest = longest.max(now - self.answered).min(counted);
        }
        Self { heartbeats, longest, ..Self::start(now) }
    }
}

/// The most that one check adds to a silence. As long as the process runs, checks are more frequent.
const MAX_TICK: Duration = Duration::from_secs(2);

/// The limit until the usual silence of a device is known: a GPU's driver compiles kernels for seconds.
const STARTUP_LIMIT: Duration = Duration::from_secs(5 * 60);

/// The same for software renderers, which take minutes for a step.
const SOFTWARE_STARTUP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// After this many heartbeats the usual silence is known.
const STARTUP_HEARTBEATS: u32 = 10;

const MIN_LIMIT: Duration = Duration::from_secs(2 * 60);

const LIMIT_FACTOR: u32 = 20;

impl Watchdog {
    /// Creates the watchdog of a GPU or, with `is_software`, of a software renderer or the CPU.
    pub fn new(is_software: bool) -> Self {
        Self(Arc::new(WatchdogState { is_software, ..WatchdogState::default() }))
    }

    pub fn failure(&self) -> Option<&DeviceError> {
        self.0.failure.get()
    }

    /// Records a failure. Later failures do not replace the first one.
    pub fn fail(&self, error: DeviceError) {
        let _ = self.0.failure.set(error);
    }

    fn timer(&self) -> MutexGuard<'_, Option<Timer>> {
        self.0.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that the device has finished an update. The first call starts the timer.
    pub fn heartbeat(&self) {
        let mut timer = self.timer();
        let now = Instant::now();
        let restarted = timer.unwrap_or(Timer::start(now)).restart(now);
        let heartbeats = restarted.heartbeats.saturating_add(1);
        *timer = Some(Timer { heartbeats, ..restarted });
    }

    /// Restarts the timer, if it runs: the device has answered, or nothing was waiting for it.
    pub fn restart(&self) {
        self.restart_allowing(Duration::ZERO);
    }

    /// Allows a silence of `allowed` while the returned value lives, because something other than the
    /// device takes that long. Restarts the timer, and again at the end.
    #[must_use = "the silence is allowed only while this value lives"]
    pub fn allow_silence(&self, allowed: Duration) -> AllowedSilence {
        let before = self.timer().map_or(Duration::ZERO, |timer| timer.allowed);
        self.restart_allowing(allowed);
        AllowedSilence { watchdog: self.clone(), before }
    }

    fn restart_allowing(&self, allowed: Duration) {
        let mut timer = self.timer();
        *timer = timer.map(|timer| Timer { allowed, ..timer.restart(Instant::now()) });
    }

    /// Stops the timer until the next heartbeat, because nothing uses the device.
    pub fn pause(&self) {
        *self.timer() = None;
    }

    pub fn silence(&self) -> Option<Duration> {
        self.timer().map(|timer| timer.answered.elapsed())
    }

    /// Returns the longest silence that is not a failure.
    fn limit(&self, heartbeats: u32, longest: Duration) -> Duration {
        let limit = MIN_LIMIT.max(longest.saturating_mul(LIMIT_FACTOR));
        if heartbeats >= STARTUP_HEARTBEATS {
            return limit;
        }
        limit.max(if self.0.is_software { SOFTWARE_STARTUP_LIMIT } else { STARTUP_LIMIT })
    }

    /// Records a failure if the silence exceeds its limit. A lost device may neither answer nor report
    /// the loss. Call this at least once a second.
    pub fn check(&self) {
        let mut timer = self.timer();
        let Some(timer) = timer.as_mut() else { return };
        let now = Instant::now();
        timer.silence += (now - timer.checked).min(MAX_TICK);
        timer.checked = now;
        if timer.silence > self.limit(timer.heartbeats, timer.longest).max(timer.allowed) {
            let minutes = timer.silence.as_secs() / 60;
            let reason = format!("it has not answered for {minutes} minutes");
            self.fail(DeviceError::Stopped { reason });
        }
    }
}

/// A silence of the device that a [`Watchdog`] allows until this value is dropped.
#[derive(Debug)]
pub struct AllowedSilence {
    watchdog: Watchdog,
    /// The silence that was allowed around this one.
    before: Duration,
}

impl Drop for AllowedSilence {
    fn drop(&mut self) {
        self.watchdog.restart_allowing(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_longest_silence() {
        let second = Duration::from_secs(1);
        let [gpu, software] = [false, true].map(Watchdog::new);
        assert_eq!(gpu.limit(1, Duration::ZERO), STARTUP_LIMIT);
        assert_eq!(software.limit(1, Duration::ZERO), SOFTWARE_STARTUP_LIMIT);
        for watchdog in [gpu, software] {
            assert_eq!(watchdog.limit(5, 400 * second), 8000 * second);
            assert_eq!(watchdog.limit(50, second), MIN_LIMIT);
            assert_eq!(watchdog.limit(50, 400 * second), 8000 * second);
        }
    }

    #[test]
    fn silence_is_a_failure_only_after_a_first_heartbeat() {
        let watchdog = Watchdog::default();
        watchdog.check();
        assert!(watchdog.failure().is_none());
        watchdog.heartbeat();
        watchdog.check();
        assert!(watchdog.failure().is_none());
        let silent = |minutes| {
            let now = Instant::now();
            let silence = MIN_LIMIT * minutes / 2;
            Some(Timer { heartbeats: 50, silence, ..Timer::start(now) })
        };
        *watchdog.timer() = silent(4);
        watchdog.restart();
        watchdog.check();
        assert!(watchdog.failure().is_none());
        let outer = watchdog.allow_silence(MIN_LIMIT * 3);
        // What is allowed meanwhile ends with its own value.
        drop(watchdog.allow_silence(MIN_LIMIT * 9));
        watchdog.timer().as_mut().unwrap().silence = MIN_LIMIT * 2;
        watchdog.check();
        assert!(watchdog.failure().is_none());
        drop(outer);
        assert!(watchdog.timer().unwrap().allowed.is_zero());
        *watchdog.timer() = silent(4);
        watchdog.check();
        let failure = watchdog.failure().unwrap().to_string();
        assert!(failure.contains("not answered for 4 minutes"), "{failure}");
    }

    #[test]
    fn a_process_that_slept_does_not_blame_the_device() {
        let watchdog = Watchdog::default();
        let now = Instant::now();
        let Some(long_ago) = now.checked_sub(MIN_LIMIT * 10) else { return };
        let timer =
            Timer { answered: long_ago, checked: long_ago, heartbeats: 50, ..Timer::start(now) };
        *watchdog.timer() = Some(timer);
        watchdog.check();
        assert!(watchdog.failure().is_none());
        watchdog.heartbeat();
        assert!(watchdog.timer().unwrap().longest <= 2 * MAX_TICK);
    }
}
