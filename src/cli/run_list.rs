//! `wgpt runs`, and the default run of commands.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;

use super::args::Global;
use crate::protocol::Failure;
use crate::runs::{self, CONFIG_FILE, RunState, RunSummary, has_chat};
use crate::text::{Table, duration, known};

/// The folder of new runs.
pub(super) const RUNS: &str = "out";

const NEWEST: &str = "the newest run";

pub(super) fn run(given: Option<PathBuf>, json: bool, global: &Global) -> Result<(), Failure> {
    let folder = given.as_deref().unwrap_or(Path::new(RUNS));
    if given.is_some() && !folder.is_dir() {
        let text = format!("{}: no such folder", folder.display());
        return Err(Failure::usage(text, "give a folder with runs, or none for the runs in out/"));
    }
    let runs = runs::list(folder).map_err(Failure::file(folder))?;
    if json {
        let rows: Vec<_> = runs.iter().map(object).collect();
        output!("{}", json!(rows));
    } else if !runs.is_empty() {
        super::write_out(table(&runs).plain(&[2, 3]));
    } else if !global.quiet {
        message!("no runs in {}; `wgpt train --preset=demo` starts one", folder.display());
    }
    Ok(())
}

pub(super) fn object(run: &RunSummary) -> serde_json::Value {
    let error = if let RunState::Failed { text } = &run.state { Some(text) } else { None };
    json!({
        "name": run.name,
        "path": run.path.display().to_string(),
        "state": run.state.name(),
        "error": error,
        "iteration": run.iteration,
        "max_iters": run.max_iters,
        "loss": run.loss,
        "val_loss": run.val_loss,
        "best_val_loss": run.best_val_loss,
        "device": run.device,
        "modified": rfc3339(run.modified),
        "has_checkpoint": run.has_checkpoint,
    })
}

/// Formats a time since 1970. A time beyond RFC 3339, for example from a broken clock, becomes its last
/// one.
fn rfc3339(time: Duration) -> String {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + time.min(LAST)).to_string()
}

fn table(runs: &[RunSummary]) -> Table {
    let row = |run: &RunSummary| {
        let iterations = run
            .max_iters
            .map_or_else(|| run.iteration.to_string(), |all| format!("{} of {all}", run.iteration));
        vec![
            run.path.display().to_string(),
            run.state.name().to_string(),
            iterations,
            known(run.val_loss, |loss| format!("{loss:.4}")),
            format!("{} ago", duration(run.age())),
        ]
    };
    Table::new(["run", "state", "iterations", "val loss", "last event"], runs.iter().map(row))
}

pub(super) fn newest_model(quiet: bool) -> Result<PathBuf, Failure> {
    let none = "no model was given, and no run in out/ has a checkpoint";
    let hint = "give a run, a checkpoint or a model folder; `wgpt train --preset=demo` trains a \
                first one";
    newest(quiet, NEWEST, |run| run.has_checkpoint, none, hint)
}

/// Returns the newest run that was trained on conversations.
pub(super) fn newest_chat(quiet: bool) -> Result<PathBuf, Failure> {
    let none = "no model was given, and no run in out/ was trained on conversations";
    let hint = "`wgpt train --preset=chat` trains such a model in minutes; or give a run or a model \
                folder";
    let kind = "the newest run that was trained on conversations";
    newest(quiet, kind, |run| run.has_checkpoint && has_chat(&run.path), none, hint)
}

pub(super) fn newest_run(quiet: bool) -> Result<PathBuf, Failure> {
    let hint = "give a run folder; `wgpt train --preset=demo` trains a first one";
    newest(quiet, NEWEST, |_| true, "no run was given, and out/ has none", hint)
}

pub(super) fn newest_to_resume(quiet: bool) -> Result<PathBuf, Failure> {
    let can_resume = |run: &RunSummary| {
        let is_training = matches!(run.state, RunState::Running | RunState::Paused);
        !is_training && run.path.join(CONFIG_FILE).is_file()
    };
    let hint = "give its folder with --run, or leave out --resume to start a new run";
    newest(
        quiet,
        NEWEST,
        can_resume,
        "--resume was given no run, and out/ has none to resume",
        hint,
    )
}

/// Returns the newest run in [`RUNS`] that fits, and prints its name.
fn newest(
    quiet: bool,
    kind: &str,
    fits: impl Fn(&RunSummary) -> bool,
    none: &str,
    hint: &str,
) -> Result<PathBuf, Failure> {
    let runs = runs::list(Path::new(RUNS)).map_err(Failure::file(RUNS))?;
    let run = runs.into_iter().find(fits);
    let run = run.ok_or_else(|| Failure::usage(none, hint))?;
    if !quiet {
        message!("using {}, {kind}", run.path.display());
    }
    Ok(run.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_rfc_3339_do_not_panic() {
        let day = Duration::from_secs(24 * 3600);
        for (time, want) in
            [(day, "1970-01-02T00:00:00Z"), (day * 365 * 10_000, "9999-12-31T23:59:59Z")]
        {
            assert_eq!(rfc3339(time), want);
        }
    }
}
