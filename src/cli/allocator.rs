//! The allocator of the program, and the end of a process that runs out of memory or disk space.

#![allow(
    unsafe_code,
    reason = "the functions of an allocator, and of a signal's handler, are unsafe"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

/// mimalloc, because the allocator of the system returns large blocks at once: a training step on
/// the CPU then spends a quarter of its time on page faults. It is built without huge pages, which
/// are no faster here and make a process grow for as long as it runs.
#[derive(Debug)]
pub struct Allocator;

/// True once the system has refused memory.
static REFUSED: AtomicBool = AtomicBool::new(false);

fn noted(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        REFUSED.store(true, Ordering::Relaxed);
    }
    memory
}

// SAFETY: All of it is mimalloc's.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        noted(unsafe { MiMalloc.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        noted(unsafe { MiMalloc.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        noted(unsafe { MiMalloc.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { MiMalloc.dealloc(memory, layout) }
    }
}

/// Makes this process end with an error message and an exit code, instead of a signal, when the system refuses
/// memory or a larger file. If that cannot be set up, the signal still ends it.
#[cfg(unix)]
pub(super) fn report_limits() {
    use std::io::Write;
    use std::sync::Arc;

    use signal_hook::consts::{SIGABRT, SIGXFSZ};

    use crate::protocol::Exit;

    const TEXT: &str = "error: out of memory: the system refused an allocation\n  hint: raise the \
                        memory limit of the shell (`ulimit -v`), container or job, or close other programs\n";

    // The signal of a write beyond `ulimit -f`. If it is handled, the write returns an error.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    // Rust aborts after an allocation that failed. A driver may abort, too, which is a crash.
    let end = || {
        if REFUSED.load(Ordering::Relaxed) {
            let _ = std::io::stderr().write_all(TEXT.as_bytes());
            signal_hook::low_level::exit(Exit::Failure as i32);
        }
    };
    // SAFETY: `end` allocates nothing, and locks only stderr. This thread no longer holds that lock: Rust
    // aborts after it has printed the size of the allocation.
    let _ = unsafe { signal_hook::low_level::register(SIGABRT, end) };
}

#[cfg(not(unix))]
pub(super) fn report_limits() {}
