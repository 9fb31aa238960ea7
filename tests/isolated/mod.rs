//! The environment of the programs that a test starts: nothing of the user's home reaches them.
//!
//! They share a home in cargo's folder for the tests, because measured speeds and compiled kernels are
//! worth keeping from one test to the next.

use std::path::Path;
use std::process::Command;

pub const HOME: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/home");

/// Gives a program a home folder of the tests, and removes the variables that wgpt and the programs below
/// it take folders and settings from.
pub fn isolated(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_setting = ["WGPT_", "XDG_", "HF_"].iter().any(|prefix| text.starts_with(prefix));
        // Wayland's socket is in this folder.
        if is_setting && text != "XDG_RUNTIME_DIR" {
            command.env_remove(name);
        }
    }
    let home = Path::new(HOME);
    let cache = home.join(".cache");
    std::fs::create_dir_all(&cache).expect("cargo's folder for tests can be written");
    if cfg!(windows) {
        command.env("USERPROFILE", home).env("LOCALAPPDATA", cache);
    } else {
        command.env("HOME", home);
    }
    // A run that is tested does not keep the tester's computer awake.
    command.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={HOME}/no-bus"));
    command
}
