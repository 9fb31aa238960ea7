//! Carries out the intents of panels.

use std::path::PathBuf;

use super::{App, absolute};
use crate::gui::Intent;
use crate::gui::layout::Pane;
use crate::gui::prompt::TextOptions;
use crate::protocol::{Command, Event, Request, SampleInput, SampleRequest, Texts, View};

/// The CPU as `--device` takes it.
const CPU: &str = "cpu";

impl App {
    /// Carries out the intent of a panel.
    pub(super) fn carry_out(&mut self, intent: Intent) {
        match intent {
            Intent::Send(_) if !self.shared.shown.is_live() => {
                self.warn("the shown run does not train".into());
            }
            Intent::Send(command) => self.send_command(&command),
            Intent::Start => self.start_run(),
            Intent::Continue(run) => self.continue_run(absolute(&run)),
            Intent::Show(run) => self.requests.show(absolute(&run)),
            Intent::Overlay(runs) => self.overlay(runs),
            Intent::Try => {
                self.show_panel(Pane::Samples);
                self.shared.samples.focus();
            }
            Intent::Generate(input) => self.generate(input),
            Intent::StopText => self.requests.send(Request::StopSample),
            Intent::Fork(checkpoint) => self.requests.send(Request::Fork { checkpoint }),
            Intent::Choose(choice) => self.platform.choose(choice),
            Intent::PrepareText(text) => {
                self.prepare(Texts::Text { name: "pasted".into(), text });
            }
            Intent::Describe { run, about } => {
                self.requests.send(Request::Describe { run, about });
            }
            Intent::Remove(path) => self.requests.send(Request::Remove { path }),
            Intent::OpenFolder(folder) => {
                if let Err(error) = self.platform.open_folder(&absolute(&folder)) {
                    self.warn(format!("{} could not be opened: {error}", folder.display()));
                }
            }
        }
    }

    /// Draws the curves of these runs with the curves of the shown one.
    fn overlay(&mut self, runs: Vec<PathBuf>) {
        for run in self.shared.library.overlay(runs) {
            self.requests.send(Request::ReadRun { run, view: View::Overlay });
        }
    }

    /// Has the shown run or model generate a text.
    fn generate(&mut self, input: SampleInput) {
        let samples = &mut self.shared.samples;
        let Some(path) = self.shared.shown.folder.clone() else { return samples.chat.take_back() };
        if let SampleInput::Prompt(prompt) = &input {
            samples.prompt.writing = Some((prompt.clone(), String::new()));
        }
        let now = web_time::SystemTime::now().duration_since(web_time::SystemTime::UNIX_EPOCH);
        let seed = now.map_or(0, |time| time.as_millis() as u64);
        let on_cpu = self.shared.shown.generates_on_cpu();
        let device = if on_cpu { CPU.into() } else { self.shared.settings.device.clone() };
        let TextOptions { temperature, top_k, tokens } = samples.prompt.options;
        let request = SampleRequest { path, input, tokens, temperature, top_k, seed, device };
        self.requests.send(Request::Sample(request));
    }

    /// Sends a command to the trainer.
    pub(super) fn send_command(&mut self, command: &Command) {
        let trainer = self.shared.shown.trainer.as_mut();
        if let Err(error) = trainer.map_or(Ok(()), |trainer| trainer.send(command)) {
            self.warn(format!("the trainer takes no commands: {error}"));
        }
    }

    /// Shows an error of the run.
    pub(super) fn fail(&mut self, text: String) {
        let hint =
            "Copy details has everything that is known; a run with a checkpoint can be continued";
        self.apply(&[Event::Error { text, hint: hint.into(), cause: None }]);
    }

    /// Shows a warning in the log.
    pub(super) fn warn(&mut self, text: String) {
        self.show_panel(Pane::Log);
        self.apply(&[Event::Warning { text }]);
    }

    /// Shows a note in the log.
    pub(super) fn note(&mut self, text: String) {
        self.show_panel(Pane::Log);
        self.shared.shown.progress.remark(text);
    }
}
