//! The program as its users run it: real processes, real files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A model that trains in a second, on the built-in corpus.
const TINY: &[&str] = &[
    "--data=builtin:stories",
    "--n_layer=2",
    "--n_head=2",
    "--n_embd=16",
    "--block_size=16",
    "--batch_size=4",
    "--gradient_accumulation_steps=2",
    "--max_iters=40",
    "--lr_decay_iters=40",
    "--warmup_iters=4",
    "--learning_rate=1e-2",
    "--min_lr=1e-3",
    "--eval_interval=10",
    "--eval_iters=2",
    "--log_interval=1",
    "--sample_tokens=20",
    "--dropout=0.1",
    "--device=cpu",
];

/// A run to be interrupted: its first checkpoints stay, so that a test can wait for them.
const ENDLESS: [&str; 2] = ["--max_iters=1000000", "--keep_checkpoints=1000000"];

fn wgpt(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wgpt"));
    command.current_dir(folder).stdin(Stdio::null()).env_remove("WGPT_DEVICE");
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    wgpt(folder).args(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs what must succeed; gives stdout.
fn ok(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    assert!(output.status.success(), "{args:?}\n{}", text(&output.stderr));
    text(&output.stdout)
}

fn train(folder: &Path, run: &str, more: &[&str]) -> Vec<Value> {
    let run = format!("--run={run}");
    let args = [&["train", "--json", run.as_str()], TINY, more].concat();
    events(&ok(folder, &args))
}

fn events(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

fn named<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["event"] == name)
}

/// The loss of each iteration, as it was printed: every bit of it.
fn losses(events: &[Value]) -> BTreeMap<u64, String> {
    named(events, "step")
        .map(|step| (step["iter"].as_u64().unwrap(), step["loss"].to_string()))
        .collect()
}

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn the_loss_falls_and_the_run_folder_is_complete() {
    let folder = temporary();
    let events = train(folder.path(), "r", &[]);
    assert!(events.iter().all(|event| event["v"] == 1));
    assert_eq!(events.first().unwrap()["event"], "start");
    assert_eq!(events.last().unwrap()["reason"], "finished");
    let loss = |event: &Value| event["val_loss"].as_f64().unwrap();
    let evals: Vec<f64> = named(&events, "eval").map(loss).collect();
    assert_eq!(evals.len(), 5, "at 0, 10, 20, 30 and 40");
    assert!(evals[4] < evals[0] - 0.5, "{evals:?}");
    assert_eq!(losses(&events).len(), 40);
    assert_eq!(named(&events, "sample").count(), 1);

    let run = folder.path().join("r");
    for file in ["config.toml", "events.jsonl", "log.txt", "lock"] {
        assert!(run.join(file).exists(), "{file}");
    }
    let kept = fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), events.len());
    for file in ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"] {
        assert!(run.join("checkpoints/00000040").join(file).exists(), "{file}");
    }
    ok(folder.path(), &["config", "check", "r/config.toml"]);
}

#[test]
fn a_run_cannot_be_written_over_and_is_used_by_one_process_only() {
    let folder = temporary();
    // Without a checkpoint there is nothing to lose: the folder is still free.
    train(folder.path(), "r", &["--eval_only=true"]);
    train(folder.path(), "r", &["--max_iters=2", "--lr_decay_iters=4"]);
    let again = run(folder.path(), &[&["train", "--run=r"], TINY].concat());
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--resume"), "{}", text(&again.stderr));

    let args = [&["train", "--json", "--run=long"], TINY, &ENDLESS].concat();
    let mut first = wgpt(folder.path()).args(&args).stdout(Stdio::null()).spawn().unwrap();
    wait_for(&folder.path().join("long/checkpoints/00000010/state.json"), &mut first);
    let second = run(folder.path(), &["train", "--resume", "--run=long", "--device=cpu"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(text(&second.stderr).contains("another process"), "{}", text(&second.stderr));
    first.kill().unwrap();
    first.wait().unwrap();
}

fn wait_for(path: &Path, child: &mut Child) {
    for _ in 0..600 {
        if path.exists() {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "the run ended before {}", path.display());
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no {}", path.display());
}

/// Killed at 20 moments of its life and resumed each time, a run prints the very losses of one
/// that was left alone.
#[test]
fn kill_and_resume_change_no_bit() {
    let folder = temporary();
    let long = ["--max_iters=2000", "--lr_decay_iters=2000", "--eval_interval=15"];
    let timed = |run: &str, more: &[&str]| {
        let start = Instant::now();
        (losses(&train(folder.path(), run, more)), start.elapsed())
    };
    let (_, startup) = timed("short", &["--max_iters=1"]);
    let (want, whole) = timed("whole", &long);
    assert_eq!(want.len(), 2000);

    let args = [&["train", "--json", "--run=killed"], TINY, &long].concat();
    let mut got = BTreeMap::new();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut kills = 0;
    loop {
        // Until there is a checkpoint the run begins anew, in the same folder.
        let has_checkpoint = fs::read_dir(folder.path().join("killed/checkpoints"))
            .is_ok_and(|entries| entries.flatten().any(|e| e.path().join("state.json").exists()));
        if !has_checkpoint {
            let _ = fs::remove_dir_all(folder.path().join("killed"));
        }
        let mut command = wgpt(folder.path());
        command.args(&args).stdout(Stdio::piped()).stderr(Stdio::piped());
        if has_checkpoint {
            command.arg("--resume");
        }
        let mut child = command.spawn().unwrap();
        if kills < 20 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // On average a fortieth of the run, so that it is not over before the last kill.
            std::thread::sleep(startup + whole.mul_f64((random % 1000) as f64 / 20_000.0));
            child.kill().unwrap();
            kills += 1;
        }
        let output = child.wait_with_output().unwrap();
        let stdout = text(&output.stdout);
        // The last line of a killed process may be cut short.
        let complete = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
        let seen = events(complete);
        got.extend(losses(&seen));
        if output.status.success() {
            assert_eq!(seen.last().unwrap()["reason"], "finished");
            break;
        }
        assert!(output.status.code().is_none(), "killed, not failed: {}", text(&output.stderr));
    }
    assert_eq!(kills, 20);
    assert_eq!(got, want);
}

/// The same global batch in micro-batches of 1, 2, 4 and 8: the same data, the same update.
#[test]
fn micro_batches_change_only_rounding() {
    let folder = temporary();
    let run = |micro: &str| {
        let micro = format!("--micro_batch={micro}");
        let events = train(folder.path(), &micro[2..], &[&micro, "--max_iters=20"]);
        let loss = |step: &Value| step["loss"].as_f64().unwrap();
        named(&events, "step").map(loss).collect::<Vec<f64>>()
    };
    let whole = run("8");
    assert_eq!(whole.len(), 20);
    for micro in ["1", "2", "4"] {
        for (step, (a, b)) in run(micro).iter().zip(&whole).enumerate() {
            assert!((a - b).abs() < 1e-4 * b.abs(), "micro-batch {micro}, step {step}: {a} {b}");
        }
    }
}

/// The evaluation's windows and batch leave the training data alone.
#[test]
fn evaluation_does_not_disturb_training() {
    let folder = temporary();
    let often = train(folder.path(), "a", &["--eval_interval=1", "--eval_iters=1"]);
    let never = train(folder.path(), "b", &["--eval_interval=1000", "--eval_batch_size=1"]);
    assert_eq!(losses(&often), losses(&never));
    // Shorter windows are another measurement, and no more.
    let short = train(folder.path(), "c", &["--eval_interval=1000", "--eval_block_size=4"]);
    assert_eq!(losses(&short), losses(&never));
    let last = |events: &[Value]| named(events, "eval").last().unwrap()["val_loss"].as_f64();
    let (short, whole) = (last(&short).unwrap(), last(&never).unwrap());
    assert!(short != whole && (short / whole - 1.0).abs() < 0.5, "{short} and {whole}");
}

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

#[test]
fn commands_on_stdin_are_obeyed() {
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
        r#"{"command":"sample","prompt":"The "}"#,
        "\n",
        r#"{"command":"stop"}"#,
        "\n"
    );
    child.stdin.as_mut().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let events = events(&text(&output.stdout));
    assert_eq!(named(&events, "sample").next().unwrap()["prompt"], "The ");
    assert_eq!(events.last().unwrap()["reason"], "stopped");
}

/// A run that others started or left can be told what to do by a file in its folder; and one that
/// was asked to ends with whoever holds its stdin.
#[test]
fn commands_reach_a_run_by_its_folder_and_its_stdin_can_be_its_leash() {
    use std::io::Write;
    for by_file in [true, false] {
        let folder = temporary();
        let args = [&["train", "--json", "--run=r", "--stop-on-eof"], TINY, &ENDLESS].concat();
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

/// What is damaged is noticed, and the checkpoint before it is used.
#[test]
fn a_damaged_checkpoint_falls_back_to_the_one_before() {
    let folder = temporary();
    let want = losses(&train(folder.path(), "r", &["--max_iters=40"]));
    for (number, file) in
        ["model.safetensors", "optimizer.safetensors", "state.json"].iter().enumerate()
    {
        let run = format!("damaged-{number}");
        train(folder.path(), &run, &["--max_iters=20"]);
        let newest = folder.path().join(&run).join("checkpoints/00000020");
        let bytes = fs::read(newest.join(file)).unwrap();
        fs::write(newest.join(file), &bytes[..bytes.len() / 2]).unwrap();
        let args = ["train", "--json", "--resume", "--run", &run, "--max_iters=40", "--device=cpu"];
        let events = events(&ok(folder.path(), &args));
        assert!(named(&events, "warning").count() > 0, "{file}: no word about the damage");
        assert!(newest.with_file_name("damaged-00000020").exists(), "{file}: it still counts");
        assert_eq!(named(&events, "start").next().unwrap()["resumed_from"], 10);
        for (iter, loss) in losses(&events) {
            assert_eq!(loss, want[&iter], "{file}, iteration {iter}");
        }
    }
}

/// A disk that is full: the run goes on, says so, and the former checkpoint stays whole.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_no_checkpoint() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=10"]);
    let script = format!(
        "ulimit -f 20; trap '' XFSZ; exec {} train --json --resume --run=r --max_iters=20 --device=cpu",
        env!("CARGO_BIN_EXE_wgpt")
    );
    let output =
        Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let seen = events(&text(&output.stdout));
    assert!(named(&seen, "warning").any(|w| w["text"].to_string().contains("no checkpoint")));
    let left: Vec<PathBuf> = fs::read_dir(folder.path().join("r/checkpoints"))
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .collect();
    assert_eq!(left, [folder.path().join("r/checkpoints/00000010")]);
    let args = ["train", "--json", "--resume", "--run=r", "--max_iters=20", "--device=cpu"];
    assert_eq!(
        named(&events(&ok(folder.path(), &args)), "start").next().unwrap()["resumed_from"],
        10
    );
}

#[test]
fn prepare_train_sample_eval_export_import() {
    let folder = temporary();
    let story = "The fox looked at the moon. The moon looked back.\n".repeat(200);
    fs::write(folder.path().join("story.txt"), story).unwrap();
    ok(folder.path(), &["prepare", "story.txt", "-o", "data", "--tokenizer", "char"]);
    train(folder.path(), "r", &["--data=data"]);
    let sample = |model: &str, more: &[&str]| {
        let args = ["sample", model, "--start", "The ", "--max-new-tokens=40", "--device=cpu"];
        ok(folder.path(), &[&args, more].concat())
    };
    let written = sample("r", &[]);
    assert!(written.starts_with("The ") && written.len() > 40, "{written}");
    assert_eq!(written, sample("r", &[]), "the same seed, the same text");
    assert_ne!(written, sample("r", &["--seed=7"]));

    let eval = |model: &str, more: &[&str]| -> f64 {
        let args = [&["eval", model, "--json", "--device=cpu"], more].concat();
        let value: Value = serde_json::from_str(&ok(folder.path(), &args)).unwrap();
        value["val_loss"].as_f64().unwrap()
    };
    let loss = eval("r", &[]);
    assert!(loss < 3.0, "{loss}");
    ok(folder.path(), &["export", "r", "-o", "hf"]);
    ok(folder.path(), &["import", "hf", "-o", "back"]);
    for model in ["hf", "back"] {
        assert_eq!(eval(model, &["--data=data"]), loss);
        assert_eq!(sample(model, &["--data=data"]), written);
    }
    let tuned =
        train(folder.path(), "tuned", &["--data=data", "--init_from=hf", "--eval_only=true"]);
    assert!(named(&tuned, "eval").next().unwrap()["val_loss"].as_f64().unwrap() < 3.2);

    // A run that began from another model needs it no more once it has a checkpoint.
    train(folder.path(), "more", &["--data=data", "--init_from=back", "--max_iters=2"]);
    fs::remove_dir_all(folder.path().join("back")).unwrap();
    let args = ["train", "--resume", "--run=more", "--max_iters=3", "--device=cpu"];
    ok(folder.path(), &args);
}

#[test]
fn a_run_that_diverges_ends_with_its_own_exit_code() {
    let folder = temporary();
    let wild = ["--learning_rate=1e12", "--grad_clip=0", "--warmup_iters=0", "--eval_interval=5"];
    let output = run(folder.path(), &[&["train", "--run=r"], TINY, &wild].concat());
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("learning_rate"), "{}", text(&output.stderr));
    let kept = fs::read_to_string(folder.path().join("r/events.jsonl")).unwrap();
    assert!(kept.lines().last().unwrap().contains(r#""event":"error""#));
    let saved = fs::read_dir(folder.path().join("r/checkpoints")).unwrap().count();
    assert_eq!(saved, 0, "a model of no numbers was saved");
}

/// Each line: what is typed, the exit code, and what the one error line must contain.
#[test]
fn bad_input_gets_one_clear_line() {
    let folder = temporary();
    let path = folder.path();
    fs::write(path.join("story.txt"), "to be or not to be\n".repeat(100)).unwrap();
    ok(path, &["prepare", "story.txt", "-o", "good", "--tokenizer", "char"]);
    fs::create_dir_all(path.join("raw")).unwrap();
    let tokens = |ids: &[u16]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    fs::write(path.join("raw/train.bin"), tokens(&[7; 500])).unwrap();
    fs::write(path.join("raw/val.bin"), tokens(&[60_000; 500])).unwrap();
    copy(&path.join("raw"), &path.join("odd"));
    fs::write(path.join("odd/train.bin"), [1, 2, 3]).unwrap();
    fs::write(path.join("bad.toml"), "batch_size = \"many\"\n").unwrap();
    fs::write(path.join("bad.py"), "import os\n").unwrap();
    train(path, "r", &["--max_iters=2"]);
    copy(&path.join("r/checkpoints/00000002"), &path.join("cut"));
    let weights = fs::read(path.join("cut/model.safetensors")).unwrap();
    fs::write(path.join("cut/model.safetensors"), &weights[..weights.len() - 9]).unwrap();
    copy(&path.join("cut"), &path.join("foreign"));
    fs::remove_file(path.join("foreign/state.json")).unwrap();
    fs::write(path.join("not.pt"), "no pickle").unwrap();

    #[rustfmt::skip] // One case a line: this is read as a table.
    let cases: &[(&[&str], i32, &str)] = &[
        (&["train", "--batch_sise=8"], 2, "batch_size"),
        (&["train", "--data=good", "--batch_size=many"], 2, "batch_size"),
        (&["train", "--data=good", "--n_embd=30", "--n_head=4"], 2, "n_head"),
        (&["train", "--data=good", "--batch_size=0"], 2, "batch_size"),
        (&["train", "--data=good", "--block_size=99999999999"], 2, "block_size"),
        (&["train", "--data=good", "--learning_rate=nan"], 2, "learning_rate"),
        (&["train", "--data=good", "--block_size=100000"], 7, "100001"),
        (&["train"], 2, "data"),
        (&["train", "--data=nowhere"], 7, "wgpt prepare"),
        (&["train", "--data=raw", "--block_size=16"], 7, "60000"),
        (&["train", "--data=odd", "--block_size=1"], 7, "3"),
        (&["train", "bad.toml"], 2, "bad.toml:1"),
        (&["train", "bad.py"], 2, "bad.py:1"),
        (&["train", "nothing.toml"], 2, "nothing.toml"),
        (&["train", "--preset=gpt5"], 2, "gpt2"),
        (&["train", "--data=good", "--device=tpu"], 2, "tpu"),
        (&["train", "--data=good", "--device=vulkan:99"], 4, "vulkan:99"),
        (&["train", "--data=good", "--ops=fast"], 2, "reference"),
        (&["train", "--resume", "--run=nowhere"], 2, "no run"),
        (&["train", "--data=good", "--init_from=nowhere", "--block_size=16"], 7, "nowhere"),
        (&["train", "--resume", "--run=r", "--n_layer=3", "--max_iters=3"], 2, "n_layer"),
        (&["sample", "nowhere"], 7, "nowhere"),
        (&["sample", "cut"], 7, "model.safetensors"),
        (&["sample", "foreign", "--data=builtin:stories"], 7, "cut short"),
        (&["sample", "not.pt"], 7, "not.pt"),
        (&["sample", "r", "--start="], 2, "empty prompt"),
        (&["sample", "r", "--start=\u{1f600}"], 7, "character"),
        (&["eval", "r", "--data=nowhere"], 7, "nowhere"),
        (&["prepare", "nowhere.txt", "-o", "new"], 7, "nowhere.txt"),
        (&["prepare", "story.txt", "-o", "good"], 7, "--force"),
        (&["export", "nowhere", "-o", "new"], 7, "nowhere"),
    ];
    let before = listing(path);
    for (args, code, word) in cases {
        let device: &[&str] = if args.iter().any(|arg| arg.starts_with("--device")) {
            &[]
        } else {
            &["--device=cpu"]
        };
        let output = run(path, &[args, device].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}\n{said}");
        assert!(said.contains(word), "{args:?} does not say `{word}`:\n{said}");
        assert!(!said.contains("panicked"), "{args:?}\n{said}");
    }
    let after = listing(path);
    for (file, bytes) in &before {
        // A run folder logs that it was opened again; nothing else is touched.
        if !file.ends_with("events.jsonl") && !file.ends_with("log.txt") {
            assert_eq!(after.get(file), Some(bytes), "{} changed", file.display());
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Every file below a folder, with its content.
fn listing(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => open.push(path),
                path => {
                    let bytes = fs::read(&path).unwrap();
                    found.insert(path, bytes);
                }
            }
        }
    }
    found
}

/// Runs that ended with `CUDA out of memory` elsewhere, on a card of 12 GiB: the commands of
/// docs/memory.md.
#[test]
fn what_ran_out_of_memory_elsewhere_fits() {
    let folder = temporary();
    let stories = [
        "--batch_size=64 --gradient_accumulation_steps=1",
        "--batch_size=16 --gradient_accumulation_steps=32",
        "--n_embd=576 --n_head=9",
        "--batch_size=8 --eval_iters=200",
    ];
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/memory.md");
    let page = fs::read_to_string(page).unwrap();
    for story in stories {
        let command = format!("wgpt plan --preset=gpt2 --target 12GiB {story}");
        assert!(page.lines().any(|line| line == command), "docs/memory.md has no `{command}`");
        let mut args: Vec<&str> = command.split(' ').skip(1).collect();
        args.push("--json");
        let forecast: Value = serde_json::from_str(&ok(folder.path(), &args)).unwrap();
        assert_eq!(forecast["fits"], true);
        let total = forecast["predicted_bytes"].as_u64().unwrap();
        let budget = forecast["budget_bytes"].as_u64().unwrap();
        assert!(total <= budget && budget <= 12 << 30, "{story}: {total} of {budget}");
        let rows = forecast["rows"].as_array().unwrap();
        let sum: u64 = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum, total);
    }
}

/// What does not fit ends before anything is written, with changes that would fit.
#[test]
fn what_does_not_fit_is_refused_with_three_ways_out() {
    let folder = temporary();
    let args = ["plan", "--preset=gpt2-xl", "--target", "12GiB"];
    let output = run(folder.path(), &args);
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    let (_, fixes) = error.split_once("it would fit with ").unwrap_or_else(|| panic!("{error}"));
    // The last way is a larger budget; the others are options that can be tried.
    let options: Vec<&str> = fixes
        .lines()
        .next()
        .unwrap()
        .split(", or ")
        .filter_map(|fix| fix.split(" (").next())
        .collect();
    assert_eq!(options.len(), 3, "{fixes}");
    for option in options {
        ok(folder.path(), &[&args[..], &option.split(' ').collect::<Vec<_>>()].concat());
    }
    let suggested = run(folder.path(), &[&args[..], &["--suggest"]].concat());
    let suggested = text(&suggested.stdout);
    let (_, lines) = suggested.split_once("would fit:\n").unwrap_or_else(|| panic!("{suggested}"));
    assert_eq!(lines.lines().filter(|line| line.contains("--") && line.contains("iB")).count(), 3);
    let run_folder = folder.path().join("run");
    let refused =
        run(folder.path(), &[&["train", "--run=run", "--vram_budget=64KiB"], TINY].concat());
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(!run_folder.exists());
}

#[test]
fn output_that_nobody_reads_is_no_panic() {
    let folder = temporary();
    for args in [&["completions", "bash"][..], &["config", "init", "--preset=gpt2"], &["devices"]] {
        let mut child = wgpt(folder.path())
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(!text(&output.stderr).contains("panicked"), "{args:?}: {}", text(&output.stderr));
    }
}
