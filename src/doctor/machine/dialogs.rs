//! Checks for the system's dialogs that choose files.

#[cfg_attr(not(all(feature = "gui", target_os = "linux")), path = "dialogs/no_portal.rs")]
mod portal;

use crate::disk;
use crate::protocol::FeatureCheck;

/// Checks that dialogs would open, without opening one. On Linux they come from the desktop's
/// portal, or else from zenity.
pub(super) fn check() -> FeatureCheck {
    if cfg!(any(windows, target_os = "macos")) {
        return FeatureCheck { works: true, detail: "the system's".into() };
    }
    match portal::version() {
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
    std::env::split_paths(&folders).any(|folder| disk::is_file(&folder.join(program)))
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
