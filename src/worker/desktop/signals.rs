//! Signals to this process: Unix signals, and the events of a Windows console under the same numbers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::protocol::Failure;

#[cfg(windows)]
mod session;

pub(crate) const INTERRUPT: i32 = 2;
/// The request to end: SIGTERM on Unix, a console that closes or a session that ends on Windows.
pub(crate) const TERMINATE: i32 = 15;
/// The terminal of a process has closed, on Unix.
pub(crate) const HANGUP: i32 = 1;

/// Calls `handle` with the number of each signal, on a thread. The signals no longer end the process.
///
/// Once a Windows console closes, the system ends the process within five seconds, or as soon as `main`
/// returns.
pub(crate) fn listen(handle: impl FnMut(i32) + Send + 'static) -> Result<(), Failure> {
    try_listen(handle).map_err(|error| Failure::new(format!("cannot handle signals: {error}"), ""))
}

#[cfg(unix)]
fn try_listen(mut handle: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([INTERRUPT, TERMINATE])?;
    let status = crate::disk::read_to_string("/proc/self/status").unwrap_or_default();
    if hears_hangup(&status) {
        signals.add_signal(HANGUP)?;
    }
    std::thread::spawn(move || signals.forever().for_each(&mut handle));
    Ok(())
}

/// Returns true unless the process ignores that its terminal closes, as `nohup` makes it, or if nothing says
/// whether it does. `status` is that of proc(5).
#[cfg(unix)]
fn hears_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (HANGUP - 1) & 1 == 0)
}

#[cfg(windows)]
fn try_listen(handle: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    use std::future::poll_fn;
    use std::sync::{Mutex, PoisonError};
    use std::task::Poll;

    use tokio::signal::windows;

    let mut interrupts = windows::ctrl_c()?;
    let mut breaks = windows::ctrl_break()?;
    let mut closes = windows::ctrl_close()?;
    let handle = Arc::new(Mutex::new(handle));
    let handle = move |signal| (handle.lock().unwrap_or_else(PoisonError::into_inner))(signal);
    let at_end = handle.clone();
    session::listen(move || at_end(TERMINATE))?;
    std::thread::spawn(move || {
        loop {
            let next = poll_fn(|context| {
                let is_interrupted = interrupts.poll_recv(context).is_ready();
                // A process in a separate group gets only Ctrl-Break.
                if is_interrupted | breaks.poll_recv(context).is_ready() {
                    return Poll::Ready(INTERRUPT);
                }
                closes.poll_recv(context).map(|_| TERMINATE)
            });
            handle(pollster::block_on(next));
        }
    });
    Ok(())
}

/// Ends this process at once, without the exit handlers of a driver, which may wait for its device.
pub(crate) fn exit(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}

/// Ctrl-C in a loop that waits for a line and then generates text: it stops the generation. While the loop waits,
/// or if the generation was stopped already, it ends the process.
pub(crate) struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    /// Handles signals from now on. Before the first generation, Ctrl-C ends the process.
    pub fn listen() -> Result<Self, Failure> {
        let this = Self(Arc::new(AtomicBool::new(true)));
        let is_stopped = this.0.clone();
        listen(move |signal| {
            if is_stopped.swap(true, Ordering::SeqCst) || signal != INTERRUPT {
                exit(128 + signal);
            }
        })?;
        Ok(this)
    }

    /// Begins to generate.
    pub fn begin(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// The generation has ended, and the loop waits.
    pub fn end(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns true once the generation is to stop.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_closed_terminal_is_heard_unless_nohup_asked_not_to() {
        let status =
            |mask: &str| format!("Name:\twgpt\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(hears_hangup(&status("0000000000001000")));
        assert!(!hears_hangup(&status("0000000000001001")));
        assert!(!hears_hangup(""), "as before on systems that do not say");
    }
}
