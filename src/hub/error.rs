//! The error of what is fetched, or was.

use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::protocol::Exit;
use crate::text::excerpt;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct HubError {
    text: String,
    hint: String,
    pub exit: Exit,
}

impl HubError {
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Creates an error of the network, the server or this system.
    pub(super) fn new(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { text: text.into(), hint: hint.into(), exit: Exit::Failure }
    }

    /// Creates an error about what was typed.
    pub(super) fn usage(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::new(text, hint) }
    }

    /// Creates an error about files that are missing, wrong, or of no use.
    pub(super) fn bad(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit: Exit::BadData, ..Self::new(text, hint) }
    }

    /// Creates an error about an answer that cannot be true.
    pub(super) fn untrue(name: impl Display, reason: impl Display) -> Self {
        let hint = "run the command again; if the error persists, the file on the server is damaged or is \
                    not the one that its repository lists";
        Self::bad(format!("{name}: {}", excerpt(reason)), hint)
    }

    /// Returns a function for `map_err`: "cannot `action` `path`".
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.display().to_string();
        move |error| {
            let hint = "check the path, its permissions and the free space of the disk";
            Self::new(format!("cannot {action} {path}: {error}"), hint)
        }
    }
}
