//! Whether a device has failed for good.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
    beats: u32,
    /// The longest time between two of them.
    longest: Duration,
}

/// Silence that is too long before it is known how long silences are: kernels are compiled, by a
/// card's driver within seconds each.
const AT_FIRST: Duration = Duration::from_secs(5 * 60);

/// The same for devices in software, which take minutes for a step.
const AT_FIRST_IN_SOFTWARE: Duration = Duration::from_secs(30 * 60);

/// Beats after which it is known. The first evaluation is among them.
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

    /// Tells that the device has answered, or that nobody waits for it. From the first time on,
    /// [`check_pulse`](Self::check_pulse) takes silence for a failure.
    pub fn beat(&self) {
        let mut pulse = self.0.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let former = pulse.unwrap_or(Pulse { last: now, beats: 0, longest: Duration::ZERO });
        let longest = former.longest.max(now - former.last);
        *pulse = Some(Pulse { last: now, beats: former.beats.saturating_add(1), longest });
    }

    /// The time since the last beat, if there was one.
    pub fn silence(&self) -> Option<Duration> {
        let pulse = *self.0.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        pulse.map(|pulse| pulse.last.elapsed())
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
    /// nor say so.
    pub fn check_pulse(&self) {
        let pulse = *self.0.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pulse) = pulse else { return };
        let silent = pulse.last.elapsed();
        if silent > self.patience(pulse.beats, pulse.longest) {
            let minutes = silent.as_secs() / 60;
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
        let long_ago = Pulse { last: Instant::now(), beats: 50, longest: Duration::ZERO };
        let Some(last) = long_ago.last.checked_sub(SHORT * 2) else { return };
        *failure.0.pulse.lock().unwrap() = Some(Pulse { last, ..long_ago });
        failure.check_pulse();
        assert!(failure.get().unwrap().to_string().contains("not answered for 4 minutes"));
    }
}
