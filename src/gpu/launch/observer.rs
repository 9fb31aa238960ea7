//! Counts, times or skips the kernels that this process launches.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
#[cfg(feature = "cuda")]
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::dry_run::DryRun;
pub use burn_cubecl::cubecl::dry_run::dry_run as is_dry_run;
use burn_cubecl::cubecl::logging::{
    LaunchObservation, LaunchObserver, ProfileDuration, TimingRequest,
};

use crate::gpu::memory::memory;

struct OnLaunch<F>(F);

impl<F: Fn() + Send + Sync> LaunchObserver for OnLaunch<F> {
    fn launched(&self, _kernel: &'static str) {
        self.0();
    }
}

/// The observer of cubecl's launches, for those that cubecl does not see.
static OBSERVER: Mutex<Option<Arc<dyn LaunchObserver>>> = Mutex::new(None);

/// Runs `work` with an observer of all launches of this process.
fn observed<R>(observer: Arc<dyn LaunchObserver>, work: impl FnOnce() -> R) -> R {
    let _observation = LaunchObservation::new(observer.clone());
    let previous = lock(&OBSERVER).replace(observer);
    let result = work();
    *lock(&OBSERVER) = previous;
    result
}

/// Tells the observer of a launch that cubecl does not see. `post` queues it, and returns only after it is on
/// the device's stream if its argument is true, for a measurement.
#[cfg(feature = "cuda")]
pub(super) fn observe_launch(
    client: &Client,
    kernel: &'static str,
    skipped: bool,
    post: impl FnOnce(bool) + Send,
) {
    let Some(observer) = lock(&OBSERVER).clone() else { return post(false) };
    observer.launched(kernel);
    if skipped || observer.timing() == TimingRequest::None {
        return post(false);
    }
    // What refuses a measurement leaves the launch here.
    let mut unposted = Some(post);
    if let Ok((_, time)) = client.profile(|| unposted.take().map(|post| post(true)), kernel) {
        observer.profiled(kernel, time);
    }
    if let Some(post) = unposted {
        post(false);
    }
}

/// Runs `work`. Calls `on_launch` at each kernel that this process launches meanwhile.
fn observe<R>(on_launch: impl Fn() + Send + Sync + 'static, work: impl FnOnce() -> R) -> R {
    observed(Arc::new(OnLaunch(on_launch)), work)
}

/// Runs `work` without computing anything. Kernels are compiled, and memory is reserved but
/// allocated from the driver only for uploads. Values that are read back mean nothing. Returns
/// the result of `work` and the most bytes of live tensors on `device` at a launch.
pub fn dry_run<R>(device: &Device, work: impl FnOnce() -> R) -> (R, u64) {
    let _guard = DryRun::new();
    let peak = Arc::new(AtomicU64::new(0));
    let device = device.clone();
    let most = peak.clone();
    let on_launch = move || {
        let in_use = memory(&device).map_or(0, |memory| memory.in_use);
        most.fetch_max(in_use, Ordering::Relaxed);
    };
    let result = observe(on_launch, work);
    (result, peak.load(Ordering::Relaxed))
}

/// Runs `work`. Returns its result and the number of kernels that this process launched meanwhile.
pub fn count_launches<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let launches = Arc::new(AtomicUsize::new(0));
    let count = launches.clone();
    let on_launch = move || {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let result = observe(on_launch, work);
    (result, launches.load(Ordering::Relaxed))
}

// cubecl has one observer for the process, which gets only the name of a kernel's type.
static IS_TIMING: AtomicBool = AtomicBool::new(false);
static NEXT: Mutex<Option<String>> = Mutex::new(None);

/// Names the next launch for [`time_launches`], which knows other kernels by the names of their types.
pub(crate) fn name_launch(name: impl FnOnce() -> String) {
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
    let result = observed(stopwatch.clone(), work);
    IS_TIMING.store(false, Ordering::Relaxed);
    let seconds = |(name, time): (String, ProfileDuration)| {
        let ticks = pollster::block_on(time.resolve())?;
        Some((name, ticks.duration().as_secs_f64()))
    };
    let launches = std::mem::take(&mut *lock(&stopwatch.0));
    (result, launches.into_iter().filter_map(seconds).collect())
}
