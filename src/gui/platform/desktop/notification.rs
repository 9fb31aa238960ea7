//! Notifications of Linux desktops.

use std::collections::HashMap;

use zbus::zvariant::Value;

const SERVICE: &str = "org.freedesktop.Notifications";

/// Shows a notification if the desktop has a service for them on the session's bus. The window's
/// accessibility uses the same bus.
pub fn show(title: &str, text: &str) {
    let title = title.to_string();
    let text = text.to_string();
    // The bus may take a moment, or not exist; a missing notification is not worth an error.
    std::thread::spawn(move || pollster::block_on(send(&title, &text)));
}

/// Calls `Notify` of the Desktop Notifications Specification, version 1.2.
async fn send(title: &str, text: &str) -> zbus::Result<()> {
    let replaces = 0u32;
    let icon = "wgpt";
    let actions = Vec::<&str>::new();
    let hints = HashMap::<&str, Value<'_>>::new();
    let default_timeout = -1i32;
    // The text may have markup, the title has none.
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let body = ("wgpt", replaces, icon, title, text, actions, hints, default_timeout);
    let bus = zbus::Connection::session().await?;
    let path = "/org/freedesktop/Notifications";
    bus.call_method(Some(SERVICE), path, Some(SERVICE), "Notify", &body).await.map(|_| ())
}
