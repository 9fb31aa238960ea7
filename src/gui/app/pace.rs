//! The pace of frames: how soon one follows an update.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The delay between a reply or an event and the frame that draws it; threads of the service read
/// it.
#[derive(Clone)]
pub(super) struct Pace(Arc<AtomicU64>);

impl Pace {
    pub const USUAL: Duration = Duration::from_millis(50);
    /// The pace of a browser that draws in software. A frame takes a fifth of a second there, and at
    /// the usual pace training took five times as long.
    pub const SLOW: Duration = Duration::from_secs(2);

    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(Self::USUAL.as_millis() as u64)))
    }

    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    pub fn set(&self, pace: Duration) {
        self.0.store(pace.as_millis() as u64, Ordering::Relaxed);
    }
}
