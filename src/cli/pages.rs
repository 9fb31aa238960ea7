//! `wgpt report` and `wgpt compare`: pages about runs.

use std::path::{Path, PathBuf};

use super::args::Global;
use super::run_list::newest_run;
use crate::protocol::Failure;
use crate::report::{self, Comparison, RunRecord, SWEEP_FILE, Sweep};

pub(super) fn report(
    run: Option<PathBuf>,
    page: Option<PathBuf>,
    global: &Global,
) -> Result<(), Failure> {
    let run = run.map_or_else(|| newest_run(global.quiet), Ok)?;
    let page = page.unwrap_or_else(|| run.join(report::REPORT_FILE));
    check_page(&page)?;
    report::write(&page, &report::run_page(&RunRecord::read(&run)?))?;
    output!("{}", page.display());
    Ok(())
}

pub(super) fn compare(runs: &[PathBuf], page: Option<PathBuf>, json: bool) -> Result<(), Failure> {
    let comparison = match runs {
        [folder] if folder.join(SWEEP_FILE).is_file() => {
            let sweep = Sweep::read(folder)?;
            if sweep.runs.is_empty() {
                let text = format!("{}: no run of this sweep has ended yet", folder.display());
                return Err(Failure::usage(text, "continue the sweep with the same command"));
            }
            Comparison::of_sweep(sweep)
        }
        [run] => {
            let text = format!("{}: one run, and nothing to compare it with", run.display());
            return Err(Failure::usage(text, "give several runs, or the folder of a sweep"));
        }
        all => Comparison::new(all.iter().map(|it| RunRecord::read(it)).collect::<Result<_, _>>()?),
    };
    let Some(path) = page else {
        if json {
            output!("{}", comparison.json());
        } else {
            super::write_out(comparison.plain());
        }
        return Ok(());
    };
    check_page(&path)?;
    report::write(&path, &comparison.html())?;
    output!("{}", path.display());
    Ok(())
}

fn check_page(path: &Path) -> Result<(), Failure> {
    let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
    if ending.is_some_and(|ending| ending == "html" || ending == "htm") {
        return Ok(());
    }
    let text = format!("{}: not the name of a page", path.display());
    Err(Failure::usage(text, "-o takes a file called *.html"))
}
