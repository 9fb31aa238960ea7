//! The requests to the service, and the last one of each kind.

use std::path::PathBuf;

use crate::gui::Shared;
use crate::protocol::{Request, View};
use crate::worker::Client;

use super::{LIST_RUNS, absolute};

/// The time between two reads of a device's memory while the run does not fit, in seconds: other
/// programs may have closed.
const READ_DEVICE: f64 = 10.0;

/// The connection to the service. A request is sent again when its subject changes.
pub(super) struct Requests {
    pub client: Client,
    /// The run that was requested last, to be shown.
    pub run: Option<PathBuf>,
    pub data: Option<String>,
    /// The device, and when it was requested, in seconds of the window's clock; `None` reads it
    /// again.
    pub device: Option<(String, f64)>,
    pub comparison: Vec<PathBuf>,
    /// When runs were listed last, in seconds of the window's clock; `None` lists them again.
    pub listed: Option<f64>,
}

impl Requests {
    pub fn new(client: Client) -> Self {
        Self { client, run: None, data: None, device: None, comparison: Vec::new(), listed: None }
    }

    pub fn send(&mut self, request: Request) {
        self.client.send(request);
    }

    /// Requests the record of a run, to show it.
    pub fn show(&mut self, run: PathBuf) {
        self.run = Some(run.clone());
        self.send(Request::ReadRun { run, view: View::Main });
    }

    /// Requests what has changed since it was requested last. `now` is in seconds.
    pub fn update(&mut self, shared: &mut Shared, now: f64) {
        let Shared { settings, library, fit, .. } = shared;
        if self.listed.is_none_or(|at| now - at >= LIST_RUNS.as_secs_f64()) {
            self.listed = Some(now);
            self.send(Request::ListRuns { folder: absolute(&settings.runs) });
        }
        let spec = settings.form.text("data");
        if self.data.as_ref() != Some(&spec) {
            self.data = Some(spec.clone());
            settings.form.data = None;
            if !spec.is_empty() {
                self.send(Request::DescribeData { spec });
            }
        }
        if self.device.as_ref().is_none_or(|(choice, at)| {
            let is_old = now - at >= READ_DEVICE && fit.refusal(&settings.form).is_some();
            is_old || *choice != settings.device
        }) {
            self.device = Some((settings.device.clone(), now));
            self.send(Request::Device { choice: settings.device.clone() });
        }
        if let [a, b] = &library.selected[..]
            && self.comparison != library.selected
        {
            library.difference = None;
            self.send(Request::Compare { runs: [a.clone(), b.clone()] });
            self.comparison.clone_from(&library.selected);
        }
    }
}
