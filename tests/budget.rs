//! The budget against what the driver is really asked for, counted by a driver of our own
//! (tests/driver), which forwards to the software one. `BUDGET_CASES` sets how many random runs
//! there are.

#![cfg(all(feature = "wgpu", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

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

/// A driver that gives out, or goes away, ends the run with code 5 and words: no panic, no waiting
/// for ever, and what was saved can be continued.
#[test]
fn a_device_that_fails_ends_the_run_with_words() {
    let args: Vec<String> = [
        "--data=builtin:stories",
        "--n_layer=2",
        "--n_head=2",
        "--n_embd=128",
        "--block_size=64",
        "--batch_size=8",
        "--vocab_size=5000",
        "--max_iters=6",
        "--eval_interval=3",
        "--eval_iters=2",
        "--log_interval=1",
        "--sample_tokens=10",
        "--vram_budget=none",
    ]
    .map(String::from)
    .to_vec();
    let whole = Run::new(&args, &[]);
    assert!(whole.output.status.success(), "{}", whole.stderr());
    let count = |what: &str| whole.counted[what].as_u64().unwrap();
    let (allocations, submits) = (count("allocations"), count("submits"));
    let mut faults: Vec<(&str, String)> = Vec::new();
    for share in [2, 3, 5, 9] {
        faults.push(("FAULT_REFUSE", format!("{}", 1 + allocations * share / 10)));
        faults.push(("FAULT_REFUSE", format!("{}+", 1 + allocations * share / 10)));
        faults.push(("FAULT_LOSE_SUBMIT", format!("{}", 1 + submits * share / 10)));
    }
    faults.push(("FAULT_LOSE_WAIT", "1".into()));
    faults.push(("FAULT_LOSE_WAIT", "40".into()));
    for (fault, value) in faults {
        let start = std::time::Instant::now();
        let run = Run::new(&args, &[(fault, &value)]);
        let seconds = start.elapsed().as_secs();
        println!("{fault}={value}: {:?} after {seconds} s", run.output.status.code());
        let error = run.stderr();
        assert!(!error.contains("panicked"), "{fault}={value}\n{error}");
        // The first allocations are the device's own: it does not open.
        let code = run.output.status.code();
        assert!(matches!(code, Some(4 | 5)), "{fault}={value}: {code:?}\n{error}");
        assert!(error.contains("hint:"), "{error}");
        assert!(run.event("error").is_some(), "{fault}={value}: no event");
        assert!(seconds < 60);
    }
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
