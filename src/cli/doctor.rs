//! `wgpt doctor`.

use serde_json::json;

use super::args::DoctorArgs;
use crate::doctor::{DoctorReport, FrontEnd};

/// Runs `wgpt doctor`.
pub(super) fn run(args: DoctorArgs) {
    let report = DoctorReport::gather(front_end());
    if args.json {
        output!("{}", json!(report));
    } else {
        output!("{report}");
    }
}

#[cfg(feature = "gui")]
fn front_end() -> FrontEnd {
    crate::gui::front_end()
}

#[cfg(not(feature = "gui"))]
fn front_end() -> FrontEnd {
    FrontEnd { display: None, runs: super::run_list::RUNS.into(), settings: None }
}
