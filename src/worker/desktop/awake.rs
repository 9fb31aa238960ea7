//! Keeps the system awake while a run trains: the screen may go dark, but the computer does not suspend by itself.

use std::sync::mpsc::{Receiver, Sender, channel};

/// What the system shows of it: `systemd-inhibit --list`, `powercfg /requests`, `pmset -g assertions`.
const REASON: &str = "a model is training";

/// Keeps the system awake until it is dropped.
#[must_use]
pub(super) struct Awake {
    _until_dropped: Sender<()>,
}

impl Awake {
    /// Begins, without waiting for the system. Where no service takes the request, as on many servers and in
    /// containers, nothing suspends the system either.
    pub fn new() -> Self {
        let (sender, dropped) = channel();
        std::thread::spawn(move || hold(&dropped));
        Self { _until_dropped: sender }
    }
}

/// Asks the system, and takes the request back once the sender is gone. Windows wants both from one thread.
fn hold(dropped: &Receiver<()>) {
    let request = keepawake::Builder::default()
        .idle(true)
        .sleep(true)
        .app_name("wgpt")
        .app_reverse_domain("io.github.wgpt")
        .reason(REASON)
        .create();
    // Nothing is ever sent.
    let _ = dropped.recv();
    drop(request);
}
