//! The connection to the service. A request is sent again when its subject changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use eframe::egui;

use crate::disk::absolute;
use crate::gui::state::{FitState, Library, Settings, ShownRun};
use crate::protocol::{Request, RunView};
use crate::worker::Client;

/// The time between two lists of the runs.
pub const LIST_RUNS: Duration = Duration::from_secs(5);

/// The time between two reads of a device's memory while the run does not fit, in seconds: other
/// programs may have closed.
const READ_DEVICE: f64 = 10.0;

/// The delay between a reply or an event and the frame that draws it, in milliseconds.
const USUAL_PACE: u64 = 50;

/// The delay in a browser that draws in software. A frame takes a fifth of a second there, and with the
/// usual delay training took five times as long.
const SLOW_PACE: u64 = 2000;

pub struct Requests {
    pub client: Client,
    /// Threads of the service read it.
    pace: Arc<AtomicU64>,
    pub run: Option<PathBuf>,
    /// True to show a run once they are listed.
    pub shows_newest: bool,
    pub data: Option<String>,
    /// The data that the last window had, until they are described.
    pub stored_data: Option<String>,
    /// The device, and when it was requested, in seconds of the window's clock; `None` reads it
    /// again.
    pub device: Option<(String, f64)>,
    pub comparison: Vec<PathBuf>,
    /// When runs were listed last, in seconds of the window's clock; `None` lists them again.
    pub listed: Option<f64>,
}

impl Requests {
    pub fn new(ctx: egui::Context) -> Self {
        let pace = Arc::new(AtomicU64::new(USUAL_PACE));
        let waking = pace.clone();
        let client = Client::new(move || ctx.request_repaint_after(delay(&waking)));
        Self {
            client,
            pace,
            run: None,
            shows_newest: true,
            data: None,
            stored_data: None,
            device: None,
            comparison: Vec::new(),
            listed: None,
        }
    }

    pub fn pace(&self) -> Duration {
        delay(&self.pace)
    }

    pub fn set_pace(&self, is_slow: bool) {
        self.pace.store(if is_slow { SLOW_PACE } else { USUAL_PACE }, Relaxed);
    }

    pub fn show(&mut self, run: PathBuf) {
        self.run = Some(run.clone());
        self.client.send(Request::ReadRun { run, view: RunView::Main });
    }

    pub fn describe_model(&mut self, shown: &ShownRun) {
        if let Some(path) = shown.folder.clone() {
            self.client.send(Request::DescribeModel { path });
        }
    }

    /// Lists the runs from time to time. `now` is in seconds.
    pub fn list_runs(&mut self, settings: &Settings, now: f64) {
        let is_due = self.listed.is_none_or(|at| now - at >= LIST_RUNS.as_secs_f64());
        if is_due && !settings.runs.as_os_str().is_empty() {
            self.listed = Some(now);
            self.client.send(Request::ListRuns { folder: absolute(&settings.runs) });
        }
    }

    /// Describes the data and the device that the settings name.
    pub fn describe(&mut self, settings: &mut Settings, fit: &mut FitState, now: f64) {
        let spec = settings.form.text("data");
        if self.data.as_ref() != Some(&spec) {
            self.data = Some(spec.clone());
            settings.form.data = None;
            if !spec.is_empty() {
                self.client.send(Request::DescribeData { spec });
            }
        }
        if self.device.as_ref().is_none_or(|(choice, at)| {
            let is_old = now - at >= READ_DEVICE && fit.refusal(&settings.form).is_some();
            is_old || *choice != settings.device
        }) {
            self.device = Some((settings.device.clone(), now));
            self.client.send(Request::Device { choice: settings.device.clone() });
        }
    }

    /// Compares the settings of the shown run with the last overlay's.
    pub fn compare(&mut self, shown: &ShownRun, library: &mut Library) {
        if let Some((a, b)) = shown.folder.as_ref().zip(library.overlays.last())
            && self.comparison[..] != [a.clone(), b.run.clone()]
        {
            library.difference = None;
            self.comparison = vec![a.clone(), b.run.clone()];
            self.client.send(Request::Compare { runs: [a.clone(), b.run.clone()] });
        }
    }
}

fn delay(pace: &AtomicU64) -> Duration {
    Duration::from_millis(pace.load(Relaxed))
}
