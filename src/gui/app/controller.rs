//! Everything of the window that is not drawn: its state and its requests.

use super::requests::Requests;
use crate::gui::options::WindowOptions;
use crate::gui::platform::Platform;
use crate::gui::run::finished;
use crate::gui::state::{Notice, Shared};
use crate::protocol::{Command, Event, Level, RunError, StopReason};
use crate::text::capitalize;

pub struct Controller {
    pub options: WindowOptions,
    pub shared: Shared,
    pub requests: Requests,
    pub platform: Platform,
}

impl Controller {
    /// Applies events of the shown run.
    pub fn apply(&mut self, events: &[Event]) {
        for event in events {
            let shown = &mut self.shared.shown;
            shown.progress.apply(event);
            match event {
                Event::Start { .. } => shown.has_finished = false,
                Event::Paused { .. } | Event::Resumed { .. } => {}
                Event::Error(error) => self.notify("has failed", &error.text),
                Event::Done { reason: StopReason::Finished | StopReason::MaxTime, .. } => {
                    shown.has_finished = true;
                    let result = finished::result(&shown.progress);
                    self.notify("has finished", &result);
                    self.requests.describe_model(&self.shared.shown);
                }
                Event::Done { .. } => self.requests.describe_model(&self.shared.shown),
                _ => continue,
            }
            // The list shows the state of each run.
            self.requests.listed = None;
        }
    }

    /// Notifies a person who looks at something else about the run that trains.
    fn notify(&self, what: &str, text: &str) {
        let progress = &self.shared.shown.progress;
        let is_wanted = progress.config.as_ref().is_none_or(|config| config.notify);
        if self.shared.shown.is_live() && is_wanted {
            let name = self.shared.shown_name().unwrap_or("the run");
            self.platform.notify(&format!("{name} {what}"), &capitalize(text));
        }
    }

    /// Ends the shown run with an error that its trainer could not report.
    pub fn fail(&mut self, text: String) {
        let hint = "\"Copy details\" copies what a bug report needs";
        self.apply(&[Event::Error(RunError { text, hint: hint.into(), cause: None })]);
    }

    pub fn warn(&mut self, text: &str) {
        self.shared.tell(Notice::new(Level::Warning, capitalize(text)));
    }

    pub fn note(&mut self, text: &str) {
        self.shared.tell(Notice::new(Level::Info, capitalize(text)));
    }

    /// Sends a command to the trainer if this window has started it.
    pub fn send_to_own_run(&mut self, command: &Command) {
        if self.shared.shown.has_own_trainer() {
            self.send_command(command);
        }
    }

    pub fn send_command(&mut self, command: &Command) {
        let trainer = self.shared.shown.trainer.as_mut();
        if let Err(error) = trainer.map_or(Ok(()), |trainer| trainer.send(command)) {
            self.warn(&format!("the trainer did not receive the command: {error}"));
        }
    }

    /// Ends the text that the shown run generates: another run is about to be shown, or this one to
    /// train.
    pub fn end_text(&mut self) {
        let samples = &mut self.shared.samples;
        let is_writing = samples.prompt.writing.take().is_some();
        samples.before = None;
        if samples.chat.take_back() | is_writing | samples.inside.end() {
            self.requests.client.send(crate::protocol::Request::StopSample);
        }
    }
}
