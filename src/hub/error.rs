//! Failures of downloads and of the cache.

use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::disk;
use crate::protocol::{Exit, Failure};
use crate::text::excerpt;

/// Creates a failure of an argument. It may be valid on another machine, which has other files in its cache.
pub(super) fn usage(text: impl Into<String>, hint: impl Into<String>) -> Failure {
    Failure::new(text, hint).with_exit(Exit::Usage)
}

/// Creates a failure of an answer that contradicts itself or the repository.
pub(super) fn untrue(name: impl Display, reason: impl Display) -> Failure {
    let hint = "run the command again; if the error persists, the file on the server is damaged or is \
                not the one that its repository lists";
    Failure::bad_data(format!("{name}: {}", excerpt(reason)), hint)
}

/// Returns a function for `map_err`: "cannot `action` `path`".
pub(super) fn cannot(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> Failure + use<> {
    let path = path.display().to_string();
    move |error| {
        let hint = disk::hint(&error)
            .unwrap_or("check the path, its permissions and the free space of the disk");
        Failure::new(format!("cannot {action} {path}: {error}"), hint)
    }
}
