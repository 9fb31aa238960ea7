//! Sends requests to the service. Takes its replies, and the events of the trainer.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use eframe::egui;

use super::{App, LIST_RUNS, SLOW_PACE, USUAL_PACE};
use crate::disk::absolute;
use crate::gui::conversation::ChatState;
use crate::gui::platform::IS_PAGE;
use crate::gui::prompt::Written;
use crate::gui::setup::Busy;
use crate::gui::shared::ShownRun;
use crate::gui::{Intent, Shared};
use crate::plan::DeviceKind;
use crate::protocol::{Job, Obstacle, Reply, Request, RunPhase, Sample, View};
use crate::runs::{self, RunState, RunSummary};
use crate::worker::Client;

/// The time between two reads of the record of another process's run.
const FOLLOW: Duration = Duration::from_millis(200);

/// The time between two reads of a device's memory while the run does not fit, in seconds: other
/// programs may have closed.
const READ_DEVICE: f64 = 10.0;

/// The connection to the service. A request is sent again when its subject changes.
pub(super) struct Requests {
    pub client: Client,
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

    pub fn show(&mut self, run: PathBuf) {
        self.run = Some(run.clone());
        self.client.send(Request::ReadRun { run, view: View::Main });
    }

    /// Requests what has changed since it was requested last. `now` is in seconds.
    pub fn update(&mut self, shared: &mut Shared, now: f64) {
        let Shared { settings, library, shown, fit, .. } = shared;
        if self.listed.is_none_or(|at| now - at >= LIST_RUNS.as_secs_f64()) {
            self.listed = Some(now);
            self.client.send(Request::ListRuns { folder: absolute(&settings.runs) });
        }
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
        if let Some((a, b)) = shown.folder.as_ref().zip(library.overlays.last())
            && self.comparison[..] != [a.clone(), b.run.clone()]
        {
            library.difference = None;
            self.comparison = vec![a.clone(), b.run.clone()];
            self.client.send(Request::Compare { runs: [a.clone(), b.run.clone()] });
        }
    }
}

impl App {
    /// Applies the events of the trainer since the last frame, and notices its end.
    pub(super) fn take_events(&mut self, ctx: &egui::Context) {
        let Some(trainer) = &mut self.shared.shown.trainer else { return };
        let (events, ended) = trainer.receive();
        // The end of a process is noticed even where nothing wakes the window for it.
        let again = if trainer.is_own { Duration::from_secs(1) } else { FOLLOW };
        ctx.request_repaint_after(again);
        if self.shared.shown.is_live() {
            self.apply(&events);
        }
        if let Some(ended) = ended {
            self.ended(ended);
        }
    }

    /// Shows a model that has just come, to be prompted, unless that would hide a run that trains.
    fn try_model(&mut self, model: PathBuf) {
        if !self.shared.shown.is_live() {
            self.requests.show(model);
        }
    }

    pub(super) fn take(&mut self, reply: Reply) {
        let shared = &mut self.shared;
        match reply {
            Reply::Report { text } => self.help.details = Some(text),
            Reply::Devices { devices } => {
                if IS_PAGE && let [device] = &devices[..] {
                    let is_slow = device.kind == DeviceKind::Software;
                    self.pace.store(if is_slow { SLOW_PACE } else { USUAL_PACE }, Relaxed);
                }
                // A device that opens has removed what prevented it.
                self.obstacles.retain(Obstacle::can_train);
                shared.devices = devices;
            }
            Reply::Device { device } => shared.fit.set_device(device),
            Reply::Data { spec, data } => {
                if self.requests.data.as_ref() == Some(&spec) {
                    shared.settings.form.data = Some(data);
                }
            }
            Reply::Preparing { name, share } => {
                shared.data.busy = Some(Busy::Preparing(name, share))
            }
            Reply::Prepared { spec, warnings } => {
                shared.data.busy = None;
                shared.settings.form.set("data", spec.as_str());
                shared.data.warnings = (spec, warnings);
            }
            // Another folder may have been chosen meanwhile.
            Reply::Runs { folder, .. } if folder != absolute(&shared.settings.runs) => {}
            Reply::Runs { runs, .. } => {
                shared.library.runs = runs;
                // A window that is opened again shows the run that trains, else the newest.
                let is_live = |run: &&RunSummary| run.state == RunState::Running;
                let runs = &shared.library.runs;
                if shared.shown.is_empty()
                    && self.requests.run.is_none()
                    && let Some(first) = runs.iter().find(is_live).or(runs.first())
                {
                    self.requests.show(first.path.clone());
                }
            }
            Reply::Stored { data, models, usage } => {
                let library = &mut shared.library;
                (library.data, library.models, library.usage) = (data, models, usage);
            }
            Reply::Run { run, view: View::Main, progress, tail } => {
                if self.requests.run.as_ref() == Some(&run) {
                    self.show(run, *progress, tail);
                }
            }
            Reply::Run { run, view: View::Overlay, progress, .. } => {
                let mut overlays = shared.library.overlays.iter_mut();
                if let Some(overlay) = overlays.find(|overlay| overlay.run == run) {
                    overlay.progress = *progress;
                }
            }
            Reply::Comparison { runs, configs } => {
                let [a, b] = &*configs;
                if runs[..] == self.requests.comparison[..] {
                    shared.library.difference = Some(runs::difference(a, b));
                }
            }
            Reply::Config { checkpoint, config } => {
                shared.settings.form.fill_from(&config);
                shared.settings.form.set("init_from", checkpoint.display().to_string());
            }
            // The worker has kept it, for the profile of the device.
            Reply::Measured { .. } => self.requests.device = None,
            Reply::Described => self.requests.listed = None,
            Reply::Removed { path } => {
                let Shared { shown, library, samples, .. } = shared;
                self.requests.listed = None;
                library.overlays.retain(|overlay| overlay.run != path);
                if shown.folder.as_ref() == Some(&path) && !shown.is_live() {
                    *shown = ShownRun { trainer: shown.trainer.take(), ..ShownRun::default() };
                    self.requests.run = None;
                    samples.chat = ChatState::default();
                }
            }
            Reply::Exported { to, .. } => self.note(format!("exported to {}", to.display())),
            Reply::Reported { page } => self.carry_out(Intent::OpenFolder(page)),
            Reply::Imported { model } => {
                self.try_model(model.path);
                self.note(format!("{} is imported: it is listed under Runs", model.name));
            }
            Reply::Fetching { name, done, all } => {
                shared.data.busy = Some(Busy::Fetching { name, done, all });
            }
            Reply::Fetched { name, folder } => {
                shared.data.busy = None;
                self.try_model(folder);
                self.note(format!("{name} is here: set init_from = {name} to train it further"));
            }
            // The run of a text that was stopped may no longer be shown.
            Reply::Sampled { .. } if shared.samples.prompt.writing.is_none() => {}
            Reply::Sampled { prompt, text, done, tokens: new } => {
                let writing = &mut shared.samples.prompt.writing;
                let mut tokens = writing.take().map_or_else(Vec::new, |writing| writing.tokens);
                tokens.extend(new);
                if done {
                    let iter = shared.shown.progress.iteration;
                    let sample = Sample { iter, prompt, text, tokens };
                    shared.shown.progress.samples.push(sample);
                } else {
                    *writing = Some(Written { prompt, text, tokens });
                }
            }
            Reply::Scored { tokens, done } => shared.samples.inside.scored(tokens, done),
            Reply::Model { path, has_chat, introduction } => {
                if shared.shown.folder.as_ref() == Some(&path) {
                    shared.samples.chat.introduction = introduction;
                    shared.samples.chat.offer(has_chat, shared.shown.is_live());
                    // A model without a record was shown to be tried.
                    if has_chat && shared.shown.progress.state == RunPhase::Idle {
                        shared.samples.focus = true;
                    }
                }
            }
            Reply::Answered { text, forgotten, done } => {
                shared.samples.chat.answered(text, forgotten, done);
            }
            Reply::Listed { .. } | Reply::Kernels { .. } => {}
            Reply::Obstacle(obstacle) => {
                self.obstacles.retain(|known| known.topic != obstacle.topic);
                self.obstacles.push(obstacle);
            }
            Reply::Failed { job, text, hint } => {
                let text = if hint.is_empty() { text } else { format!("{text}: {hint}") };
                let problem = match job {
                    Job::Prepare => {
                        shared.data.busy = None;
                        "the text could not be prepared: "
                    }
                    Job::Get => {
                        shared.data.busy = None;
                        ""
                    }
                    Job::Export => "nothing was exported: ",
                    Job::Import => "nothing was imported: ",
                    Job::Sample => {
                        shared.samples.prompt.writing = None;
                        shared.samples.inside.end();
                        shared.samples.chat.take_back();
                        ""
                    }
                    Job::Other => "",
                };
                self.warn(format!("{problem}{text}"));
            }
        }
    }
}
