//! Checks for the system's dialogs that choose files.

#[cfg_attr(not(all(feature = "gui", target_os = "linux")), path = "dialogs/no_portal.rs")]
mod portal;

use crate::disk;

/// Returns what opens dialogs, without opening one, or the reason why nothing does. On Linux it is the
/// desktop's portal, or else zenity.
pub(super) fn check() -> Result<String, String> {
    if cfg!(any(windows, target_os = "macos")) {
        return Ok("the system's".into());
    }
    match portal::version() {
        Ok(version) => Ok(format!("xdg-desktop-portal, {version}")),
        Err(_) if is_installed("zenity") => Ok("zenity".into()),
        Err(reason) => Err(format!("xdg-desktop-portal: {reason}; zenity: not installed")),
    }
}

fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| disk::is_file(&folder.join(program)))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_check_says_what_works_or_what_is_missing() {
        assert!(is_installed("sh") && !is_installed("no such program"));
        let check = check();
        let is_known = |reason: &String| reason.contains("zenity: not installed");
        assert!(check.as_ref().err().is_none_or(is_known), "{check:?}");
    }
}
