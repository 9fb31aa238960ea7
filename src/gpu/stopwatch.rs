//! Times the kernels that this process launches.

#[cfg(all(any(feature = "wgpu", feature = "cuda"), not(target_arch = "wasm32")))]
mod observer {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use burn_cubecl::cubecl::logging::{
        LaunchObservation, LaunchObserver, ProfileDuration, TimingRequest,
    };

    // cubecl has one observer for the process, and tells it only the name of a kernel's type.
    static IS_TIMING: AtomicBool = AtomicBool::new(false);
    static NEXT: Mutex<Option<String>> = Mutex::new(None);

    /// Names the next launch for [`time_launches`], which knows other kernels by the names of their types.
    pub fn name_launch(name: impl FnOnce() -> String) {
        if IS_TIMING.load(Ordering::Relaxed) {
            *lock(&NEXT) = Some(name());
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the measurements unread until the end, so that kernels follow one another as without it.
    #[derive(Default)]
    struct Stopwatch(Mutex<Vec<(String, ProfileDuration)>>);

    impl LaunchObserver for Stopwatch {
        fn launched(&self, _kernel: &'static str) {}

        fn timing(&self) -> TimingRequest {
            TimingRequest::Deferred
        }

        fn profiled(&self, kernel: &'static str, time: ProfileDuration) {
            let name = lock(&NEXT).take().unwrap_or_else(|| {
                let path = kernel.split('<').next().unwrap_or(kernel);
                path.rsplit("::").next().unwrap_or(path).to_string()
            });
            lock(&self.0).push((name, time));
        }
    }

    /// Runs `work`. Returns its result, and the name and the seconds on the device of each kernel that this
    /// process launched meanwhile, in order.
    pub fn time_launches<R>(work: impl FnOnce() -> R) -> (R, Vec<(String, f64)>) {
        let stopwatch = Arc::new(Stopwatch::default());
        IS_TIMING.store(true, Ordering::Relaxed);
        let observation = LaunchObservation::new(stopwatch.clone());
        let result = work();
        drop(observation);
        IS_TIMING.store(false, Ordering::Relaxed);
        let seconds = |(name, time): (String, ProfileDuration)| {
            let ticks = pollster::block_on(time.resolve())?;
            Some((name, ticks.duration().as_secs_f64()))
        };
        let launches = std::mem::take(&mut *lock(&stopwatch.0));
        (result, launches.into_iter().filter_map(seconds).collect())
    }
}

/// A browser, which waits for nothing, and a build for the CPU alone.
#[cfg(any(not(any(feature = "wgpu", feature = "cuda")), target_arch = "wasm32"))]
mod observer {
    #[cfg(feature = "wgpu")]
    pub fn name_launch(_name: impl FnOnce() -> String) {}

    pub fn time_launches<R>(work: impl FnOnce() -> R) -> (R, Vec<(String, f64)>) {
        (work(), Vec::new())
    }
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(crate) use observer::name_launch;
pub use observer::time_launches;
