//! Takes the replies of the service.

use std::path::PathBuf;

use super::controller::Controller;
use crate::disk::absolute;
use crate::gui::intent::Intent;
use crate::gui::state::{ChatState, DataJob, Shared, ShownRun};
use crate::gui::target::IS_PAGE;
use crate::plan::DeviceKind;
use crate::protocol::{Obstacle, Reply, RequestKind, RunPhase, RunView, Sample};
use crate::runs::{self, RunState, RunSummary};

impl Controller {
    /// Shows a new model, to be prompted, unless that would hide a run that trains.
    fn try_model(&mut self, model: PathBuf) {
        if !self.shared.shown.is_live() {
            self.requests.show(model);
        }
    }

    pub fn take(&mut self, reply: Reply) {
        let shared = &mut self.shared;
        match reply {
            Reply::Report { text } => shared.dialogs.help.details = Some(text),
            Reply::Devices { devices } => {
                if IS_PAGE && let [device] = &devices[..] {
                    self.requests.set_pace(device.kind == DeviceKind::Software);
                }
                // A device that opens has removed what prevented it.
                shared.obstacles.retain(Obstacle::can_train);
                shared.devices = devices;
            }
            Reply::Device { device } => shared.fit.set_device(device),
            Reply::Data { spec, data } => {
                if self.requests.data.as_ref() == Some(&spec) {
                    shared.settings.form.data = Some(data);
                }
            }
            Reply::Preparing { name, share } => {
                shared.data.job = Some(DataJob::preparing(name, share));
            }
            Reply::Prepared { spec, warnings } => {
                shared.data.job = None;
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
                library.data = data;
                library.models = models;
                library.usage = usage;
            }
            Reply::Run { run, view: RunView::Main, progress, tail } => {
                if self.requests.run.as_ref() == Some(&run) {
                    self.show(run, *progress, tail);
                }
            }
            Reply::Run { run, view: RunView::Overlay, progress, .. } => {
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
                shared.data.job = Some(DataJob::fetching(name, done, all));
            }
            Reply::Fetched { name, folder } => {
                shared.data.job = None;
                self.try_model(folder);
                self.note(format!("{name} is here: set init_from = {name} to train it further"));
            }
            // The run of a text that was stopped may no longer be shown.
            Reply::Sampled { .. } if shared.samples.prompt.writing.is_none() => {}
            Reply::Sampled { prompt, text, done, tokens: new } => {
                let iter = shared.shown.progress.iteration;
                let writing = &mut shared.samples.prompt.writing;
                let mut tokens = writing.take().map_or_else(Vec::new, |writing| writing.tokens);
                tokens.extend(new);
                let sample = Sample { iter, prompt, text, tokens };
                if done {
                    shared.shown.progress.samples.push(sample);
                } else {
                    *writing = Some(sample);
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
                shared.obstacles.retain(|known| known.topic != obstacle.topic);
                shared.obstacles.push(obstacle);
            }
            Reply::Failed { job, text, hint } => {
                let text = if hint.is_empty() { text } else { format!("{text}: {hint}") };
                let problem = match job {
                    RequestKind::Prepare => {
                        shared.data.job = None;
                        "the text could not be prepared: "
                    }
                    RequestKind::Get => {
                        shared.data.job = None;
                        ""
                    }
                    RequestKind::Export => "nothing was exported: ",
                    RequestKind::Import => "nothing was imported: ",
                    RequestKind::Sample => {
                        shared.samples.prompt.writing = None;
                        shared.samples.inside.end();
                        shared.samples.chat.take_back();
                        ""
                    }
                    RequestKind::Other => "",
                };
                self.warn(format!("{problem}{text}"));
            }
        }
    }
}
