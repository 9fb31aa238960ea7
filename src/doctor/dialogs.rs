//! Checks for the system's dialogs that choose files.

use super::FeatureCheck;

/// Checks that dialogs would open, without opening one. On Linux they come from the desktop's
/// portal, or else from zenity.
pub(super) fn check() -> FeatureCheck {
    if cfg!(any(windows, target_os = "macos")) {
        return FeatureCheck { works: true, detail: "the system's".into() };
    }
    match portal() {
        Ok(version) => {
            FeatureCheck { works: true, detail: format!("xdg-desktop-portal, {version}") }
        }
        Err(_) if is_installed("zenity") => FeatureCheck { works: true, detail: "zenity".into() },
        Err(reason) => {
            let detail = format!("xdg-desktop-portal: {reason}; zenity: not installed");
            FeatureCheck { works: false, detail }
        }
    }
}

fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| crate::disk::is_file(&folder.join(program)))
}

/// Asks the portal for the version of its file dialogs, which also starts it. Returns the reason if it
/// does not answer.
#[cfg(all(feature = "gui", target_os = "linux"))]
fn portal() -> Result<String, String> {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// A portal without a backend answers after D-Bus's 25 seconds, or never.
    const PATIENCE: Duration = Duration::from_secs(3);

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
#[cfg(all(feature = "gui", target_os = "linux"))]
async fn file_chooser() -> zbus::Result<String> {
    use zbus::zvariant::OwnedValue;

    const SERVICE: &str = "org.freedesktop.portal.Desktop";
    let bus = zbus::Connection::session().await?;
    let property = ("org.freedesktop.portal.FileChooser", "version");
    let path = "/org/freedesktop/portal/desktop";
    let interface = Some("org.freedesktop.DBus.Properties");
    let reply = bus.call_method(Some(SERVICE), path, interface, "Get", &property).await?;
    let version: OwnedValue = reply.body().deserialize()?;
    Ok(format!("version {}", u32::try_from(version)?))
}

#[cfg(not(all(feature = "gui", target_os = "linux")))]
fn portal() -> Result<String, String> {
    Err("only Linux has it".into())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_check_says_what_works_or_what_is_missing() {
        assert!(is_installed("sh") && !is_installed("no such program"));
        let FeatureCheck { works, detail } = check();
        assert!(works || detail.contains("zenity: not installed"), "{detail}");
    }
}
