//! Tests of replies: how each one changes the state of the window.

use std::path::{Path, PathBuf};

use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};

use super::*;
use crate::config::{Config, Precision};
use crate::disk::absolute;
use crate::gui::state::{Before, SettingsForm};
use crate::plan::{Backend, DeviceKind, DeviceProfile, DeviceSpeed, gpu_named};
use crate::protocol::{
    DataInfo, DeviceLine, Progress, Reply, Request, RequestKind, RunView, Sample, SampleInput,
    ScoredToken,
};
use crate::runs::{RunState, RunSummary};

/// A window that requests nothing by itself.
fn window() -> Harness<'static, App> {
    let options = WindowOptions { still: true, ..WindowOptions::default() };
    let builder = Harness::builder().with_size([1360.0, 860.0]);
    builder.build_eframe(|creation| App::new(creation, options))
}

/// Returns a path at which nothing exists.
fn missing(name: &str) -> PathBuf {
    Path::new("/no/such/folder").join(name)
}

fn take(window: &mut Harness<'static, App>, reply: Reply) {
    window.state_mut().controller.take(reply);
}

fn has(harness: &mut Harness<'static, App>, label: &str) -> bool {
    harness.run_steps(3);
    harness.query_by_label_contains(label).is_some()
}

fn obstacle(topic: &str, text: &str) -> Reply {
    let obstacle =
        serde_json::json!({ "topic": topic, "text": text, "hint": "another browser has it" });
    Reply::Obstacle(serde_json::from_value(obstacle).unwrap())
}

#[test]
fn an_obstacle_stays_until_a_device_opens_or_its_topic_changes() {
    let mut window = window();
    for reply in [
        obstacle("device", "this browser has no WebGPU"),
        obstacle("quota", "the storage is small"),
        obstacle("quota", "the storage is full"),
        obstacle("driver", "the Vulkan driver crashed"),
    ] {
        take(&mut window, reply);
    }
    assert!(has(&mut window, "This browser has no WebGPU."));
    assert!(has(&mut window, "The storage is full."));
    assert!(!has(&mut window, "The storage is small."));
    take(&mut window, Reply::Devices { devices: Vec::new() });
    assert!(!has(&mut window, "This browser has no WebGPU."));
    assert!(has(&mut window, "The storage is full."));
    assert!(has(&mut window, "The Vulkan driver crashed."));
}

fn data(vocab_size: u32) -> DataInfo {
    DataInfo { vocab_size, excerpt: "The fox".into(), ..DataInfo::default() }
}

#[test]
fn data_is_described_while_it_is_the_data_of_the_form() {
    let mut window = window();
    window.state_mut().set("data", "data/mine");
    window.state_mut().controller.requests.data = Some("data/mine".into());
    take(&mut window, Reply::Data { spec: "data/other".into(), data: Ok(data(7)) });
    assert!(has(&mut window, "Reading..."));
    take(&mut window, Reply::Data { spec: "data/mine".into(), data: Ok(data(65)) });
    assert!(has(&mut window, "vocabulary of 65") && has(&mut window, "The fox"));
}

#[test]
fn texts_become_the_data_of_the_form_once_they_are_prepared() {
    let mut window = window();
    take(&mut window, Reply::Preparing { name: "foxes".into(), share: 0.5 });
    assert!(has(&mut window, "Preparing foxes"));
    let warnings = vec!["a.png was skipped".to_string()];
    take(&mut window, Reply::Prepared { spec: "data/foxes".into(), warnings });
    assert!(has(&mut window, "foxes") && has(&mut window, "a.png was skipped"));
    assert!(!has(&mut window, "Preparing foxes"));
    take(&mut window, Reply::Preparing { name: "bears".into(), share: 0.5 });
    let text = "no text".to_string();
    let hint = "choose one".to_string();
    take(&mut window, Reply::Failed { job: RequestKind::Prepare, text, hint });
    assert!(!has(&mut window, "Preparing bears") && has(&mut window, "no text"));
    assert!(has(&mut window, "choose one"));
}

#[test]
fn a_download_can_be_stopped_and_becomes_data_or_a_model() {
    let mut window = window();
    window.run_steps(2);
    window.get_by_label("Your text").click();
    window.run_steps(2);
    let fetching = |done| Reply::Fetching { name: "hf:me/texts".into(), done, all: Some(8 << 20) };
    take(&mut window, fetching(2 << 20));
    assert!(has(&mut window, "Fetching hf:me/texts") && has(&mut window, "2.00 of 8.00 MiB"));
    let is_off = |window: &Harness<'static, App>| {
        window.get_by_label("Files...").accesskit_node().is_disabled()
    };
    assert!(is_off(&window), "two texts at a time");
    window.get_by_label("Stop").click();
    window.run_steps(2);
    // The last reply of a worker that was stopped.
    let text = "the download was stopped".into();
    let hint = "Download continues it".into();
    take(&mut window, Reply::Failed { job: RequestKind::Get, text, hint });
    assert!(has(&mut window, "The download was stopped: Download continues it"));
    assert!(!has(&mut window, "Fetching hf:me/texts") && !is_off(&window));

    take(&mut window, fetching(8 << 20));
    take(&mut window, Reply::Preparing { name: "texts".into(), share: 0.5 });
    assert!(!has(&mut window, "Fetching") && has(&mut window, "Preparing texts"));
    take(&mut window, Reply::Prepared { spec: "data/texts".into(), warnings: Vec::new() });
    assert!(has(&mut window, "texts"));

    let name = "hf:me/tiny".to_string();
    let folder = missing("tiny");
    take(&mut window, Reply::Fetched { name, folder: folder.clone() });
    assert_eq!(window.state().controller.requests.run, Some(folder));
}

/// A run with one sample.
fn recorded(run: &Path, view: RunView, text: &str) -> Reply {
    let tail = crate::runs::Tail::open(run, true);
    let sample = Sample { iter: 0, prompt: "Once".into(), text: text.into(), tokens: Vec::new() };
    let progress = Box::new(Progress { samples: vec![sample], ..Progress::default() });
    Reply::Run { run: run.to_path_buf(), view, progress, tail }
}

fn sampled(text: &str, done: bool) -> Reply {
    Reply::Sampled { prompt: "Once".into(), text: text.into(), done, tokens: Vec::new() }
}

#[test]
fn only_the_run_that_was_requested_last_is_shown() {
    let mut window = window();
    let [a, b] = ["a", "b"].map(missing);
    window.state_mut().controller.requests.run = Some(b.clone());
    take(&mut window, recorded(&b, RunView::Main, " there was a bear"));
    take(&mut window, recorded(&a, RunView::Main, " there was a fox"));
    assert!(has(&mut window, "there was a bear") && !has(&mut window, "there was a fox"));
    take(&mut window, Reply::Removed { path: a });
    assert!(has(&mut window, "there was a bear"));
    take(&mut window, Reply::Removed { path: b });
    assert!(!has(&mut window, "there was a bear"), "a run that was removed stays");
}

#[test]
fn only_runs_that_are_overlaid_keep_their_curves() {
    let mut window = window();
    let [a, b, c] = ["a", "b", "c"].map(missing);
    let app = &mut window.state_mut().controller;
    app.carry_out(Intent::Overlay(vec![a.clone(), b.clone()]));
    for run in [&b, &c] {
        app.take(recorded(run, RunView::Overlay, ""));
    }
    let overlays = |app: &Controller| {
        let overlays = app.shared.library.overlays.iter();
        overlays.map(|run| (run.name.clone(), run.progress.samples.len())).collect::<Vec<_>>()
    };
    assert_eq!(overlays(app), [("a".into(), 0), ("b".into(), 1)]);
    app.carry_out(Intent::Overlay(vec![b, a]));
    assert_eq!(overlays(app), [("b".into(), 1), ("a".into(), 0)]);
    app.carry_out(Intent::Overlay(vec![c]));
    assert_eq!(overlays(app), [("c".into(), 0)]);
}

#[test]
fn a_generated_text_becomes_a_sample_of_the_shown_run() {
    let mut window = window();
    take(&mut window, sampled(" a late text", true));
    assert!(!has(&mut window, "a late text"), "nothing was requested");
    let run = missing("a");
    window.state_mut().controller.requests.run = Some(run.clone());
    take(&mut window, recorded(&run, RunView::Main, ""));
    window.state_mut().controller.shared.samples.prompt.writing = Some(Sample::default());
    take(&mut window, sampled(" there was", false));
    assert!(has(&mut window, "Once there was"));
    assert_eq!(window.state_mut().controller.shared.shown.progress.samples.len(), 1);
    take(&mut window, sampled(" there was a fox", true));
    assert!(has(&mut window, "Once there was a fox"));
    assert_eq!(window.state_mut().controller.shared.shown.progress.samples.len(), 2);
}

/// The model that a run began with writes first, and the trained one after it, to the same prompt.
#[test]
fn a_prompt_is_continued_before_and_after_the_training() {
    let mut window = window();
    let run = missing("a");
    window.state_mut().controller.requests.run = Some(run.clone());
    take(&mut window, recorded(&run, RunView::Main, ""));
    let app = &mut window.state_mut().controller;
    let base = missing("base");
    let init_from = base.display().to_string();
    let config = Config::of_preset("demo", &[("init_from", &init_from)]);
    app.shared.shown.progress.config = Some(Box::new(config));
    app.carry_out(Intent::Generate(SampleInput::Prompt("Once".into())));
    assert!(app.shared.samples.before.is_none(), "it was not asked for");
    app.shared.samples.prompt.options.before = true;
    app.carry_out(Intent::Generate(SampleInput::Prompt("Once".into())));
    let then = |app: &Controller| {
        let before = app.shared.samples.before.as_ref().expect("a text before the training");
        before.then.as_ref().map(|request| request.path.clone())
    };
    assert_eq!(then(app), Some(run));
    app.take(sampled(" it was", false));
    app.take(sampled(" it was dark", true));
    assert_eq!((then(app), app.shared.shown.progress.samples.len()), (None, 1));
    app.take(sampled(" there was a fox", true));
    assert_eq!(app.shared.shown.progress.samples.len(), 2);

    // A base that cannot answer does not keep the trained model from it, and a stop ends both.
    app.carry_out(Intent::Generate(SampleInput::Prompt("Once".into())));
    let (text, hint) = ("it has no tokenizer".into(), String::new());
    app.take(Reply::Failed { job: RequestKind::Sample, text, hint });
    let before = app.shared.samples.before.as_ref().expect("its text is the reason");
    assert_eq!((before.text.as_str(), before.then.is_none()), ("it has no tokenizer", true));
    assert!(app.shared.samples.prompt.writing.is_some());
    app.carry_out(Intent::Generate(SampleInput::Prompt("Once".into())));
    app.carry_out(Intent::Ask(Request::StopSample));
    assert!(app.shared.samples.prompt.writing.is_none());
    app.take(sampled(" it was dark", true));
    assert_eq!(app.shared.shown.progress.samples.len(), 2);
    for text in ["Before the training", "Once it was dark", "After it", "Once there was a fox"] {
        // What was requested fails, because nothing is there.
        window.state_mut().controller.shared.samples.before = Some(Before {
            input: SampleInput::Prompt("Once".into()),
            text: " it was dark".into(),
            then: None,
        });
        assert!(has(&mut window, text), "{text}");
    }
}

/// Each reply has the tokens since the one before.
#[test]
fn tokens_add_up_and_those_of_a_text_that_ended_are_left_out() {
    let mut window = window();
    let app = &mut window.state_mut().controller;
    let tokens = |text: &str| {
        let token = |text| ScoredToken { text, probability: Some(0.5), likeliest: Vec::new() };
        text.chars().map(|character| token(character.to_string())).collect::<Vec<_>>()
    };
    app.shared.samples.prompt.writing = Some(Sample::default());
    for (new, text, done) in [("On", "On", false), ("ce", "Once", false), ("", "Once", true)] {
        let tokens = tokens(new);
        app.take(Reply::Sampled { prompt: "\n".into(), text: text.into(), done, tokens });
    }
    assert_eq!(app.shared.shown.progress.samples[0].tokens, tokens("Once"));

    app.shared.samples.inside.look_into("Once".into());
    app.take(Reply::Scored { tokens: tokens("On"), done: false });
    app.take(Reply::Scored { tokens: tokens("ce"), done: false });
    assert_eq!(app.shared.samples.inside.tokens, tokens("Once"));
    app.shared.samples.inside.end();
    app.take(Reply::Scored { tokens: tokens("late"), done: true });
    assert_eq!(app.shared.samples.inside.tokens, tokens("Once"));
}

/// A window whose device has a known speed.
fn window_with_device() -> Harness<'static, App> {
    let mut window = window();
    let speed = DeviceSpeed::published(gpu_named("RTX 3060").unwrap(), Precision::FLOAT32);
    let device = DeviceProfile { speed, ..DeviceProfile::default() };
    take(&mut window, Reply::Device { device });
    window
}

/// Clicks, and counts it.
fn click(window: &mut Harness<'static, App>, label: &str, clicks: &mut u32) {
    window.run_steps(3);
    window.get_by_label(label).click();
    window.run_steps(3);
    *clicks += 1;
}

/// Counts a click on a button that opens a dialog of the system, which no test opens.
fn choose_in_dialog(window: &mut Harness<'static, App>, label: &str, clicks: &mut u32) {
    window.run_steps(3);
    assert!(!window.get_by_label(label).accesskit_node().is_disabled());
    *clicks += 1;
}

/// The replies to texts that were chosen in a dialog of the system.
fn prepared(window: &mut Harness<'static, App>, vocab_size: u32) {
    let warnings = Vec::new();
    let app = &mut window.state_mut().controller;
    app.take(Reply::Prepared { spec: "data/mine".into(), warnings });
    let spec = app.shared.settings.form.text("data");
    app.requests.data = Some(spec.clone());
    let size = DataInfo { train_tokens: 300_000_000, val_tokens: 3_000_000, ..data(vocab_size) };
    app.take(Reply::Data { spec, data: Ok(size) });
}

fn can_start(window: &mut Harness<'static, App>) -> bool {
    window.run_steps(3);
    !window.get_by_label("Start training").accesskit_node().is_disabled()
}

#[test]
fn a_book_for_ten_minutes_is_four_clicks_away() {
    let mut window = window_with_device();
    // The last one is "Start training".
    let mut clicks = 1;
    click(&mut window, "Your text", &mut clicks);
    assert!(!has(&mut window, "built-in stories"), "the demo's data");
    choose_in_dialog(&mut window, "Files...", &mut clicks);
    prepared(&mut window, 65);
    click(&mut window, "10 minutes", &mut clicks);
    assert!(can_start(&mut window) && clicks == 4);
    let form = &window.state().controller.shared.settings.form;
    assert_eq!([form.text("max_time"), form.text("init_from")], ["10m", "scratch"]);
    assert!(Path::new(&form.text("data")).is_absolute());
}

#[test]
fn fine_tuning_is_five_clicks_away() {
    let mut window = window_with_device();
    // The last one is "Start training".
    let mut clicks = 1;
    click(&mut window, "Fine-tune a model", &mut clicks);
    assert!(window.query_by_label("Files...").is_none(), "data before the model");
    choose_in_dialog(&mut window, "Choose a model...", &mut clicks);
    let config = Box::new(Config::of_preset("smollm2-135m", &[]));
    let vocab = config.vocab_size;
    take(&mut window, Reply::Config { checkpoint: missing("smol"), config });
    choose_in_dialog(&mut window, "Files...", &mut clicks);
    prepared(&mut window, vocab);
    click(&mut window, "10 minutes", &mut clicks);
    assert!(can_start(&mut window) && clicks == 5);
    let form = &window.state().controller.shared.settings.form;
    let texts = ["arch", "n_embd", "lora_rank"].map(|key| form.text(key));
    assert_eq!(texts, ["llama", "576", "16"]);
    assert_eq!(form.model(), Some(missing("smol").display().to_string()));
}

/// The demo's form once replaced another one with the same data, and nobody read the data again.
#[test]
fn a_form_that_is_replaced_keeps_what_is_known_about_its_data() {
    let mut window = window();
    let settings = &mut window.state_mut().controller.shared.settings;
    settings.form.data = Some(Ok(data(32)));
    settings.replace_form(SettingsForm::of_preset("demo"));
    assert_eq!(settings.form.vocab_size(), Some(32));
    settings.replace_form(SettingsForm::of_preset("gpt2"));
    assert_eq!(settings.form.vocab_size(), None);
}

/// Of a window that was opened in another folder, or whose data were deleted.
#[test]
fn stored_data_that_are_gone_are_no_error() {
    let mut window = window();
    for (is_stored, has_error) in [(true, false), (false, true)] {
        let app = &mut window.state_mut().controller;
        app.use_data("data/gone");
        let spec = app.shared.settings.form.text("data");
        app.requests.data = Some(spec.clone());
        app.requests.stored_data = is_stored.then(|| spec.clone());
        app.take(Reply::Data { spec, data: Err("data/gone does not exist".into()) });
        assert_eq!(has(&mut window, "does not exist"), has_error);
    }
}

#[test]
fn an_overlaid_run_is_compared_once_its_settings_arrive() {
    let mut window = window();
    let runs = ["a", "b"].map(missing);
    let app = &mut window.state_mut().controller;
    app.shared.shown.folder = Some(runs[0].clone());
    app.carry_out(Intent::Overlay(vec![runs[1].clone()]));
    app.requests.compare(&app.shared.shown, &mut app.shared.library);
    let other = Config { n_layer: 3.try_into().unwrap(), ..Config::default() };
    let configs = Box::new([Config::default(), other]);
    let unknown = ["a", "c"].map(missing);
    app.take(Reply::Comparison { runs: unknown, configs: configs.clone() });
    assert!(app.shared.library.difference.is_none());
    app.take(Reply::Comparison { runs, configs });
    let difference = app.shared.library.difference.as_deref().unwrap();
    assert!(matches!(difference, [("n_layer", _, three)] if three == "3"), "{difference:?}");
}

#[test]
fn the_runs_of_a_folder_that_is_no_longer_chosen_are_ignored() {
    let mut window = window();
    let app = &mut window.state_mut().controller;
    app.carry_out(Intent::ListRuns(missing("new")));
    let runs = vec![crate::gui::tests::run("old", RunState::Finished)];
    app.take(Reply::Runs { folder: missing("old"), runs });
    assert!(app.shared.library.runs.is_empty());
    app.take(Reply::Device { device: DeviceProfile::default() });
    // With settings, all questions have answers.
    window.state_mut().set("n_layer", "3");
    window.run_steps(3);
    window.get_by_label("Details").click();
    assert!(has(&mut window, "Set a budget by hand"));
    let devices = vec![DeviceLine {
        id: "vulkan:0".into(),
        name: "llvmpipe".into(),
        backend: Backend::Vulkan,
        kind: DeviceKind::Software,
    }];
    take(&mut window, Reply::Devices { devices });
    assert!(has(&mut window, "No graphics card found"));
}

#[test]
fn a_window_shows_the_run_that_trains_else_the_newest() {
    let run = |name: &str, state| {
        let path = missing(name);
        RunSummary { path, ..crate::gui::tests::run(name, state) }
    };
    for (first, second, shown) in
        [(RunState::Finished, RunState::Running, "b"), (RunState::Finished, RunState::Crashed, "a")]
    {
        let mut window = window();
        let app = &mut window.state_mut().controller;
        app.shared.settings.runs = missing("runs");
        let folder = absolute(&app.shared.settings.runs);
        app.take(Reply::Runs { folder, runs: vec![run("a", first), run("b", second)] });
        assert_eq!(app.requests.run, Some(missing(shown)));
    }
}
