//! Whether a device has failed for good.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use web_time::Instant;

use super::DeviceError;

/// Whether a device has failed for good: told by its driver on a thread of its own, or by a silence
/// that is too long.
#[derive(Clone, Debug, Default)]
pub struct Failure(Arc<State>);

#[derive(Debug, Default)]
struct State {
    told: OnceLock<DeviceError>,
    pulse: Mutex<Option<Pulse>>,
    in_software: bool,
}

/// Signs of life of whoever waits for the device.
#[derive(Clone, Copy, Debug)]
struct Pulse {
    last: Instant,
    /// Time since then, as far as this process ran to count it: it may have been stopped, or the
    /// machine asleep.
    silent: Duration,
    looked: Instant,
    beats: u32,
    /// The longest time between two signs.
    longest: Duration,
    /// Silence that is expected until the next sign.
    expected: Duration,
}

impl Pulse {
    fn begin(now: Instant) -> Self {
        Self {
            last: now,
            silent: Duration::ZERO,
            looked: now,
            beats: 0,
            longest: Duration::ZERO,
            expected: Duration::ZERO,
        }
    }

    /// A sign of life. A silence that was expected says nothing about the device.
    fn sign(self, now: Instant) -> Self {
        let longest = match self.expected.is_zero() {
            true => self.longest.max(now - self.last).min(self.longest.max(self.silent + LOOK)),
            false => self.longest,
        };
        Self {
            last: now,
            silent: Duration::ZERO,
            looked: now,
            longest,
            expected: Duration::ZERO,
            ..self
        }
    }
}

/// The most that one look adds to a silence. Looks are more frequent than that wherever this process
/// runs at all.
const LOOK: Duration = Duration::from_secs(2);

/// Silence that is too long before it is known how long silences are: kernels are compiled, by a
/// card's driver within seconds each.
const AT_FIRST: Duration = Duration::from_secs(5 * 60);

/// The same for devices in software, which take minutes for a step.
const AT_FIRST_IN_SOFTWARE: Duration = Duration::from_secs(30 * 60);

/// Beats after which it is known.
const KNOWN: u32 = 10;

/// Silence that is never too long.
const SHORT: Duration = Duration::from_secs(2 * 60);

/// A silence that is so many times the longest before is too long.
const TIMES: u32 = 20;

impl Failure {
    /// None yet, of a device in software or of a card.
    pub fn new(in_software: bool) -> Self {
        Self(Arc::new(State { in_software, ..State::default() }))
    }

    /// What happened, if anything has.
    pub fn get(&self) -> Option<&DeviceError> {
        self.0.told.get()
    }

    /// Tells of a failure; the first one stays.
    pub fn set(&self, error: DeviceError) {
        let _ = self.0.told.set(error);
    }

    fn pulse(&self) -> MutexGuard<'_, Option<Pulse>> {
        self.0.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells that the device has finished an update. From the first time on,
    /// [`check_pulse`](Self::check_pulse) takes silence for a failure.
    pub fn beat(&self) {
        let mut pulse = self.pulse();
        let now = Instant::now();
        let former = pulse.unwrap_or(Pulse::begin(now)).sign(now);
        *pulse = Some(Pulse { beats: former.beats.saturating_add(1), ..former });
    }

    /// Tells that the device has answered in the middle of something, or that nobody waits for it.
    pub fn alive(&self) {
        let mut pulse = self.pulse();
        *pulse = pulse.map(|pulse| pulse.sign(Instant::now()));
    }

    /// Tells that something else than the device may take so long, until the next sign of life.
    pub fn expect_silence(&self, expected: Duration) {
        let mut pulse = self.pulse();
        *pulse = pulse.map(|pulse| Pulse { expected, ..pulse.sign(Instant::now()) });
    }

    /// Tells that nobody uses the device any more.
    pub fn rest(&self) {
        *self.pulse() = None;
    }

    /// The time since the last sign of life, if there was one.
    pub fn silence(&self) -> Option<Duration> {
        self.pulse().map(|pulse| pulse.last.elapsed())
    }

    /// How long a silence may last.
    fn patience(&self, beats: u32, longest: Duration) -> Duration {
        let by_experience = SHORT.max(longest.saturating_mul(TIMES));
        match (beats < KNOWN, self.0.in_software) {
            (true, true) => by_experience.max(AT_FIRST_IN_SOFTWARE),
            (true, false) => by_experience.max(AT_FIRST),
            (false, _) => by_experience,
        }
    }

    /// Takes a silence that is too long for a device that hangs: one that is lost may neither answer
    /// nor say so. To be called at least every second.
    pub fn check_pulse(&self) {
        let mut pulse = self.pulse();
        let Some(pulse) = pulse.as_mut() else { return };
        let now = Instant::now();
        pulse.silent += (now - pulse.looked).min(LOOK);
        pulse.looked = now;
        if pulse.silent > self.patience(pulse.beats, pulse.longest).max(pulse.expected) {
            let minutes = pulse.silent.as_secs() / 60;
            let reason = format!("it has not answered for {minutes} minutes");
            self.set(DeviceError::Stopped { reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_experience() {
        let second = Duration::from_secs(1);
        let [card, software] = [false, true].map(Failure::new);
        assert_eq!(card.patience(1, Duration::ZERO), AT_FIRST);
        assert_eq!(software.patience(1, Duration::ZERO), AT_FIRST_IN_SOFTWARE);
        for device in [card, software] {
            assert_eq!(device.patience(5, 400 * second), 8000 * second);
            assert_eq!(device.patience(50, second), SHORT);
            assert_eq!(device.patience(50, 400 * second), 8000 * second);
        }
    }

    #[test]
    fn silence_is_a_failure_only_after_a_first_beat() {
        let failure = Failure::default();
        failure.check_pulse();
        assert!(failure.get().is_none());
        failure.beat();
        failure.check_pulse();
        assert!(failure.get().is_none());
        let silent = |minutes| {
            let now = Instant::now();
            Some(Pulse { beats: 50, silent: SHORT * minutes / 2, ..Pulse::begin(now) })
        };
        *failure.pulse() = silent(4);
        failure.alive();
        failure.check_pulse();
        assert!(failure.get().is_none());
        failure.expect_silence(SHORT * 3);
        failure.pulse().as_mut().unwrap().silent = SHORT * 2;
        failure.check_pulse();
        assert!(failure.get().is_none());
        *failure.pulse() = silent(4);
        failure.check_pulse();
        assert!(failure.get().unwrap().to_string().contains("not answered for 4 minutes"));
    }

    #[test]
    fn a_process_that_slept_does_not_blame_the_device() {
        let failure = Failure::default();
        let now = Instant::now();
        let Some(long_ago) = now.checked_sub(SHORT * 10) else { return };
        let pulse = Pulse { last: long_ago, looked: long_ago, beats: 50, ..Pulse::begin(now) };
        *failure.pulse() = Some(pulse);
        failure.check_pulse();
        assert!(failure.get().is_none());
        failure.beat();
        assert!(failure.pulse().unwrap().longest <= 2 * LOOK);
    }
}
