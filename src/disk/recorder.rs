//! Records the calls that make files survive a power failure, so that tests can check their order.

use std::cell::RefCell;
use std::path::PathBuf;

/// A call of [`disk`](super).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    SyncFile(PathBuf),
    /// The old and the new path.
    Rename(PathBuf, PathBuf),
    SyncFolder(PathBuf),
}

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn note(call: Call) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

/// Returns the result of `action` and the calls that it made on this thread.
pub fn record<R>(action: impl FnOnce() -> R) -> (R, Vec<Call>) {
    CALLS.take();
    let result = action();
    (result, CALLS.take())
}
