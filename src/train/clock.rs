//! A clock that stands still while the computer sleeps: sleep is no time of training.

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

#[cfg(test)]
mod tests {
    use super::*;

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
