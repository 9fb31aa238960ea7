//! The budget against what the driver is really asked for, counted by a driver of our own
//! (tests/driver), which forwards to the software one. `BUDGET_CASES` sets how many random runs
//! there are.

#![cfg(all(feature = "wgpu", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::Value;
use tempfile::TempDir;

const MIB: f64 = (1 << 20) as f64;

/// The manifest of the driver, which is compiled once.
fn driver() -> &'static Path {
    static MANIFEST: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, manifest) = MANIFEST.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/build.sh");
        let output = Command::new("sh").arg(script).arg(folder.path()).output().expect("a shell");
        assert!(
            output.status.success(),
            "the counting driver needs a C compiler, Vulkan's headers and Mesa's software driver \
             (Debian: gcc libvulkan-dev mesa-vulkan-drivers)\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let manifest = folder.path().join("manifest.json");
        (folder, manifest)
    });
    manifest
}

/// A run on the counting driver.
struct Run {
    output: Output,
    /// The events on stdout.
    events: Vec<Value>,
    /// What the driver counted; `Null` if no device was opened.
    counted: Value,
}

impl Run {
    fn new(args: &[String], faults: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let report = folder.path().join("report.json");
        let output = Command::new(env!("CARGO_BIN_EXE_wgpt"))
            .args(["train", "--json", "--device=vulkan:0", "--run=run"])
            .args(args)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .env_remove("VK_ADD_DRIVER_FILES")
            .env("VK_DRIVER_FILES", driver())
            .env("FAULT_REPORT", &report)
            .envs(faults.iter().copied())
            .output()
            .expect("the program starts");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let events = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let counted = std::fs::read_to_string(&report)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or(Value::Null);
        Self { output, events, counted }
    }

    fn event(&self, name: &str) -> Option<&Value> {
        self.events.iter().rev().find(|event| event["event"] == name)
    }

    fn peak(&self) -> f64 {
        self.counted["peak_bytes"].as_f64().unwrap_or(0.0)
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

/// A small model with everything that a run does, and a budget as a share of what it takes.
fn case() -> impl Strategy<Value = (Vec<String>, f64)> {
    let shape = (1..=4u32, 1..=4u32, 0..3usize, 0..3usize, 2..=16u32, 1..=2u32);
    (shape, proptest::bool::ANY, 0..2usize, 0.75..1.2f64).prop_map(
        |((layers, heads, size, block, batch, accumulation), flag, vocab, share)| {
            let width = heads * [16, 32, 64][size];
            let args = [
                "--data=builtin:stories".to_string(),
                format!("--n_layer={layers}"),
                format!("--n_head={heads}"),
                format!("--n_embd={width}"),
                format!("--block_size={}", [32, 64, 128][block]),
                format!("--batch_size={batch}"),
                format!("--gradient_accumulation_steps={accumulation}"),
                format!("--vocab_size={}", [0, 5000][vocab]),
                format!("--bias={flag}"),
                format!("--dropout={}", if flag { 0.1 } else { 0.0 }),
                "--max_iters=4".to_string(),
                "--eval_interval=2".to_string(),
                "--eval_iters=2".to_string(),
                "--log_interval=1".to_string(),
                "--sample_tokens=10".to_string(),
            ];
            (args.to_vec(), share)
        },
    )
}

#[test]
fn the_driver_is_never_asked_for_more_than_the_budget() {
    let cases = std::env::var("BUDGET_CASES").map_or(6, |n| n.parse().expect("a number"));
    let mut runner = TestRunner::deterministic();
    let (mut refused, mut cut) = (0, 0);
    for number in 0..cases {
        let (args, share) = case().new_tree(&mut runner).unwrap().current();
        let asked = plan(&args);
        let budget = (asked * share) as u64;
        let limited: Vec<String> =
            args.iter().cloned().chain([format!("--vram_budget={budget}")]).collect();
        // A driver that gives no more than the budget: one byte over it ends the run.
        let run = Run::new(&limited, &[("FAULT_CAP", &budget.to_string())]);
        if run.output.status.code() == Some(3) {
            // A device that is opened has one block for wgpu's own.
            assert!(run.peak() <= 4.0 * MIB, "refused after {} bytes: {args:?}", run.peak());
            refused += 1;
            continue;
        }
        assert!(run.output.status.success(), "{args:?} {budget}\n{}", run.stderr());
        assert_eq!(run.counted["refused"], 0, "{args:?}");
        let forecast = run.event("plan").expect("a plan");
        let predicted = forecast["predicted_bytes"].as_f64().unwrap();
        let peak = run.peak();
        println!(
            "{number}: counted {:.1}, predicted {:.1}, budget {:.1} MiB, {}",
            peak / MIB,
            predicted / MIB,
            budget as f64 / MIB,
            forecast["why"]
        );
        assert!(peak > 0.0 && peak <= budget as f64);
        assert!(peak <= predicted, "{args:?}: counted {peak}, predicted {predicted}");
        assert!(predicted <= 1.1 * peak + 32.0 * MIB, "{args:?}: {peak}, predicted {predicted}");
        let step = run.event("step").expect("a step");
        let pools = step["vram_peak_bytes"].as_f64().unwrap();
        assert!(pools > 0.0 && pools <= peak, "the meter says {pools}, the driver {peak}");
        cut += usize::from(forecast["why"] != "");
    }
    println!("{cases} runs: {refused} refused, {cut} cut");
    assert!(refused < cases && cut > 0, "{refused} refused, {cut} cut of {cases}");
}

/// A run that a failure of the device can be put into.
fn to_be_disturbed() -> Vec<String> {
    [
        "--data=builtin:stories",
        "--n_layer=2",
        "--n_head=2",
        "--n_embd=128",
        "--block_size=64",
        "--batch_size=8",
        "--gradient_accumulation_steps=1",
        "--vocab_size=5000",
        "--max_iters=6",
        "--eval_interval=2",
        "--eval_iters=2",
        "--log_interval=1",
        "--sample_tokens=10",
        "--vram_budget=none",
    ]
    .map(String::from)
    .to_vec()
}

fn losses(run: &Run) -> Vec<(u64, f64)> {
    let steps = run.events.iter().filter(|event| event["event"] == "step");
    steps.map(|step| (step["iter"].as_u64().unwrap(), step["loss"].as_f64().unwrap())).collect()
}

/// In one process, a driver that gives out, or goes away, ends the run with code 5 and words: no
/// panic, no waiting for ever.
#[test]
fn a_device_that_fails_ends_its_process_with_words() {
    let args = [to_be_disturbed(), vec!["--no-supervise".to_string()]].concat();
    let whole = Run::new(&args, &[]);
    assert!(whole.output.status.success(), "{}", whole.stderr());
    let count = |what: &str| whole.counted[what].as_u64().unwrap();
    let (allocations, submits) = (count("allocations"), count("submits"));
    let faults = [
        ("FAULT_REFUSE", "1".to_string()),
        ("FAULT_REFUSE", (allocations / 2).to_string()),
        ("FAULT_REFUSE", format!("{}+", allocations - 1)),
        ("FAULT_LOSE_SUBMIT", "2".to_string()),
        ("FAULT_LOSE_SUBMIT", (submits / 2).to_string()),
        ("FAULT_LOSE_WAIT", "1".to_string()),
        ("FAULT_LOSE_WAIT", "40".to_string()),
    ];
    for (fault, value) in faults {
        let start = Instant::now();
        let run = Run::new(&args, &[(fault, &value)]);
        println!("{fault}={value}: {:?} in {:?}", run.output.status.code(), start.elapsed());
        let error = run.stderr();
        assert!(!error.contains("panicked"), "{fault}={value}\n{error}");
        // Without its first block the device does not open.
        let code = run.output.status.code();
        assert!(matches!(code, Some(4 | 5)), "{fault}={value}: {code:?}\n{error}");
        assert!(error.contains("hint:"), "{error}");
        assert!(run.event("error").is_some(), "{fault}={value}: no event");
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

/// Under supervision a failure costs what came after the last checkpoint, and no digit.
#[test]
fn a_run_goes_on_after_its_device_has_failed() {
    let args = to_be_disturbed();
    let whole = Run::new(&args, &[]);
    assert!(whole.output.status.success(), "{}", whole.stderr());
    let undisturbed = losses(&whole);
    assert_eq!(undisturbed.len(), 6);
    let count = |what: &str| whole.counted[what].as_u64().unwrap();
    let (allocations, submits) = (count("allocations"), count("submits"));
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let faults = [
        ("FAULT_LOSE_SUBMIT", submits / 4),
        ("FAULT_LOSE_SUBMIT", submits * 3 / 4),
        ("FAULT_LOSE_WAIT", 30),
        ("FAULT_REFUSE", allocations - 1),
    ];
    for (number, (fault, value)) in faults.into_iter().enumerate() {
        let once = scratch.path().join(number.to_string());
        let once_path = once.to_str().expect("a plain path");
        let value = value.to_string();
        let run = Run::new(&args, &[(fault, &value), ("FAULT_ONCE", once_path)]);
        let error = run.stderr();
        assert!(run.output.status.success(), "{fault}={value}\n{error}");
        assert!(once.exists(), "{fault}={value}: nothing failed");
        let replan = run.event("replan").unwrap_or_else(|| panic!("{fault}={value}: no replan"));
        println!("{fault}={value}: {} {}", replan["reason"], replan["text"]);
        let lost = fault != "FAULT_REFUSE";
        assert_eq!(replan["reason"], if lost { "device_lost" } else { "out_of_memory" });
        // Steps that were made twice were made alike.
        for (iter, loss) in losses(&run) {
            let (_, wanted) = undisturbed[iter as usize];
            let off = (loss / wanted - 1.0).abs();
            assert!(if lost { off == 0.0 } else { off < 1e-4 }, "{iter}: {loss}, not {wanted}");
        }
        assert_eq!(losses(&run).last().map(|(iter, _)| *iter), Some(5));
        if !lost {
            assert_eq!(replan["from"]["micro_batch"], 8);
            assert_eq!(replan["to"]["micro_batch"], 4);
        }
    }
    // For good: the run gives up.
    let start = Instant::now();
    let run = Run::new(&args, &[("FAULT_LOSE_SUBMIT", "20")]);
    assert_eq!(run.output.status.code(), Some(5), "{}", run.stderr());
    let text = run.event("error").expect("an error")["text"].to_string();
    assert!(text.contains("3 times"), "{text}");
    println!("gave up after {:?}", start.elapsed());
}

/// The supervisor continues what it began, not what it finds; and warnings come once.
#[test]
fn another_run_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = folder.path().join("run/checkpoints/00000001");
    std::fs::create_dir_all(&checkpoint).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_wgpt"))
        .args(["train", "--device=vulkan:0", "--run=run", "--compile=True"])
        .args(to_be_disturbed())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{error}{stdout}");
    assert!(format!("{error}{stdout}").contains("there is a run in this folder already"));
    for once in ["flag --compile", "error:"] {
        let lines = error.lines().chain(stdout.lines()).filter(|line| line.contains(once));
        assert_eq!(lines.count(), 1, "{once}\n{error}{stdout}");
    }
    assert!(checkpoint.exists());
}

/// What a run takes as asked, in bytes.
fn plan(args: &[String]) -> f64 {
    let output = Command::new(env!("CARGO_BIN_EXE_wgpt"))
        .args(["plan", "--json"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let forecast: Value = serde_json::from_slice(&output.stdout).unwrap();
    forecast["predicted_bytes"].as_f64().unwrap()
}
