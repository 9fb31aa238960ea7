//! `wgpt report` and `wgpt compare`: pages about runs.

use std::path::Path;

use super::args::{CompareArgs, Global, ReportArgs};
use super::run_list::newest_run;
use crate::protocol::Failure;
use crate::report::{self, Comparison, RunRecord};

/// Runs `wgpt report`.
pub(super) fn report(args: ReportArgs, global: &Global) -> Result<(), Failure> {
    let run = match args.run {
        Some(run) => run,
        None => newest_run(global.quiet)?,
    };
    if !matches!(extension(&args.output).as_deref(), Some("html" | "htm")) {
        return Err(not_a_page(&args.output, "-o takes a file called *.html"));
    }
    report::write(&args.output, &report::run_page(&RunRecord::read(&run)?))?;
    output!("{}", args.output.display());
    Ok(())
}

/// Runs `wgpt compare`.
pub(super) fn compare(args: CompareArgs) -> Result<(), Failure> {
    let runs = args.runs.iter().map(|run| RunRecord::read(run)).collect::<Result<_, _>>()?;
    let comparison = Comparison::new(runs);
    let Some(path) = args.output else {
        if args.json {
            output!("{}", comparison.json());
        } else {
            super::write_out(format_args!("{}", comparison.plain()));
        }
        return Ok(());
    };
    let page = match extension(&path).as_deref() {
        Some("html" | "htm") => comparison.html(),
        Some("md") => comparison.markdown(&path)?,
        _ => return Err(not_a_page(&path, "-o takes a file called *.html or *.md")),
    };
    report::write(&path, &page)?;
    output!("{}", path.display());
    Ok(())
}

/// Returns the ending of a file's name, in lowercase.
fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

fn not_a_page(path: &Path, hint: &'static str) -> Failure {
    Failure::usage(format!("{}: not the name of a page", path.display()), hint)
}
