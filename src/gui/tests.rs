//! Tests of the intents that the buttons of the rooms return.

use std::path::PathBuf;
use std::time::Duration;

use eframe::egui::{self, Key};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};

use super::intent::{FileChoice, Intent};
use super::model::samples;
use super::run::control::ControlBar;
use super::run::log;
use super::state::{Library, Room, Shared, ShownRun};
use super::{dialogs, list};
use crate::config::DecayLength;
use crate::protocol::{
    Command, Event, ExportFormat, Progress, Request, RunPhase, Sample, SampleInput,
    SavedCheckpoint, ScoredToken, Setting, StopReason,
};
use crate::runs::{About, RunState, RunSummary};

/// A panel that is drawn alone. The state is the intents that it has returned.
struct Alone {
    harness: Harness<'static, Vec<Intent>>,
}

impl Alone {
    fn new(mut draw: impl FnMut(&mut egui::Ui) -> Option<Intent> + 'static) -> Self {
        let draw = move |ui: &mut egui::Ui, intents: &mut Vec<Intent>| intents.extend(draw(ui));
        let builder = Harness::builder().with_size([900.0, 600.0]);
        Self { harness: builder.build_ui_state(draw, Vec::new()) }
    }

    fn panel(draw: fn(&mut egui::Ui, &mut Shared) -> Option<Intent>, mut shared: Shared) -> Self {
        Self::new(move |ui| draw(ui, &mut shared))
    }

    /// Returns the text that a button copies.
    fn copied(&mut self, label: &str) -> Option<String> {
        self.harness.get_by_label(label).click();
        self.harness.step();
        let commands = &self.harness.output().platform_output.commands;
        commands.iter().find_map(|command| match command {
            egui::OutputCommand::CopyText(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Clicks the button with this label. Returns the intents since the last click.
    fn click(&mut self, label: &str) -> Vec<Intent> {
        self.harness.get_by_label(label).click();
        self.harness.run_steps(3);
        std::mem::take(self.harness.state_mut())
    }

    fn is_enabled(&self, label: &str) -> bool {
        !self.harness.get_by_label(label).accesskit_node().is_disabled()
    }
}

const CHECKPOINT: &str = "out/a/checkpoints/00000010";

/// The progress of the run `out/a` in this state, with a checkpoint.
fn progress(state: RunPhase) -> Progress {
    let mut progress = Progress { run: Some("out/a".into()), ..Progress::default() };
    let checkpoint = SavedCheckpoint { iter: 10, path: CHECKPOINT.into(), best: true };
    progress.apply(&Event::Checkpoint(checkpoint));
    Progress { state, ..progress }
}

fn control(progress: Progress, live: bool) -> Alone {
    let mut bar = ControlBar::default();
    Alone::new(move |ui| bar.show(ui, &progress, live))
}

#[test]
fn the_control_bar_sends_commands_to_a_live_run() {
    let mut bar = control(progress(RunPhase::Running), true);
    assert_eq!(bar.click("Pause"), [Intent::Send(Command::Pause)]);
    assert_eq!(bar.click("Checkpoint now"), [Intent::Send(Command::Checkpoint)]);
    let finish = Command::Finish { decay: DecayLength::default() };
    assert_eq!(bar.click("Finish now"), [Intent::Send(finish)]);
    assert_eq!(bar.click("Export"), []);
    for (label, format) in [
        ("Hugging Face folder...", ExportFormat::HuggingFace),
        ("Ollama and LM Studio...", ExportFormat::Ollama),
        ("GGUF file...", ExportFormat::Gguf),
        ("Web page...", ExportFormat::Page),
    ] {
        let export = Intent::Choose(FileChoice::Export("out/a".into(), format));
        assert_eq!(bar.click(label), [export]);
        bar.click("Export");
    }
    assert_eq!(bar.click("Stop and save"), [Intent::Send(Command::Stop)]);
    assert!(!bar.is_enabled("Pause"), "the run is stopping");
    let mut bar = control(progress(RunPhase::Paused), true);
    assert_eq!(bar.click("Resume"), [Intent::Send(Command::Resume)]);
    let mut bar = control(progress(RunPhase::Interrupted), false);
    assert_eq!(bar.click("Continue"), [Intent::Continue("out/a".into())]);
    let bar = control(progress(RunPhase::Finished(StopReason::Finished)), false);
    assert!(bar.is_enabled("Export"));
    for label in ["Pause", "Stop and save", "Continue", "learning rate"] {
        assert!(bar.harness.query_by_label(label).is_none(), "{label} after the end");
    }
}

#[test]
fn a_typed_learning_rate_is_sent_with_enter() {
    let mut bar = control(progress(RunPhase::Running), true);
    for (typed, sent) in [("fast", None), ("2e-4", Some(2e-4))] {
        bar.harness.get_by_label("learning rate").focus();
        bar.harness.step();
        bar.harness.key_press_modifiers(egui::Modifiers::COMMAND, Key::A);
        bar.harness.get_by_label("learning rate").type_text(typed);
        bar.harness.run_steps(2);
        bar.harness.key_press(Key::Enter);
        bar.harness.run_steps(3);
        let sent = sent.map(|rate| Intent::Send(Command::Set(Setting::LearningRate(rate))));
        assert_eq!(std::mem::take(bar.harness.state_mut()), Vec::from_iter(sent));
    }
}

pub fn run(name: &str, state: RunState) -> RunSummary {
    RunSummary {
        path: PathBuf::from("out").join(name),
        name: name.into(),
        about: About::default(),
        state,
        iteration: 10,
        max_iters: Some(100),
        loss: None,
        val_loss: None,
        best_val_loss: None,
        device: None,
        modified: Duration::ZERO,
        has_checkpoint: true,
    }
}

#[test]
fn a_run_of_the_list_is_shown_and_has_a_menu() {
    let runs = vec![
        run("a", RunState::Finished),
        run("b", RunState::Stopped),
        run("c", RunState::Running),
        run("d", RunState::Crashed),
    ];
    let library = Library { runs, ..Library::default() };
    let shown = ShownRun { folder: Some("out/a".into()), ..ShownRun::default() };
    let shared = Shared { library, shown, room: Room::Run, ..Shared::default() };
    let mut panel = Alone::panel(list::show, shared);
    assert_eq!(panel.click("New"), [Intent::New]);
    assert_eq!(panel.click("Folder..."), [Intent::Choose(FileChoice::RunsFolder)]);
    assert_eq!(panel.click("Open model..."), [Intent::Choose(FileChoice::Model)]);
    assert_eq!(panel.click("b"), [Intent::Show("out/b".into())]);
    panel.harness.get_by_label("b").click_modifiers(egui::Modifiers::COMMAND);
    panel.harness.run_steps(3);
    let compared = std::mem::take(panel.harness.state_mut());
    assert_eq!(compared, [Intent::Overlay(vec!["out/b".into()])]);
    let export = FileChoice::Export("out/b".into(), ExportFormat::Gguf);
    for (label, intent) in [
        ("Continue", Intent::Continue("out/b".into())),
        ("Train it further...", Intent::FineTune("out/b".into())),
        ("Compare", Intent::Overlay(vec!["out/b".into()])),
        ("GGUF file...", Intent::Choose(export)),
        ("Open folder", Intent::OpenFolder("out/b".into())),
    ] {
        panel.click("Menu of b");
        assert_eq!(panel.click(label), [intent]);
    }
    for (label, intents) in [
        ("Keep", vec![]),
        ("Move to the trash", vec![Intent::Ask(Request::Remove { path: "out/b".into() })]),
    ] {
        panel.click("Menu of b");
        panel.click("Delete...");
        assert_eq!(panel.click(label), intents);
    }
    panel.click("Menu of c");
    assert!(!panel.is_enabled("Continue") && !panel.is_enabled("Delete..."), "it is running");
}

fn showing(progress: Progress) -> Shared {
    Shared { shown: ShownRun { progress, ..ShownRun::default() }, ..Shared::default() }
}

#[test]
fn the_log_copies_details_and_opens_the_folder() {
    let mut panel = Alone::panel(log::show, showing(progress(RunPhase::Running)));
    let text = panel.copied("Copy details").unwrap();
    assert!(text.starts_with("wgpt ") && text.contains("run: out/a"), "{text}");
    assert_eq!(panel.click("Open folder"), [Intent::OpenFolder("out/a".into())]);
}

#[test]
fn the_help_copies_what_a_bug_report_needs() {
    let mut shared = Shared::default();
    shared.dialogs.help.is_open = true;
    let draw = |ui: &mut egui::Ui, shared: &mut Shared| {
        let intent = dialogs::show(ui, shared).pop();
        if matches!(intent, Some(Intent::Ask(Request::Doctor { .. }))) {
            shared.dialogs.help.details = Some("wgpt 1\nfolders\n".into());
        }
        intent
    };
    let mut help = Alone::panel(draw, shared);
    help.click("Show details of this machine");
    assert_eq!(help.copied("Copy").as_deref(), Some("wgpt 1\nfolders\n"));
}

#[test]
fn a_prompt_goes_to_the_run_that_trains_else_to_its_model() {
    let panel = |progress| Alone::panel(samples::show, showing(progress));
    let prompt = String::from("Once upon a time");
    let command = Command::Sample { prompt: prompt.clone(), probabilities: false };
    assert_eq!(panel(progress(RunPhase::Running)).click("Generate"), [Intent::Send(command)]);
    let mut ended = progress(RunPhase::Interrupted);
    let generate = Intent::Generate(SampleInput::Prompt(prompt));
    assert_eq!(panel(ended.clone()).click("Generate"), [generate]);
    let sample = Sample { iter: 0, prompt: "Once".into(), text: " more".into(), tokens: vec![] };
    ended.apply(&Event::Sample(sample));
    assert_eq!(panel(ended).copied("Copy").as_deref(), Some("Once more"));
}

/// A sample whose one token is its text.
fn scored(text: &str) -> Sample {
    let token = ScoredToken { text: text.into(), probability: Some(0.25), likeliest: Vec::new() };
    Sample { iter: 0, prompt: "\n".into(), text: text.into(), tokens: vec![token] }
}

#[test]
fn probabilities_are_requested_once_the_switch_is_on() {
    let mut panel = Alone::panel(samples::show, showing(progress(RunPhase::Running)));
    panel.click("Colour by probability");
    let prompt = String::from("Once upon a time");
    let command = Command::Sample { prompt, probabilities: true };
    assert_eq!(panel.click("Generate"), [Intent::Send(command)]);
}

#[test]
fn a_text_can_be_looked_into_and_so_can_an_old_sample() {
    let mut ended = progress(RunPhase::Interrupted);
    ended.apply(&Event::Sample(Sample { tokens: Vec::new(), ..scored("seven") }));
    ended.state = RunPhase::Interrupted;
    let panel = |progress| Alone::panel(samples::show, showing(progress));
    let mut sample = panel(ended.clone());
    sample.click("Colour by probability");
    let look = |text: &str| [Intent::Generate(SampleInput::Text(text.into()))];
    assert_eq!(sample.click("Look inside"), look("\nseven"));
    assert_eq!(sample.click("Stop"), [Intent::Ask(Request::StopSample)]);

    let mut pasted = panel(ended);
    pasted.click("Look inside a text");
    assert!(!pasted.is_enabled("Look inside"), "there is no text");
    let field = "Paste a text to see how likely each part of it is to the model.";
    let fill = |panel: &mut Alone| {
        let field = panel.harness.get_by_label(field);
        field.focus();
        field.type_text("Once");
        panel.harness.run_steps(2);
    };
    fill(&mut pasted);
    assert_eq!(pasted.click("Look inside"), look("Once"));
    let mut live = panel(progress(RunPhase::Running));
    live.click("Look inside a text");
    fill(&mut live);
    assert!(!live.is_enabled("Look inside"), "the run trains");
}
