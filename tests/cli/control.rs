//! Commands and signals.

use super::*;

#[cfg(unix)]
#[test]
fn a_signal_stops_with_a_checkpoint() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let folder = temporary();
        let more = ["--max_iters=1000000", "--eval_interval=1000000"];
        let args = [&["train", "--json", "--run=r"], TINY, &more].concat();
        let mut child = wgpt(folder.path()).args(&args).stdout(Stdio::piped()).spawn().unwrap();
        wait_for(&folder.path().join("r/events.jsonl"), &mut child);
        std::thread::sleep(Duration::from_millis(500));
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let events = events(&text(&output.stdout));
        assert_eq!(events.last().unwrap()["reason"], "stopped");
        let saved = named(&events, "checkpoint").last().expect("a checkpoint");
        assert_eq!(saved["iter"], events.last().unwrap()["iter"]);
    }
}

/// The kernel and the shell each send a signal when a terminal closes, and a run under nohup goes on.
#[cfg(target_os = "linux")]
#[test]
fn a_closed_terminal_stops_with_a_checkpoint_except_under_nohup() {
    for (wrapper, signals, code) in [
        (&["env", "--default-signal=HUP"][..], &["-HUP", "-HUP"][..], 129),
        (&["nohup"], &["-HUP", "-TERM"], 143),
    ] {
        let folder = temporary();
        let more = ["--max_iters=1000000", "--eval_interval=1000000"];
        let mut command = started(wrapper[0], folder.path());
        command.args(&wrapper[1..]).arg(env!("CARGO_BIN_EXE_wgpt"));
        command.args(["train", "--json", "--run=r"]).args(TINY).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        wait_for(&folder.path().join("r/events.jsonl"), &mut child);
        std::thread::sleep(Duration::from_millis(500));
        let id = child.id().to_string();
        for signal in signals {
            // The last one may find that the process has ended.
            let _ = Command::new("kill").args([signal, &*id]).stderr(Stdio::null()).status();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{wrapper:?}");
        let events = events(&text(&output.stdout));
        assert_eq!(events.last().unwrap()["reason"], "stopped");
        assert!(named(&events, "checkpoint").next().is_some(), "{wrapper:?}");
    }
}

/// A second signal does not wait for the end of a long step.
#[cfg(unix)]
#[test]
fn a_second_signal_stops_at_once() {
    let folder = temporary();
    let more = ["--gradient_accumulation_steps=100000", "--micro_batch=1", "--eval_interval=7"];
    let args = [&["train", "--json", "--run=r"], TINY, &more].concat();
    let mut child = wgpt(folder.path()).args(&args).stdout(Stdio::piped()).spawn().unwrap();
    wait_for(&folder.path().join("r/events.jsonl"), &mut child);
    let id = child.id().to_string();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(500));
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(named(&events(&text(&output.stdout)), "done").count(), 0);
}

/// Returns the message that has a worker train.
fn start(run: &str, settings: &Value, seconds: u64) -> Value {
    serde_json::json!({
        "message": "train",
        "run": run,
        "settings": settings,
        "resume": false,
        "device": "cpu",
        "device_name": null,
        "without": [],
        "self_test": { "skip": false, "limit": null, "avoids_matrices": false },
        "implementation": "auto",
        "elapsed": { "secs": seconds, "nanos": 0 },
        "max_plan": null,
        "is_restart": false,
        "shares": [],
        "verbose": 0,
        "quiet": true,
    })
}

/// The worker of a restarted run has the rest of `max_time`, not all of it. It takes one message, and
/// answers with messages.
#[test]
fn the_time_of_former_workers_counts_towards_max_time() {
    let folder = temporary();
    let events = train(folder.path(), "a", &["--max_time=2h"]);
    let config = named(&events, "start").next().unwrap()["config"].clone();
    let settings = serde_json::json!({"resolved": {"config": config, "plans_schedule": false}});
    let messages = ask_worker(wgpt(folder.path()), &start("b", &settings, 7200));
    assert_eq!(messages[0]["message"], "ready");
    let end = messages.last().unwrap();
    assert_eq!((&end["message"], &end["reason"]), (&"ended".into(), &"max_time".into()));
    assert_eq!(named(&messages, "step").count(), 0);
}

/// The window continues runs by their folders, which may be gone.
#[test]
fn a_worker_says_that_a_run_is_gone() {
    let folder = temporary();
    let messages = ask_worker(wgpt(folder.path()), &start("gone", &"recorded".into(), 0));
    let end = messages.last().unwrap();
    assert_eq!((&end["message"], &end["end"]), (&"ended".into(), &"failed".into()));
    assert!(end["text"].to_string().contains("gone: no model and no intact checkpoint"), "{end}");
    assert!(!folder.path().join("gone").exists());
}

/// The worker of a window trains what was typed, says what is odd about it, and takes the commands of other
/// windows from the file.
#[test]
fn a_worker_of_a_window_follows_the_commands_of_others() {
    let folder = temporary();
    let flags = TINY.iter().chain(&ENDLESS).filter_map(|flag| flag[2..].split_once('='));
    let mut typed: Vec<_> = flags.filter(|(name, _)| *name != "device").collect();
    typed.push(("wandb_log", "True"));
    let settings = serde_json::json!({"typed": {"preset": "demo", "flags": typed}});
    let mut request = start("r", &settings, 0);
    request["message"] = "supervise".into();
    let mut command = wgpt(folder.path());
    let mut worker =
        command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = worker.stdin.take().unwrap();
    writeln!(stdin, "{request}").unwrap();
    wait_for(&folder.path().join("r/checkpoints/00000010/state.json"), &mut worker);
    fs::write(folder.path().join("r/commands.jsonl"), "{\"command\":\"stop\"}\n").unwrap();
    let output = worker.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let messages = events(&text(&output.stdout));
    assert_eq!(named(&messages, "done").next().unwrap()["reason"], "stopped");
    let warns = |event: &Value| event["text"].to_string().contains("wandb_log");
    assert!(named(&messages, "warning").any(warns), "{:?}", messages[1]);
    drop(stdin);
}

/// A stop does not wait for the end of a long evaluation, or for the update after it.
#[test]
fn a_stop_interrupts_an_evaluation() {
    let folder = temporary();
    let more = ["--eval_iters=1000000", "--stop-on-close"];
    let args = [&["train", "--json", "--run=r"], TINY, &more].concat();
    let mut child = wgpt(folder.path())
        .args(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&folder.path().join("r/events.jsonl"), &mut child);
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = events(&text(&output.stdout));
    assert_eq!(events.last().unwrap()["reason"], "stopped");
    assert_eq!((named(&events, "eval").count(), named(&events, "step").count()), (0, 0));
}

#[test]
fn commands_on_stdin_are_applied() {
    use std::io::Write;
    let folder = temporary();
    let args = [&["train", "--json", "--run=r"], TINY, &ENDLESS].concat();
    let mut child = wgpt(folder.path())
        .args(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&folder.path().join("r/checkpoints/00000010/state.json"), &mut child);
    let commands = concat!(
        r#"{"command":"set","key":"learning_rate","value":0.0001}"#,
        "\n",
        r#"{"command":"set","key":"vram_budget","value":2e18}"#,
        "\n",
        r#"{"command":"set","key":"batch_size","value":4}"#,
        "\n",
        r#"{"command":"sample","prompt":"The ","probabilities":true}"#,
        "\n"
    );
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(commands.as_bytes()).unwrap();
    // A stop would end the sample.
    let record = folder.path().join("r/events.jsonl");
    while !fs::read_to_string(&record).unwrap().contains("\"prompt\":\"The \"") {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before the sample");
        std::thread::sleep(Duration::from_millis(50));
    }
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"{\"command\":\"stop\"}\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let events = events(&text(&output.stdout));
    let sample = named(&events, "sample").find(|sample| sample["prompt"] == "The ").unwrap();
    let tokens = sample["tokens"].as_array().unwrap();
    let texts: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(sample["text"], texts.as_str());
    // The run's own samples have none.
    assert!(named(&events, "sample").any(|sample| sample.get("tokens").is_none()));
    let warns = |text: &str| {
        named(&events, "warning").any(|warning| warning["text"].to_string().contains(text))
    };
    assert!(warns("`vram_budget` cannot be"), "no device has 2 EB");
    assert!(warns("`batch_size` cannot change during a run; learning_rate"), "{events:?}");
    assert_eq!(events.last().unwrap()["reason"], "stopped");

    // The learning rate stays when the run is resumed, until the schedule is changed.
    let end = events.last().unwrap()["iter"].as_u64().unwrap() + 2;
    let resume = |more: &str, last: u64| {
        let last = format!("--max_iters={last}");
        let args = ["train", "--json", "--resume", "--run=r", "--device=cpu", &last, more];
        let seen = super::events(&ok(folder.path(), &args));
        let rate = named(&seen, "step").last().unwrap()["lr"].as_f64().unwrap();
        // Such a run may also be told that its validation loss has risen.
        let stays = |event: &&Value| event["text"].to_string().contains("the learning rate stays");
        (rate, named(&seen, "warning").filter(stays).count())
    };
    assert_eq!(resume("--eval_iters=2", end), (0.0001, 1));
    assert_eq!(resume("--decay_lr=false", end + 2), (0.01, 0));
}

/// Views take the state of a run only from its events, so a window that opens later shows a paused run
/// as paused.
#[test]
fn a_pause_and_its_end_are_events_of_the_run() {
    use std::io::Write;
    let folder = temporary();
    let args = [&["train", "--json", "--run=r"], TINY, &ENDLESS].concat();
    let mut child = wgpt(folder.path())
        .args(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let run = folder.path().join("r");
    wait_for(&run.join("checkpoints/00000010/state.json"), &mut child);
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"{\"command\":\"pause\"}\n").unwrap();
    let recorded = || fs::read_to_string(run.join("events.jsonl")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !recorded().contains(r#""event":"paused""#) {
        assert!(Instant::now() < deadline, "no pause");
        std::thread::sleep(Duration::from_millis(20));
    }
    let length = recorded().len();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(recorded().len(), length, "a paused run trains");
    stdin.write_all(b"{\"command\":\"resume\"}\n").unwrap();
    while !recorded().contains(r#""event":"resumed""#) {
        assert!(Instant::now() < deadline, "no end of the pause");
        std::thread::sleep(Duration::from_millis(20));
    }
    stdin.write_all(b"{\"command\":\"pause\"}\n{\"command\":\"stop\"}\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = events(&text(&output.stdout));
    let at = |name: &str| named(&events, name).next().expect(name)["iter"].clone();
    assert_eq!(at("paused"), at("resumed"));
    assert_eq!(named(&events, "paused").count(), 1, "a pause that a stop follows at once is none");
    assert_eq!(events.last().unwrap()["reason"], "stopped");
}

/// A folder with the name of the next checkpoint that was not there when the run began, and has no checkpoint.
#[test]
fn a_checkpoint_replaces_what_has_its_name() {
    let folder = temporary();
    let rarely = ["--eval_interval=1000000", "--log_interval=1000"];
    let args = [&["train", "--json", "--run=r"], TINY, &ENDLESS, &rarely].concat();
    let mut command = wgpt(folder.path());
    let mut child =
        command.args(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let run = folder.path().join("r");
    wait_for(&run.join("events.jsonl"), &mut child);
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"{\"command\":\"pause\"}\n").unwrap();
    let recorded = || -> Vec<Value> {
        let text = fs::read_to_string(run.join("events.jsonl")).unwrap();
        // The last line may be half written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let wait = |name: &str| loop {
        if let Some(event) = named(&recorded(), name).next() {
            return event["iter"].as_u64().unwrap();
        }
        assert!(Instant::now() < deadline, "no {name}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let checkpoint = run.join(format!("checkpoints/{:08}", wait("paused")));
    fs::create_dir_all(&checkpoint).unwrap();
    fs::write(checkpoint.join("model.safetensors"), "half").unwrap();
    stdin.write_all(b"{\"command\":\"checkpoint\"}\n").unwrap();
    wait("checkpoint");
    assert!(checkpoint.join("state.json").exists());
    assert_ne!(fs::read(checkpoint.join("model.safetensors")).unwrap(), b"half");
    stdin.write_all(b"{\"command\":\"stop\"}\n").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}

/// Other processes can send commands through a file in the run folder. With `--stop-on-close`, a run
/// stops when its stdin closes.
#[test]
fn a_run_is_stopped_by_its_command_file_or_by_its_stdin() {
    use std::io::Write;
    for by_file in [true, false] {
        let folder = temporary();
        let args = [&["train", "--json", "--run=r", "--stop-on-close"], TINY, &ENDLESS].concat();
        let mut child = wgpt(folder.path())
            .args(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(&folder.path().join("r/checkpoints/00000010/state.json"), &mut child);
        let stdin = child.stdin.take();
        if by_file {
            let commands = folder.path().join("r/commands.jsonl");
            let mut file = fs::File::create(commands).unwrap();
            file.write_all(b"{\"command\":\"stop\"}\n").unwrap();
        } else {
            drop(stdin);
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let events = events(&text(&output.stdout));
        assert_eq!(events.last().unwrap()["reason"], "stopped");
        let saved = named(&events, "checkpoint").last().unwrap();
        assert_eq!(saved["iter"], events.last().unwrap()["iter"]);
    }
}

/// A run of weeks is told its time before it starts, and the next run knows the speed that was measured.
#[test]
fn a_run_of_weeks_is_told_its_time() {
    use std::io::{BufRead, BufReader};
    let folder = temporary();
    let args = [&["train", "--json", "--run=r"], TINY, &["--max_iters=100000000000000"]].concat();
    let mut command = wgpt(folder.path());
    // The speed of no device is known.
    set_cache(&mut command, folder.path());
    let mut child = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let before: Vec<String> =
        lines.take_while(|line| !line.contains(r#""event":"step""#)).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(before.iter().any(|line| line.contains("this run takes about")), "{before:?}");
    assert!(folder.path().join("wgpt/speeds.json").exists());
}
