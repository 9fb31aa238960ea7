//! Tests the window without a display: snapshots of a recorded run, keyboard shortcuts, dropped files
//! and frame times.
//!
//! The snapshots are in `tests/snapshots`; `UPDATE_SNAPSHOTS=force cargo test --release --test gui`
//! updates them all, even where a new label differs in fewer pixels than the tolerance. Every test
//! fails on a widget without an accessible name.

#![cfg(feature = "gui")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use eframe::egui::accesskit::Role;
use eframe::egui::{self, Key, Modifiers, Shape, Theme};
use egui_kittest::kittest::{By, NodeT, Queryable};
use egui_kittest::{Harness, SnapshotOptions, SnapshotResults};
use wgpt::gui::{App, WindowOptions};
use wgpt::protocol::{Event, Step};

/// The events of a demo run, recorded on lavapipe.
const RECORDED: &str = include_str!("gui/demo.jsonl");

fn recorded_events() -> Vec<Event> {
    RECORDED.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}

/// The events of the first half of the run.
fn half() -> Vec<Event> {
    let mut events = recorded_events();
    events.truncate(events.len() / 2);
    events
}

/// The number of pixels, of more than a million, that may differ from a snapshot. Rasterisers differ at
/// the edges of text and curves. SwiftShader and lavapipe differ in up to 891 pixels.
const MAX_FAILED_PIXELS: usize = 1500;

/// The same for the chart of memory, whose level line is a thousand pixels long: they differ in up to 1,605.
const MAX_FAILED_OF_MEMORY: usize = 2000;

fn tolerance(failed_pixels: usize) -> SnapshotOptions {
    SnapshotOptions::new().max_failed_pixels(failed_pixels)
}

fn window(theme: Theme, options: WindowOptions) -> Harness<'static, App> {
    let builder = Harness::builder().with_size([1360.0, 860.0]).with_theme(theme).wgpu();
    let builder = builder.with_options(tolerance(MAX_FAILED_PIXELS));
    builder.build_eframe(|creation| App::new(creation, options))
}

fn still() -> WindowOptions {
    WindowOptions { still: true, ..WindowOptions::default() }
}

/// Compares the window with its snapshots in both themes, after `prepare` set its state.
fn snapshot(name: &str, prepare: impl Fn(&mut App)) {
    let mut results = SnapshotResults::new();
    for (theme, suffix) in [(Theme::Dark, "dark"), (Theme::Light, "light")] {
        let mut harness = window(theme, still());
        prepare(harness.state_mut());
        harness.run_steps(8);
        let failed = if name == "memory" { MAX_FAILED_OF_MEMORY } else { MAX_FAILED_PIXELS };
        harness.snapshot_options(format!("{name}_{suffix}"), &tolerance(failed));
        results.extend(harness.take_snapshot_results());
    }
}

#[test]
fn empty_window() {
    snapshot("empty", |_| {});
}

#[test]
fn running_run() {
    snapshot("running", |app| app.apply(&half()));
}

#[test]
fn finished_run() {
    let events = recorded_events();
    snapshot("finished", |app| app.apply(&events));
}

#[test]
fn failed_run() {
    let replan = r#"{"v":1,"event":"replan","reason":"device_lost","text":"the device was lost","from":null,"to":null}"#;
    let error = r#"{"v":1,"event":"error","text":"the device was lost; 3 failures without a new update in between","hint":"update the graphics driver, then continue with --resume","cause":"device_lost"}"#;
    let end = [replan, error].map(|line| serde_json::from_str(line).expect("an event"));
    snapshot("crashed", |app| {
        app.apply(&half());
        app.apply(&end);
    });
}

/// Compares the part `title` of a finished run with the snapshots `name`.
fn panel_snapshot(title: &str, name: &str) {
    snapshot(name, |app| {
        app.apply(&recorded_events());
        app.bring_up(title);
    });
}

#[test]
fn learning_rate_and_gradient_norm() {
    panel_snapshot("Learning rate", "learning_rate");
}

#[test]
fn speed() {
    panel_snapshot("Speed", "speed");
}

#[test]
fn memory_and_budget() {
    panel_snapshot("Memory", "memory");
}

/// What the system reports of the GPU is above the charts of speed and memory, as long as the run trains.
#[test]
fn the_health_of_the_gpu_is_shown_while_it_trains() {
    for title in ["Speed", "Memory"] {
        let mut harness = window(Theme::Dark, still());
        let Event::Step(step) = step(1) else { unreachable!() };
        let health = serde_json::from_str(r#"{"utilization":0.97,"celsius":71.0}"#).unwrap();
        let app = harness.state_mut();
        app.apply(&recorded_events()[..2]);
        app.apply(&[Event::Step(Step { health, ..step })]);
        app.bring_up(title);
        harness.run_steps(4);
        let label = "GPU: 97% busy, 71 °C";
        assert!(harness.query_by_label(label).is_some(), "{title}");
        let done = recorded_events().pop().unwrap();
        harness.state_mut().apply(&[done]);
        harness.run_steps(4);
        assert!(harness.query_by_label(label).is_none(), "{title}");
    }
}

/// Returns the sample of a finished run whose tokens have every class of probability.
fn scored_sample() -> Event {
    let words = "The old fox found nine red baskets under the tower, and nobody asked why.";
    let probabilities = [0.9, 0.3, 0.1, 0.02, 0.001];
    let mut tokens = Vec::new();
    for (word, probability) in words.split_inclusive(' ').zip(probabilities.iter().cycle()) {
        let others = ["fox ", "bear ", "a ", "the ", ". "];
        let likeliest: Vec<_> = others
            .iter()
            .zip([0.31, 0.12, 0.05, 0.02, 0.01])
            .map(
                |(text, probability)| serde_json::json!({"text": text, "probability": probability}),
            )
            .collect();
        tokens.push(serde_json::json!({
            "text": word, "probability": probability, "likeliest": likeliest
        }));
    }
    let sample = serde_json::json!({
        "v": 1, "event": "sample", "iter": 500, "prompt": "Once upon a time. ", "text": words,
        "tokens": tokens
    });
    serde_json::from_value(sample).expect("an event")
}

/// The tokens of a sample have colors, and the tooltip of the token under the pointer lists others.
#[test]
fn tokens_are_colored_by_probability() {
    let mut results = SnapshotResults::new();
    for (theme, suffix) in [(Theme::Dark, "dark"), (Theme::Light, "light")] {
        let mut harness = window(theme, still());
        harness.ctx.all_styles_mut(|style| {
            style.interaction.tooltip_delay = 0.0;
            style.interaction.show_tooltips_only_when_still = false;
        });
        harness.state_mut().apply(&recorded_events());
        harness.state_mut().apply(&[scored_sample()]);
        harness.state_mut().bring_up("Samples");
        harness.run_steps(4);
        let point = |harness: &mut Harness<'static, App>| {
            let text = harness.get_by_label_contains("The old fox found").rect();
            harness.hover_at(text.left_top() + egui::vec2(170.0, 9.0));
            harness.run_steps(8);
            harness.query_by_label("The likeliest tokens here:").is_some()
        };
        assert!(!point(&mut harness), "the switch is off");
        harness.get_by_label("Colour by probability").click();
        harness.run_steps(4);
        assert!(point(&mut harness));
        assert!(harness.query_by_label("\"old \" had 30.0%, loss 1.20").is_some());
        assert!(harness.query_by_label(" 31.0%").is_some());
        harness.snapshot(format!("probabilities_{suffix}"));
        results.extend(harness.take_snapshot_results());
    }
}

/// The window shows the text of the iteration under the pointer, a click keeps it, and otherwise the
/// newest text is shown.
#[test]
fn pointing_at_the_loss_shows_what_the_model_wrote_there() {
    let events = recorded_events();
    let count = events.iter().filter(|event| matches!(event, Event::Sample(_))).count();
    let mut harness = window(Theme::Dark, still());
    harness.state_mut().apply(&events);
    harness.run_steps(4);
    let shows = |harness: &mut Harness<'static, App>, number: usize| {
        harness.run_steps(3);
        harness.query_by_label_contains(&format!(" {number} of {count}")).is_some()
    };
    assert!(shows(&mut harness, count));
    let chart = harness.get_by_label_contains("loss chart").rect();
    let [first, middle] =
        [8.0, 0.5 * chart.width()].map(|x| chart.left_top() + egui::vec2(x, 60.0));
    harness.hover_at(first);
    assert!(shows(&mut harness, 1));
    harness.hover_at(middle);
    assert!(shows(&mut harness, count.div_ceil(2)));
    harness.remove_cursor();
    assert!(shows(&mut harness, count));
    harness.hover_at(first);
    assert!(shows(&mut harness, 1));
    // Of a quarter of a second each.
    harness.run_steps(40);
    assert!(shows(&mut harness, count), "a pointer that rests hides the newest text");
    harness.drag_at(first);
    harness.step();
    harness.drop_at(first);
    assert!(shows(&mut harness, 1), "a click keeps it");
    harness.get_by_label("Newest").click();
    assert!(shows(&mut harness, count));
    harness.get_by_label("Sample at iteration 0").click();
    harness.step();
    harness.remove_cursor();
    assert!(shows(&mut harness, 1), "a sample is a button");
}

/// One run is finished, and the events of the other end in the middle.
#[test]
fn runs_are_listed_and_a_crashed_one_can_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<&str> = RECORDED.lines().collect();
    for (name, count) in [("first", lines.len()), ("second", lines.len() / 2)] {
        let run = folder.path().join(name);
        std::fs::create_dir_all(run.join("checkpoints/00000200")).unwrap();
        std::fs::write(run.join("checkpoints/00000200/state.json"), "{}").unwrap();
        std::fs::write(run.join("events.jsonl"), lines[..count].join("\n") + "\n").unwrap();
    }
    let options = WindowOptions { runs: folder.path().into(), ..still() };
    let mut harness = window(Theme::Light, options);
    let offer = "Continue from its last checkpoint";
    // The newest run is shown by itself: its name may be in two places.
    let listed = |harness: &mut Harness<'static, App>| {
        harness.query_by_role_and_label(Role::Button, "second").is_some()
    };
    wait(&mut harness, listed);
    harness.get_by_role_and_label(Role::Button, "second").click();
    wait(&mut harness, |harness| harness.query_by_label(offer).is_some());
    harness.get_by_role_and_label(Role::Button, "first").click();
    wait(&mut harness, |harness| harness.query_by_label_contains("500 updates").is_some());
    assert!(harness.query_by_label(offer).is_none(), "it has finished");
    let width = harness.get_by_label("New").rect().width();
    harness.run_steps(40);
    assert_eq!(harness.get_by_label("New").rect().width(), width, "the list grows");
    harness.get_by_label("Training").click();
    wait(&mut harness, |harness| harness.query_by_label_contains("500 of 500").is_some());
}

#[test]
fn a_run_that_does_not_fit() {
    snapshot("refused", |app| {
        for (key, text) in [
            ("n_layer", "48"),
            ("n_head", "25"),
            ("n_embd", "1600"),
            ("vocab_size", "50257"),
            ("vram_budget", "8GiB"),
        ] {
            app.set(key, text);
        }
    });
}

/// A change that makes the run fit is one click away from the start button.
#[test]
fn a_click_makes_a_refused_run_fit() {
    let mut harness = window(Theme::Dark, still());
    let app = harness.state_mut();
    for (key, text) in
        [("n_layer", "48"), ("n_embd", "768"), ("vocab_size", "50257"), ("vram_budget", "2GiB")]
    {
        app.set(key, text);
    }
    harness.run_steps(4);
    assert!(!is_enabled(&harness, "Start training"), "a run that does not fit can be started");
    let refusals = harness.query_all_by_label_contains("Does not fit: needs").count();
    assert_eq!(refusals, 1);
    harness.get_by_label_contains(" layers  (").click();
    harness.run_steps(4);
    assert!(is_enabled(&harness, "Start training"), "the change did not make the run fit");
    assert!(harness.query_by_label_contains("Does not fit").is_none());
}

#[test]
fn a_finished_run_offers_what_can_follow() {
    let mut harness = window(Theme::Dark, still());
    harness.state_mut().apply(&recorded_events());
    harness.run_steps(4);
    assert!(harness.query_by_label("Train on your text...").is_some());
    harness.get_by_label("Try it").click();
    harness.run_steps(4);
    assert!(harness.query_by_label("Try it").is_none(), "the notice stays");
    let focus = harness.get_by_label("Prompt").accesskit_node().is_focused();
    assert!(focus, "the prompt has no focus");
}

/// A folder with a model that no run has trained.
#[test]
fn a_model_can_be_prompted_with_options() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), "").unwrap();
    let inputs = vec![folder.path().to_path_buf()];
    let mut harness = window(Theme::Light, WindowOptions { inputs, ..still() });
    wait(&mut harness, |harness| harness.query_by_label("temperature").is_some());
    assert!(is_enabled(&harness, "Generate"), "the prompt that is shown is not generated from");
    harness.get_by_label("Prompt").type_text("Once");
    harness.run_steps(4);
    assert!(is_enabled(&harness, "Generate"));
}

/// A folder with a model whose tokenizer has the tokens of conversations.
#[test]
fn a_model_of_conversations_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), "").unwrap();
    let names = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];
    let added =
        names.iter().zip(2..).map(|(name, id)| format!(r#"{{"id":{id},"content":"{name}"}}"#));
    let added = added.collect::<Vec<_>>().join(",");
    let tokenizer = format!(
        r#"{{"added_tokens":[{added}],"model":{{"type":"BPE","merges":[],"vocab":{{"a":0,"b":1}}}}}}"#
    );
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    let inputs = vec![folder.path().to_path_buf()];
    let mut harness = window(Theme::Light, WindowOptions { inputs, ..still() });
    wait(&mut harness, |harness| harness.query_by_label("Message").is_some());
    harness.run_steps(4);
    assert!(harness.get_by_label("Message").accesskit_node().is_focused());
    assert!(!is_enabled(&harness, "Send"), "an empty message can be sent");
    harness.get_by_label("Message").type_text("ab");
    harness.run_steps(4);
    assert!(is_enabled(&harness, "Send"));
    assert!(harness.query_by_label("temperature").is_some());
    harness.get_by_label("Texts").click();
    harness.run_steps(4);
    assert!(harness.query_by_label("Message").is_none());
    assert!(harness.query_by_label("Prompt").is_some());
}

#[test]
fn escape_closes_the_help() {
    let mut harness = window(Theme::Dark, still());
    harness.key_press(Key::F1);
    harness.run_steps(4);
    assert!(harness.query_by_label("write a checkpoint now").is_some());
    harness.key_press(Key::Escape);
    harness.run_steps(4);
    assert!(harness.query_by_label("write a checkpoint now").is_none());
}

#[test]
fn a_run_is_renamed_and_a_dialog_closes_with_escape() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("first");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("events.jsonl"), RECORDED).unwrap();
    let options = WindowOptions { runs: folder.path().into(), ..still() };
    let mut harness = window(Theme::Dark, options);
    // The newest run is shown by itself.
    wait(&mut harness, |harness| harness.query_by_label_contains("500 updates").is_some());
    harness.run_steps(4);
    harness.get_by_label("Menu of first").click();
    harness.run_steps(4);
    harness.get_by_label("Rename...").click();
    harness.run_steps(4);
    harness.get_by_label("Name").type_text("Foxes");
    harness.run_steps(4);
    harness.get_by_label("Save").click();
    wait(&mut harness, |harness| harness.query_by_label("Menu of Foxes").is_some());
    assert!(read(&run.join("about.toml")).contains("Foxes"));

    harness.get_by_label("Menu of Foxes").click();
    harness.run_steps(4);
    harness.get_by_label("Delete...").click();
    harness.run_steps(4);
    assert!(harness.query_by_label("Move Foxes to the trash?").is_some());
    harness.key_press(Key::Escape);
    harness.run_steps(4);
    assert!(harness.query_by_label("Move Foxes to the trash?").is_none());
    assert!(run.exists());
}

/// A wide window has samples beside the loss, and the curves of a finished run stay where they are.
#[test]
fn a_wide_window_has_samples_beside_the_loss() {
    let mut harness = window(Theme::Light, still());
    harness.set_size(egui::vec2(1920.0, 1080.0));
    let events = recorded_events();
    let (done, before) = events.split_last().unwrap();
    harness.state_mut().apply(before);
    harness.run_steps(8);
    let place = harness.get_by_label_contains("loss chart").rect();
    harness.state_mut().apply(std::slice::from_ref(done));
    harness.run_steps(8);
    assert_eq!(harness.get_by_label_contains("loss chart").rect(), place);
    assert!(harness.get_by_label("Prompt").rect().left() > place.right());
    harness.snapshot("wide");
}

/// A new window asks one question, and shows nothing of a run.
#[test]
fn an_empty_window_offers_ways_to_a_first_run() {
    let mut harness = window(Theme::Dark, still());
    harness.run_steps(4);
    for label in ["Start the demo", "Your text", "Fine-tune a model"] {
        assert!(is_enabled(&harness, label), "{label}");
    }
    for label in ["time left", "Fits", "Start training", "All settings", "Data"] {
        assert!(harness.query_by_label_contains(label).is_none(), "{label}");
    }
    harness.get_by_label("A text from the list").click();
    harness.run_steps(8);
    assert!(harness.query_by_label("hf:roneneldan/TinyStories").is_some());
    assert!(harness.query_by_label("hellaswag").is_none(), "a text to train on");
    harness.snapshot("texts");
    harness.get_by_label("Close").click();
    harness.run_steps(4);
    assert!(harness.query_by_label("hf:roneneldan/TinyStories").is_none());
    harness.state_mut().apply(&recorded_events()[..2]);
    harness.run_steps(4);
    assert!(harness.query_by_label("Start the demo").is_none());
    assert!(harness.query_by_label_contains("time left").is_some());
}

#[test]
fn smallest_window() {
    let mut harness = window(Theme::Dark, still());
    harness.set_size(egui::vec2(900.0, 600.0));
    harness.state_mut().apply(&recorded_events());
    harness.run_steps(8);
    harness.snapshot("smallest");
}

/// Holding the lock of the run folder makes the run look active in another process.
#[test]
fn shortcuts_reach_a_run_of_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    std::fs::create_dir(&run).unwrap();
    let half: Vec<&str> = RECORDED.lines().take(half().len()).collect();
    std::fs::write(run.join("events.jsonl"), half.join("\n") + "\n").unwrap();
    let lock = File::create(run.join("lock")).unwrap();
    lock.lock().unwrap();
    let options = WindowOptions { inputs: vec![run.clone()], ..still() };
    let mut harness = window(Theme::Dark, options);
    wait(&mut harness, |harness| {
        harness.key_press_modifiers(Modifiers::COMMAND, Key::S);
        read(&run.join("commands.jsonl")).contains("checkpoint")
    });
    harness.key_press(Key::Space);
    wait(&mut harness, |_| read(&run.join("commands.jsonl")).contains("pause"));
    // The window takes the pause from the run's events, not from its own command.
    let mut record = File::options().append(true).open(run.join("events.jsonl")).unwrap();
    writeln!(record, r#"{{"v":1,"event":"paused","iter":250}}"#).unwrap();
    wait(&mut harness, |harness| harness.query_by_label("Resume").is_some());
    harness.key_press(Key::Space);
    wait(&mut harness, |_| read(&run.join("commands.jsonl")).contains("resume"));
    harness.key_press_modifiers(Modifiers::COMMAND, Key::Period);
    wait(&mut harness, |_| read(&run.join("commands.jsonl")).contains("stop"));
}

#[test]
fn the_wait_for_a_lost_device_is_counted_down() {
    let waiting =
        r#"{"v":1,"event":"waiting","text":"restarting","attempt":3,"attempts":9,"seconds":5}"#;
    let mut harness = window(Theme::Dark, still());
    harness.state_mut().apply(&recorded_events()[..2]);
    harness.state_mut().apply(&[serde_json::from_str(waiting).expect("an event")]);
    harness.run_steps(2);
    assert!(harness.query_by_label("restarting in 5 s").is_some());
    wait(&mut harness, |harness| harness.query_by_label("restarting in 3 s").is_some());
}

/// Every stop of the Tab key has a name and a place in the window, and a walk through a room ends.
#[test]
fn every_room_can_be_walked_through_by_keyboard() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), "").unwrap();
    let model = WindowOptions { inputs: vec![folder.path().into()], ..still() };
    for (room, options, label) in [
        ("start", still(), "Start the demo"),
        ("run", still(), "Finish now"),
        ("model", model, "temperature"),
    ] {
        let mut harness = window(Theme::Dark, options);
        match room {
            "run" => harness.state_mut().apply(&half()),
            "start" => harness.state_mut().set("n_layer", "3"),
            _ => {}
        }
        wait(&mut harness, |harness| harness.query_by_label(label).is_some());
        let mut names = Vec::new();
        for _ in 0..60 {
            harness.key_press(Key::Tab);
            harness.run_steps(2);
            let mut focused = harness.query_all(By::new().predicate(|node| node.is_focused()));
            let Some(node) = focused.next_back() else { continue };
            let inside = egui::Rect::from_min_size(egui::Pos2::ZERO, egui::vec2(1360.0, 860.0));
            assert!(inside.intersects(node.rect()), "{room}: {node:?}");
            let name = node.accesskit_node().label().unwrap_or_default();
            let role = node.accesskit_node().role();
            assert!(!matches!(role, Role::Label | Role::Unknown), "{room}: {name} is {role:?}");
            names.push(format!("{role:?} {name}"));
        }
        let first = names.first().unwrap();
        let again = names.iter().skip(1).position(|name| name == first);
        assert!(again.is_some_and(|length| length > 5), "{room}: {names:?}");
    }
}

fn is_enabled(harness: &Harness<'static, App>, label: &str) -> bool {
    !harness.get_by_label(label).accesskit_node().is_disabled()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Runs frames until `done`. Panics after 20 seconds.
fn wait(
    harness: &mut Harness<'static, App>,
    mut done: impl FnMut(&mut Harness<'static, App>) -> bool,
) {
    let start = Instant::now();
    while !done(harness) {
        assert!(start.elapsed().as_secs() < 20, "timed out");
        harness.step();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_dropped_text_is_prepared_next_to_the_runs() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("foxes.txt");
    std::fs::write(&text, "The fox saw nine red baskets and went home.\n".repeat(500)).unwrap();
    let options = WindowOptions { runs: folder.path().join("out"), ..still() };
    let mut harness = window(Theme::Dark, options);
    harness.input_mut().dropped_files.push(std::sync::Arc::new(Dropped(text)));
    let meta = folder.path().join("data/foxes/meta.json");
    wait(&mut harness, |_| meta.exists());
}

#[derive(Debug)]
struct Dropped(std::path::PathBuf);

impl egui::DroppedFile for Dropped {
    fn path(&self) -> &Path {
        &self.0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.0).map_err(|error| error.to_string())
    }
}

/// Returns a step event whose loss and speed scatter.
fn step(iter: u64) -> Event {
    let noise = ((iter * 2_654_435_761) % 1000) as f64 / 1000.0;
    Event::Step(Step {
        iter,
        loss: 4.0 / (1.0 + iter as f64 * 1e-4) + 0.1 * noise,
        lr: 1e-3,
        grad_norm: Some(1.0 + noise),
        tokens: 1000,
        ms: 10.0,
        tokens_per_s: 1e5 + 1e3 * noise,
        vram_bytes: Some(1 << 30),
        vram_peak_bytes: Some(1 << 30),
        ..Step::default()
    })
}

/// A tick at the right edge of a chart has half of its label outside.
#[test]
fn the_label_of_the_last_tick_is_not_cut() {
    for (last, label) in [(1000, "1,000"), (600_000, "600,000")] {
        let mut harness = window(Theme::Dark, still());
        let app = harness.state_mut();
        app.apply(&recorded_events()[..2]);
        app.apply(&(0..=last).step_by(100).map(step).collect::<Vec<_>>());
        harness.run_steps(4);
        let shapes = harness.output().shapes.iter();
        let labels: Vec<_> = shapes
            .filter_map(|clipped| match &clipped.shape {
                Shape::Text(text) if text.galley.text() == label => Some((clipped.clip_rect, text)),
                _ => None,
            })
            .collect();
        assert!(!labels.is_empty(), "no chart has the label {label}");
        for (clip, text) in labels {
            let right = text.visual_bounding_rect().right();
            assert!(right <= clip.right(), "{label} ends at {right}, the panel at {clip:?}");
        }
    }
}

/// With 600,000 points, and 200 events per second at 60 frames per second, a frame takes less than
/// 8 ms for input, panels and tessellation. The GPU's share is not measured.
#[test]
fn frames_of_a_long_run_stay_fast() {
    let mut harness = window(Theme::Dark, still());
    let past: Vec<Event> = (0..600_000).map(step).collect();
    let app = harness.state_mut();
    app.apply(&recorded_events()[..2]);
    app.apply(&past);
    harness.run_steps(4);
    let mut frames = 0u64..;
    let mut frame = |frame: u64| {
        let first = 600_000 + frame * 200 / 60;
        let new: Vec<Event> = (first..600_000 + (frame + 1) * 200 / 60).map(step).collect();
        let start = Instant::now();
        harness.state_mut().apply(&new);
        harness.step();
        let output = harness.output();
        let (shapes, scale) = (output.shapes.clone(), output.pixels_per_point);
        std::hint::black_box(harness.ctx.tessellate(shapes, scale));
        start.elapsed().as_secs_f64() * 1e3
    };
    // Other load on the machine slows some batches down, so the fastest one counts.
    let mut medians: Vec<f64> = (0..5)
        .map(|_| {
            let mut times: Vec<f64> = frames.by_ref().take(60).map(&mut frame).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    println!("median frame times, in ms: {medians:.2?}");
    assert!(medians[0] < 8.0, "{medians:?} ms");
}
