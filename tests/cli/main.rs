//! The program as users run it: real processes, real files.

mod adapters;
#[cfg(target_os = "linux")]
mod awake;
mod chat;
mod chats;
mod control;
mod data;
mod devices;
mod doctor;
mod errors;
mod eval;
#[cfg(unix)]
mod folders;
mod foreign;
mod get;
mod hours;
#[path = "../isolated/mod.rs"]
mod isolated;
mod nvidia;
mod parquet;
mod plan;
mod plans;
mod ranks;
mod records;
mod reports;
mod resume;
mod runs;
mod sample;
mod sweep;
mod tables;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use isolated::isolated;
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

/// Flags of a run that a test interrupts. The run keeps its first checkpoints, so that the test can
/// wait for them.
const ENDLESS: [&str; 2] = ["--max_iters=1000000", "--keep_checkpoints=1000000"];

fn wgpt(folder: &Path) -> Command {
    started(env!("CARGO_BIN_EXE_wgpt"), folder)
}

/// Returns a command for `program`, which may start wgpt, in a folder.
fn started(program: &str, folder: &Path) -> Command {
    let mut command = isolated(program);
    command.current_dir(folder).stdin(Stdio::null());
    // Open MPI removes the folder that its jobs share while another job makes its own in it.
    command.env("OMPI_MCA_orte_tmpdir_base", folder);
    command
}

fn set_cache(command: &mut Command, folder: &Path) {
    command.env(if cfg!(windows) { "LOCALAPPDATA" } else { "XDG_CACHE_HOME" }, folder);
}

fn run(folder: &Path, args: &[&str]) -> Output {
    wgpt(folder).args(args).output().expect("the program starts")
}

/// Runs a command under `strace`. Returns its output and the `calls` that it made, `None` if strace is not
/// installed.
#[cfg(target_os = "linux")]
fn traced(plain: &Command, calls: &str) -> Option<(Output, String)> {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = started("strace", plain.get_current_dir().unwrap());
    command.args(["-f", "-y", "-e", &format!("trace={calls}"), "-o"]);
    command.arg(log.path()).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "strace is not installed");
            eprintln!("skipped: strace is not installed");
            None
        }
        output => Some((output.unwrap(), fs::read_to_string(log.path()).unwrap())),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must succeed, and returns its stdout.
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

/// Has a worker answer a request, as the window does. Returns its messages.
fn ask_worker(mut program: Command, request: &Value) -> Vec<Value> {
    let program = program.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = program.spawn().unwrap();
    // When it closes, the worker stops.
    let mut stdin = worker.stdin.take().unwrap();
    writeln!(stdin, "{request}").unwrap();
    let output = worker.wait_with_output().unwrap();
    events(&text(&output.stdout))
}

/// Reads the events of a run, without the reports of progress, because a busy machine has more of
/// these.
fn events(stdout: &str) -> Vec<Value> {
    let read = |line| serde_json::from_str::<Value>(line).expect("one JSON object a line");
    stdout.lines().map(read).filter(|event| event["event"] != "working").collect()
}

fn named<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["event"] == name)
}

/// Returns the loss of each iteration as printed, with all its digits.
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
    let times: Vec<&str> = events.iter().map(|event| event["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted() && times[0].ends_with('Z'), "{times:?}");
    assert_eq!(events.first().unwrap()["event"], "start");
    assert_eq!(events.last().unwrap()["reason"], "finished");
    let loss = |event: &Value| event["val_loss"].as_f64().unwrap();
    let evals: Vec<f64> = named(&events, "eval").map(loss).collect();
    assert_eq!(evals.len(), 5, "at 0, 10, 20, 30 and 40");
    assert!(evals[4] < evals[0] - 0.5, "{evals:?}");
    assert_eq!(losses(&events).len(), 40);
    let samples: Vec<_> = named(&events, "sample").map(|event| &event["iter"]).collect();
    assert_eq!(samples, [0, 10, 20, 30, 40], "one at each evaluation");
    let first_sample = events.iter().position(|event| event["event"] == "sample");
    let first_eval = events.iter().position(|event| event["event"] == "eval");
    assert!(first_sample < first_eval, "a text comes first");
    let saved: Vec<_> = named(&events, "checkpoint").map(|event| &event["iter"]).collect();
    assert_eq!(saved, [10, 20, 30, 40], "each checkpoint is saved once");

    let run = folder.path().join("r");
    for file in ["config.toml", "events.jsonl", "log.txt", "lock"] {
        assert!(run.join(file).exists(), "{file}");
    }
    let state = fs::read_to_string(run.join("checkpoints/00000040/state.json")).unwrap();
    assert!(state.ends_with("}\n"), "{state}");
    let kept = fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), events.len());
    let log = fs::read_to_string(run.join("log.txt")).unwrap();
    assert!(log.contains("predicted") && !log.contains("host memory"), "{log}");
    for file in ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"] {
        assert!(run.join("checkpoints/00000040").join(file).exists(), "{file}");
    }
    ok(folder.path(), &["config", "check", "r/config.toml"]);
}

#[test]
fn a_run_says_how_it_computes_unless_it_is_quiet() {
    let folder = temporary();
    let said = |name: &str, more: &[&str]| {
        let args = [&["train", "--json", "--run", name], TINY, &["--max_iters=1"], more].concat();
        let output = run(folder.path(), &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let loud = said("loud", &[]);
    assert!(loud.contains("device: CPU") && loud.contains("precision: float32"), "{loud}");
    assert_eq!(said("quiet", &["-q"]), "");
}

#[test]
fn a_run_is_neither_overwritten_nor_trained_by_two_processes() {
    let folder = temporary();
    // A run without a checkpoint may be replaced.
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

/// Returns the flag of a Vulkan adapter that stores float16, as recent GPUs and Mesa's lavapipe do.
/// SwiftShader does not, and compiles every kernel anew in every process.
#[cfg(feature = "wgpu")]
fn vulkan(folder: &Path) -> String {
    let devices: Value = serde_json::from_str(&ok(folder, &["devices", "--json"])).unwrap();
    let is_able = |device: &&Value| {
        let dtypes = device["dtypes"].as_array().unwrap();
        device["backend"] == "vulkan" && dtypes.contains(&"float16".into())
    };
    let able = devices.as_array().unwrap().iter().find(is_able);
    let able = able.expect("a Vulkan adapter that stores f16, as Mesa's lavapipe does");
    format!("--device={}", able["id"].as_str().unwrap())
}

/// Returns true for the status of a process that `Child::kill` ended.
fn was_killed(status: ExitStatus) -> bool {
    status.code() == if cfg!(windows) { Some(1) } else { None }
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

/// The same global batch in micro-batches of 1, 2, 4 and 8 gives the same data and the same update.
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

/// What a run does between updates does not make them look slow.
#[test]
fn the_time_of_an_update_has_no_evaluation() {
    let folder = temporary();
    let often = ["--eval_interval=1", "--eval_iters=300", "--max_iters=10"];
    let events = train(folder.path(), "r", &often);
    let updates: f64 = named(&events, "step").map(|step| step["ms"].as_f64().unwrap()).sum();
    let whole = 1e3 * events.last().unwrap()["seconds"].as_f64().unwrap();
    // An evaluation has 600 batches, an update two.
    assert!(updates < 0.3 * whole, "{updates} of {whole} ms");
}

/// The settings of the evaluation do not change the training data.
#[test]
fn evaluation_does_not_disturb_training() {
    let folder = temporary();
    let often = train(folder.path(), "a", &["--eval_interval=1", "--eval_iters=1"]);
    let never = train(folder.path(), "b", &["--eval_interval=1000", "--eval_batch_size=1"]);
    assert_eq!(losses(&often), losses(&never));
    // Shorter windows change the validation loss only.
    let short = train(folder.path(), "c", &["--eval_interval=1000", "--eval_block_size=4"]);
    assert_eq!(losses(&short), losses(&never));
    let last = |events: &[Value]| named(events, "eval").last().unwrap()["val_loss"].as_f64();
    let (short, whole) = (last(&short).unwrap(), last(&never).unwrap());
    assert!(short != whole && (short / whole - 1.0).abs() < 0.5, "{short} and {whole}");
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
        let seed = if more.is_empty() { &["--seed=1337"] } else { more };
        ok(folder.path(), &[&args, seed].concat())
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
        assert_eq!(sample(model, &[]), written);
    }
    let tuned =
        train(folder.path(), "tuned", &["--data=data", "--init_from=hf", "--eval_only=true"]);
    assert!(named(&tuned, "eval").next().unwrap()["val_loss"].as_f64().unwrap() < 3.2);

    // The sizes of the model come from its folder, and a smaller block_size crops it.
    let plain = |more: &str| {
        let args = [
            "train",
            "--json",
            "--data=data",
            "--init_from=hf",
            "--batch_size=4",
            "--gradient_accumulation_steps=1",
            "--max_iters=1",
            "--decay_lr=false",
            "--eval_iters=4",
            "--device=cpu",
            more,
        ];
        let seen = events(&ok(folder.path(), &args));
        let config = &named(&seen, "start").next().unwrap()["config"];
        let sizes = ["n_layer", "n_embd", "block_size"].map(|key| config[key].as_u64().unwrap());
        (sizes, named(&seen, "eval").next().unwrap()["val_loss"].as_f64().unwrap())
    };
    let (sizes, loss) = plain("--run=same");
    assert_eq!(sizes, [2, 16, 16]);
    assert!(loss < 3.2, "{loss}");
    let (sizes, loss) = plain("--block_size=8");
    assert_eq!(sizes, [2, 16, 8]);
    assert!(loss < 3.3, "{loss}");

    // A run that started from another model no longer needs it once it has a checkpoint.
    train(folder.path(), "more", &["--data=data", "--init_from=back", "--max_iters=2"]);
    fs::remove_dir_all(folder.path().join("back")).unwrap();
    let args = ["train", "--resume", "--run=more", "--max_iters=3", "--device=cpu"];
    ok(folder.path(), &args);
}

#[test]
fn a_run_that_diverges_exits_with_code_6() {
    let folder = temporary();
    let wild = ["--learning_rate=1e12", "--grad_clip=0", "--warmup_iters=0", "--eval_interval=5"];
    let output = run(folder.path(), &[&["train", "--run=r"], TINY, &wild].concat());
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("learning_rate") && !said.contains("checkpoint"), "{said}");
    let kept = fs::read_to_string(folder.path().join("r/events.jsonl")).unwrap();
    assert!(kept.lines().last().unwrap().contains(r#""event":"error""#));
    let saved = fs::read_dir(folder.path().join("r/checkpoints")).unwrap().count();
    assert_eq!(saved, 0, "weights that are not finite were saved");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

/// Returns every file below a folder with its content.
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
