//! Takes the replies of the service.

use std::path::PathBuf;

use super::controller::Controller;
use crate::disk::absolute;
use crate::gui::intent::Intent;
use crate::gui::state::{DataJob, Notice, Room, SettingsForm, Shared, ShownRun, TimeState, What};
use crate::gui::target::IS_PAGE;
use crate::plan::DeviceKind;
use crate::protocol::{Level, Obstacle, Reply, Request, RequestKind, RunPhase, RunView, Sample};
use crate::runs::{self, RunState, RunSummary};

impl Controller {
    /// Begins a run with a new model if one is set up, else shows the model, to be prompted, unless that
    /// would hide a run that trains.
    fn begin_with(&mut self, model: PathBuf) {
        let Shared { room, start, shown, .. } = &self.shared;
        if *room == Room::Start && start.what == Some(What::FineTune) {
            self.carry_out(Intent::FineTune(model));
        } else if !shown.is_live() {
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
            Reply::Device { device } => shared.start.fit.set_device(device),
            Reply::Data { spec, data } => {
                let is_stored = self.requests.stored_data.take().as_ref() == Some(&spec);
                if self.requests.data.as_ref() == Some(&spec) {
                    let form = &mut shared.settings.form;
                    if is_stored && data.is_err() {
                        // The last window's data are gone. That is nothing to begin with.
                        form.set("data", "");
                        shared.start.what = What::of(form);
                    } else {
                        form.data = Some(data);
                    }
                }
            }
            Reply::Preparing { name, share } => {
                shared.start.data.job = Some(DataJob::preparing(name, share));
            }
            Reply::Prepared { spec, warnings } => {
                shared.start.data.job = None;
                self.use_data(&spec);
                let Shared { start, settings, .. } = &mut self.shared;
                start.data.warnings = (settings.form.text("data"), warnings);
            }
            // Another folder may have been chosen meanwhile.
            Reply::Runs { folder, .. } if folder != absolute(&shared.settings.runs) => {}
            Reply::Runs { runs, .. } => {
                shared.library.runs = runs;
                // A window that is opened again shows the run that trains, else the newest.
                let is_live = |run: &&RunSummary| run.state == RunState::Running;
                let runs = &shared.library.runs;
                if std::mem::take(&mut self.requests.shows_newest)
                    && shared.shown.is_empty()
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
                let model = checkpoint.display().to_string();
                shared.settings.replace_form(SettingsForm::of_model(model, &config));
                shared.start.what = Some(What::FineTune);
                shared.start.times = TimeState::default();
                shared.room = Room::Start;
            }
            // The worker has kept it, for the profile of the device.
            Reply::Measured { .. } => {
                shared.start.times.is_measuring = false;
                self.requests.device = None;
            }
            // No window asks for it.
            Reply::DeviceRoom { .. } => {}
            Reply::Described => self.requests.listed = None,
            Reply::Removed { path } => {
                let Shared { shown, library, samples, room, settings, .. } = shared;
                self.requests.listed = None;
                library.overlays.retain(|overlay| overlay.run != path);
                settings.opened.retain(|opened| *opened != path);
                if shown.folder.as_ref() == Some(&path) && !shown.is_live() {
                    *shown = ShownRun { trainer: shown.trainer.take(), ..ShownRun::default() };
                    *room = Room::Start;
                    self.requests.run = None;
                    samples.forget();
                }
            }
            Reply::Exported { to, next, .. } => {
                let text = format!("Exported to {}", to.display());
                shared.tell(Notice { commands: next, ..Notice::new(Level::Info, text) });
            }
            Reply::Reported { page } => self.carry_out(Intent::OpenFolder(page)),
            Reply::Imported { model } => {
                self.begin_with(model.path);
                self.note(&format!("{} was imported, and is in the list on the left", model.name));
            }
            Reply::Fetching { name, done, all } => {
                shared.start.data.job = Some(DataJob::fetching(name, done, all));
            }
            Reply::Fetched { name, folder } => {
                shared.start.data.job = None;
                if !IS_PAGE {
                    shared.settings.list(folder.clone());
                }
                self.begin_with(folder);
                self.note(&format!("{name} was downloaded, and is in the list on the left"));
            }
            Reply::Sampled { text, done, .. } | Reply::Answered { text, done, .. }
                if shared.samples.before.as_ref().is_some_and(|before| before.then.is_some()) =>
            {
                if let Some(before) = &mut shared.samples.before {
                    before.text = text;
                    let next = if done { before.then.take() } else { None };
                    next.into_iter()
                        .for_each(|then| self.requests.client.send(Request::Sample(then)));
                }
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
                    let is_training = shared.shown.is_live() && !shared.shown.progress.has_ended();
                    shared.samples.offer_chat(has_chat, is_training);
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
                // A base model may know no conversations. The trained one is asked all the same.
                if job == RequestKind::Sample
                    && let Some(before) = &mut shared.samples.before
                    && let Some(then) = before.then.take()
                {
                    before.text = text;
                    return self.requests.client.send(Request::Sample(then));
                }
                if matches!(job, RequestKind::Prepare | RequestKind::Get) {
                    shared.start.data.job = None;
                }
                let problem = match job {
                    RequestKind::Prepare => "the text could not be prepared: ",
                    RequestKind::Export => "nothing was exported: ",
                    RequestKind::Import => "nothing was imported: ",
                    RequestKind::Sample => {
                        shared.samples.before = None;
                        shared.samples.prompt.writing = None;
                        shared.samples.inside.end();
                        shared.samples.chat.take_back();
                        ""
                    }
                    RequestKind::Measure => {
                        shared.start.times.is_measuring = false;
                        "the speed of the device could not be measured: "
                    }
                    RequestKind::Get | RequestKind::Other => "",
                };
                self.warn(&format!("{problem}{text}"));
            }
        }
    }
}
