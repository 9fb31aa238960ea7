//! `--on-finish`: the command that runs once a run has ended by itself.

use std::io::{self, Write, stderr};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use super::run_list;
use crate::runs;

/// Runs a command of the shell with the run, as `wgpt runs --json` shows it, on its stdin. It never changes the result
/// of the run.
pub(super) fn run(command: &str, run: &Path) {
    let line = format!("{}\n", run_list::object(&runs::summary(run.to_path_buf())));
    let problem = match run_shell(command, &line) {
        Ok(status) if status.success() => return,
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    message!("warning: the on-finish command failed ({problem}): {command}");
}

fn run_shell(command: &str, input: &str) -> io::Result<ExitStatus> {
    #[cfg(unix)]
    let mut shell = Command::new("sh");
    #[cfg(unix)]
    shell.arg("-c").arg(command);
    #[cfg(not(unix))]
    let mut shell = Command::new("cmd");
    #[cfg(windows)]
    // Verbatim: `cmd` has quoting rules of its own.
    std::os::windows::process::CommandExt::raw_arg(&mut shell, format!("/S /C \"{command}\""));
    // stdout has the events of the run.
    let mut child = shell.stdin(Stdio::piped()).stdout(stderr()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read it.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait()
}
