//! Tells on the desktop what has become of a run.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use notify_rust::Notification;

/// A service that takes longer to answer is not worth a wait.
const ANSWER: Duration = Duration::from_secs(2);

/// Shows a notification, where the desktop has a service for them. The returned value waits for that.
pub(crate) fn notify(title: &str, text: &str) -> Shown {
    // The text may have markup on Linux, the title has none.
    let text = if cfg!(target_os = "linux") { escaped(text) } else { text.to_string() };
    let mut notification = Notification::new();
    notification.appname("wgpt").summary(title).body(&text);
    #[cfg(target_os = "linux")]
    notification.icon("wgpt");
    let (shown, end) = channel();
    // A missing notification is not worth an error.
    std::thread::spawn(move || shown.send(notification.show().is_ok()));
    Shown(end)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

pub(crate) struct Shown(Receiver<bool>);

impl Shown {
    /// Waits for a moment until the desktop has it: it would be lost with the process.
    pub fn wait(self) {
        let _ = self.0.recv_timeout(ANSWER);
    }
}
