//! A window that Explorer starts: a double click, the start menu.
//!
//! wgpt is a console program, because shells then wait for it and show what it prints. Explorer opens a
//! console for such a program, and closing the console would close the window too. So wgpt starts itself
//! again without one, and the console closes after a moment. From version 24H2 on, Windows 11 opens none,
//! as the manifest asks (`assets/windows/wgpt.manifest`).

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use super::RUNS;
use crate::worker::detach;

/// The flag of a process that has no console because this module started it.
const NO_CONSOLE: &str = "--no-console";

/// The owner of the window that a process was asked to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This process, with a console or pipes that take its errors.
    Shell,
    /// This process. Only a dialog shows its errors.
    Explorer,
    /// The process without a console that was started in its place.
    Other,
}

/// Returns the owner of the window. If Explorer has started this process, its runs are in the user's
/// documents, because the folder of the program may be read-only, unless it was started next to some runs.
pub(crate) fn owner() -> Owner {
    if parent().is_none_or(|name| !name.eq_ignore_ascii_case("explorer.exe")) {
        return Owner::Shell;
    }
    if !Path::new(RUNS).is_dir()
        && let Some(folder) = documents()
    {
        // It stays where it was started if this fails.
        let _ = std::env::set_current_dir(folder);
    }
    if !std::io::stderr().is_terminal() {
        Owner::Explorer
    } else if start_again().is_ok() {
        Owner::Other
    } else {
        Owner::Shell
    }
}

fn parent() -> Option<String> {
    let mut system = System::new().ok()?;
    let mut refresh = |pid: Pid| {
        let nothing_else = ProcessRefreshKind::nothing();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, nothing_else);
        let process = system.process(pid)?;
        Some((process.parent(), process.name().to_string_lossy().into_owned()))
    };
    let (parent, _) = refresh(sysinfo::get_current_pid().ok()?)?;
    let (_, name) = refresh(parent?)?;
    Some(name)
}

/// Returns wgpt's folder in the user's documents, which is created.
fn documents() -> Option<PathBuf> {
    let folder = dirs::document_dir()?.join("wgpt");
    crate::disk::create_dir_all(&folder).ok()?;
    Some(folder)
}

/// Starts this program with the same arguments and without a console.
#[allow(clippy::disallowed_methods, reason = "starts the window, and not a worker")]
fn start_again() -> std::io::Result<()> {
    let mut process = Command::new(std::env::current_exe()?);
    process.args(std::env::args_os().skip(1)).arg(NO_CONSOLE);
    process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    detach(&mut process);
    process.spawn().map(drop)
}

pub(crate) fn alert(text: &str) {
    let dialog = rfd::MessageDialog::new().set_level(rfd::MessageLevel::Error);
    dialog.set_title("wgpt").set_description(text).show();
}
