//! Takes replies of the service and events of the trainer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eframe::egui;

use super::actions::absolute;
use super::{App, Details, FOLLOW, Pace, Stored};
use crate::gui::charts::Overlay;
use crate::gui::chat::ChatState;
use crate::gui::form::capitalize;
use crate::gui::platform::IS_PAGE;
use crate::gui::{finished, setup};
use crate::plan::DeviceKind;
use crate::protocol::{
    DeviceLine, Event, Job, Obstacle, Progress, Reply, RunPhase, Sample, StopReason, View,
};
use crate::runs::{self, RunSummary};

impl App {
    /// Takes the replies of the service since the last frame.
    pub(super) fn take_replies(&mut self) {
        for reply in self.client.replies() {
            self.take(reply);
        }
    }

    /// Applies the events of the trainer since the last frame, and notices its end.
    pub(super) fn take_events(&mut self, ctx: &egui::Context) {
        let Some(trainer) = &mut self.trainer else { return };
        let (events, ended) = (trainer.events(), trainer.ended());
        // The end of a process is noticed even where nothing wakes the window for it.
        let again = if trainer.is_own() { Duration::from_secs(1) } else { FOLLOW };
        ctx.request_repaint_after(again);
        if self.is_live() {
            self.apply(&events);
            self.notify(&events);
        }
        if let Some(ended) = ended {
            self.ended(ended);
        }
    }

    /// Tells a person who looks at something else that the run has ended.
    fn notify(&self, events: &[Event]) {
        let name = self.shown_name().unwrap_or("the run");
        for event in events {
            match event {
                Event::Done { reason: StopReason::Finished | StopReason::MaxTime, .. } => {
                    let result = capitalize(&finished::result(&self.progress));
                    self.platform.notify(&format!("{name} has finished"), &result);
                }
                Event::Error { text, .. } => {
                    self.platform.notify(&format!("{name} has failed"), &capitalize(text));
                }
                _ => {}
            }
        }
    }

    pub(super) fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Report { text } => self.details = Details::Text(text),
            Reply::Devices { devices } => self.take_devices(devices),
            Reply::Device { device } => self.fit.set_device(device),
            Reply::Data { spec, data } => {
                if self.requested.data.as_ref() == Some(&spec) {
                    self.settings.form.data = Some(data);
                    let form = &mut self.settings.form;
                    setup::adapt_preset(form, &mut self.setup, &self.fit, &self.devices);
                }
            }
            Reply::Preparing { name, share } => self.setup.preparing = Some((name, share)),
            Reply::Prepared { spec, warnings } => {
                self.setup.preparing = None;
                self.choose_data(&spec);
                self.setup.data_warnings = (spec, warnings);
            }
            Reply::Runs { folder, runs } => self.take_runs(folder, runs),
            Reply::Stored { data, models, usage } => {
                self.stored = Stored::new(data, models, usage);
            }
            Reply::Run { run, view: View::Main, progress, tail } => {
                if self.requested.run.as_ref() == Some(&run) {
                    self.show(run, *progress, tail);
                }
            }
            Reply::Run { run, view: View::Overlay, progress, .. } => {
                self.take_overlay(run, *progress);
            }
            Reply::Comparison { runs, configs } => {
                let [a, b] = &*configs;
                if runs[..] == self.requested.comparison[..] {
                    self.runs_state.difference = Some(runs::difference(a, b));
                }
            }
            Reply::Config { checkpoint, config } => {
                let form = &mut self.settings.form;
                form.fill_from(&config);
                form.set("init_from", checkpoint.display().to_string());
            }
            Reply::Described => self.listed = None,
            Reply::Removed { path } => self.take_removed(&path),
            Reply::Exported { to, .. } => self.note(format!("exported to {}", to.display())),
            Reply::Imported { model } => {
                // To be prompted, unless that would hide a run that trains.
                if !self.is_live() {
                    self.request_run(model.path.clone());
                }
                self.note(format!("{} is imported: it is listed under Runs", model.name));
            }
            // A text that was ended has no run to belong to.
            Reply::Sampled { .. } if self.samples.prompt.writing.is_none() => {}
            Reply::Sampled { prompt, text, done } => {
                self.samples.prompt.writing = (!done).then(|| (prompt.clone(), text.clone()));
                if done {
                    let iter = self.progress.iteration;
                    self.progress.samples.push(Sample { iter, prompt, text });
                }
            }
            Reply::Model { path, has_chat } => {
                if self.shown.as_ref() == Some(&path) {
                    self.samples.chat.offer(has_chat, self.is_live());
                    // A model without a record was shown to be tried.
                    if has_chat && self.progress.state == RunPhase::Idle {
                        self.focus_prompt();
                    }
                }
            }
            Reply::Answered { text, forgotten, done } => {
                self.samples.chat.answered(text, forgotten, done);
            }
            Reply::Obstacle(obstacle) => {
                self.obstacles.retain(|known| known.topic != obstacle.topic);
                self.obstacles.push(obstacle);
            }
            Reply::Failed { job, text, hint } => {
                let text = if hint.is_empty() { text } else { format!("{text}: {hint}") };
                self.take_failure(job, text);
            }
        }
    }

    fn take_devices(&mut self, devices: Vec<DeviceLine>) {
        if IS_PAGE && let [device] = &devices[..] {
            self.pace.set(if device.kind == DeviceKind::Software {
                Pace::SLOW
            } else {
                Pace::USUAL
            });
        }
        // A device that opens has removed what prevented that.
        self.obstacles.retain(|obstacle: &Obstacle| obstacle.can_train);
        self.devices = devices;
    }

    fn take_runs(&mut self, folder: PathBuf, runs: Vec<RunSummary>) {
        // Another folder may have been chosen meanwhile.
        if folder != absolute(&self.settings.runs) {
            return;
        }
        // A page that is loaded again shows the newest run.
        let newest = runs.first().filter(|_| IS_PAGE && self.requested.run.is_none());
        if let (Some(newest), None) = (newest, &self.shown) {
            self.runs_state.selected = vec![newest.path.clone()];
            self.request_run(newest.path.clone());
        }
        self.runs = runs;
    }

    /// Takes the curves of a run that is still to be drawn with those of the shown one.
    fn take_overlay(&mut self, run: PathBuf, progress: Progress) {
        let order = &self.runs_state.overlaid;
        if !order.contains(&run) {
            return;
        }
        let listed = self.runs.iter().find(|known| known.path == run);
        let folder = run.file_name().unwrap_or_default().to_string_lossy();
        let name = listed.map_or(&*folder, RunSummary::title).to_string();
        self.overlays.retain(|(known, _)| *known != run);
        self.overlays.push((run, Overlay { name, progress }));
        // The list shows their colours, which follow this order.
        self.overlays.sort_by_key(|(run, _)| order.iter().position(|known| known == run));
    }

    /// Forgets a run or a model that was removed.
    fn take_removed(&mut self, path: &Path) {
        self.listed = None;
        self.overlays.retain(|(run, _)| run != path);
        self.runs_state.overlaid.retain(|run| run != path);
        if self.shown.as_deref() == Some(path) && !self.is_live() {
            (self.shown, self.requested.run) = (None, None);
            self.progress = Progress::default();
            self.has_finished = false;
            self.samples.chat = ChatState::default();
        }
    }

    fn take_failure(&mut self, job: Job, text: String) {
        match job {
            Job::Prepare => {
                self.setup.preparing = None;
                self.warn(format!("the text could not be prepared: {text}"));
            }
            Job::Export => self.warn(format!("nothing was exported: {text}")),
            Job::Import => self.warn(format!("nothing was imported: {text}")),
            Job::Sample => {
                self.samples.prompt.writing = None;
                self.samples.chat.take_back();
                self.warn(text);
            }
            Job::Other => self.warn(text),
        }
    }
}
