//! Notifications of the desktop.

/// Shows a notification, where the desktop has a service for them.
///
/// Linux desktops have one on the session's bus, over which the window's accessibility talks too.
/// Windows and macOS show them only for installed programs: there, the window's request for
/// attention has to do.
#[cfg(target_os = "linux")]
pub(super) fn show(title: &str, text: &str) {
    let (title, text) = (title.to_string(), text.to_string());
    // The bus may take a moment, or not exist; a missing notification is not worth an error.
    std::thread::spawn(move || pollster::block_on(send(&title, &text)));
}

#[cfg(not(target_os = "linux"))]
pub(super) fn show(_: &str, _: &str) {}

/// Calls `Notify` of the Desktop Notifications Specification, version 1.2.
#[cfg(target_os = "linux")]
async fn send(title: &str, text: &str) -> zbus::Result<()> {
    use std::collections::HashMap;

    use zbus::zvariant::Value;

    const SERVICE: &str = "org.freedesktop.Notifications";
    let (replaces, icon, actions) = (0u32, "wgpt", Vec::<&str>::new());
    let (hints, default_timeout) = (HashMap::<&str, Value<'_>>::new(), -1i32);
    // The text may have markup, the title has none.
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let body = ("wgpt", replaces, icon, title, text, actions, hints, default_timeout);
    let bus = zbus::Connection::session().await?;
    let path = "/org/freedesktop/Notifications";
    bus.call_method(Some(SERVICE), path, Some(SERVICE), "Notify", &body).await.map(|_| ())
}
