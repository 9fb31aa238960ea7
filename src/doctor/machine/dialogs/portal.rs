//! The desktop's portal, which opens file dialogs on Linux.

use std::sync::mpsc::channel;
use std::time::Duration;

use zbus::zvariant::OwnedValue;

/// A portal without a backend answers after D-Bus's 25 seconds, or never.
const PATIENCE: Duration = Duration::from_secs(3);

/// Asks the portal for the version of its file dialogs, which also starts it. Returns the reason if it
/// does not answer.
pub(super) fn version() -> Result<String, String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let answer = pollster::block_on(file_chooser()).map_err(|error| error.to_string());
        // Nobody waits any more after `PATIENCE`.
        let _ = sender.send(answer);
    });
    let answered = receiver.recv_timeout(PATIENCE);
    answered.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
}

/// Reads the property `version` of the interface FileChooser, which exists only with a backend that
/// has file dialogs.
async fn file_chooser() -> zbus::Result<String> {
    const SERVICE: &str = "org.freedesktop.portal.Desktop";
    let bus = zbus::Connection::session().await?;
    let property = ("org.freedesktop.portal.FileChooser", "version");
    let path = "/org/freedesktop/portal/desktop";
    let interface = Some("org.freedesktop.DBus.Properties");
    let reply = bus.call_method(Some(SERVICE), path, interface, "Get", &property).await?;
    let version: OwnedValue = reply.body().deserialize()?;
    Ok(format!("version {}", u32::try_from(version)?))
}
