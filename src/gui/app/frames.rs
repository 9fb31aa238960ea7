//! The times of frames: how long one takes, and how soon one follows an update.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The delay between a reply or an event and the frame that draws it; threads of the service read
/// it.
#[derive(Clone)]
pub(super) struct Pace(Arc<AtomicU64>);

impl Pace {
    pub const USUAL: Duration = Duration::from_millis(50);
    /// The pace of a browser that draws in software: a frame takes a fifth of a second from
    /// training, which took five times as long at the usual pace.
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

/// Times of the last frames, in seconds.
#[derive(Default)]
pub(super) struct FrameTimes(VecDeque<f32>);

impl FrameTimes {
    const COUNT: usize = 240;

    pub fn push(&mut self, seconds: f32) {
        self.0.truncate(Self::COUNT - 1);
        self.0.push_front(seconds);
    }

    /// The median, without waiting for the display, in milliseconds.
    pub fn median_ms(&self) -> Option<f32> {
        let mut sorted: Vec<f32> = self.0.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        sorted.get(sorted.len() / 2).map(|seconds| seconds * 1e3)
    }
}
