//! A request from another thread to stop preparing data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const READING: u8 = 0;
const WRITING: u8 = 1;
const STOPPED: u8 = 2;

/// A request to stop, shared between threads. Until something is written, the process may just end. Later,
/// [`prepare`](super::prepare) removes its files and returns an error.
#[derive(Clone, Debug, Default)]
pub struct StopRequest(Arc<AtomicU8>);

impl StopRequest {
    /// Requests to stop. Returns true if nothing has been written.
    pub fn stop(&self) -> bool {
        self.0.swap(STOPPED, Ordering::SeqCst) == READING
    }

    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STOPPED
    }

    /// Notes that files will be written. Returns false after a request to stop.
    pub(super) fn begin_writing(&self) -> bool {
        let begun = self.0.compare_exchange(READING, WRITING, Ordering::SeqCst, Ordering::SeqCst);
        begun.is_ok() || begun == Err(WRITING)
    }
}
