//! A clock that stands still while the computer sleeps, which is no time of training, and the time that it has slept.

use std::time::Duration;

/// A moment in the time that the computer is awake.
#[derive(Clone, Copy)]
pub(super) struct Moment(#[cfg(not(windows))] web_time::Instant, #[cfg(windows)] Duration);

impl Moment {
    #[cfg(not(windows))]
    pub fn now() -> Self {
        Self(web_time::Instant::now())
    }

    /// Windows' `Instant` goes on while the computer sleeps.
    #[cfg(windows)]
    pub fn now() -> Self {
        use windows_sys::Win32::System::WindowsProgramming::QueryUnbiasedInterruptTime;

        let mut ticks = 0u64;
        #[allow(
            unsafe_code,
            reason = "the library has no safe function; it writes to `ticks` alone"
        )]
        // SAFETY: the pointer is to a value on the stack, which outlives the call.
        unsafe {
            QueryUnbiasedInterruptTime(&mut ticks);
        }
        // Of 100 ns.
        Self(Duration::from_nanos(ticks.saturating_mul(100)))
    }

    #[cfg(not(windows))]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    #[cfg(windows)]
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// Measures how long the computer was asleep.
pub(super) struct SleepWatch {
    awake: Moment,
    /// `None` where the system does not tell.
    all: Option<Uptime>,
}

impl SleepWatch {
    /// What two clocks of one system may differ by, and nobody would call sleep.
    const MOMENT: Duration = Duration::from_secs(5);

    pub fn start() -> Self {
        Self { awake: Moment::now(), all: uptime() }
    }

    /// Returns the time that the computer was asleep since the last call, if it was.
    pub fn slept(&mut self) -> Option<Duration> {
        let Self { awake, all } = std::mem::replace(self, Self::start());
        asleep(since(all?)?, awake.elapsed())
    }
}

fn asleep(all: Duration, awake: Duration) -> Option<Duration> {
    all.checked_sub(awake).filter(|asleep| *asleep >= SleepWatch::MOMENT)
}

/// A moment in the time of the computer, asleep or not.
#[cfg(windows)]
type Uptime = std::time::Instant;
#[cfg(not(windows))]
type Uptime = Duration;

#[cfg(windows)]
fn uptime() -> Option<Uptime> {
    Some(Uptime::now())
}

#[cfg(windows)]
fn since(moment: Uptime) -> Option<Duration> {
    Some(moment.elapsed())
}

/// Returns the time since the computer was started, which Linux tells.
#[cfg(not(windows))]
fn uptime() -> Option<Uptime> {
    let text = crate::disk::read_to_string("/proc/uptime").ok()?;
    Duration::try_from_secs_f64(text.split_whitespace().next()?.parse().ok()?).ok()
}

#[cfg(not(windows))]
fn since(moment: Uptime) -> Option<Duration> {
    uptime()?.checked_sub(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_computer_that_was_asleep_was_not_computing() {
        let of = Duration::from_secs;
        assert_eq!(asleep(of(7260), of(60)), Some(of(7200)));
        assert_eq!([asleep(of(60), of(59)), asleep(of(59), of(60))], [None; 2]);
        let mut watch = SleepWatch::start();
        assert_eq!(watch.all.is_some(), cfg!(any(target_os = "linux", windows)));
        assert_eq!(watch.slept(), None);
    }

    #[test]
    fn time_passes_as_everywhere() {
        let (moment, start) = (Moment::now(), std::time::Instant::now());
        let least = Duration::from_millis(200);
        while moment.elapsed() < least {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", moment.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        // Windows counts in steps of 16 ms.
        assert!(start.elapsed() + Duration::from_millis(20) >= least);
    }
}
