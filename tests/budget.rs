//! The budget and the recovery, on a Vulkan driver that counts and fails (tests/driver) and forwards to
//! the software renderer. `BUDGET_CASES` sets the number of random runs.

#![cfg(all(feature = "wgpu", target_os = "linux"))]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::Value;
use tempfile::TempDir;

const MIB: f64 = (1 << 20) as f64;

/// Compiles the driver once; returns its manifest.
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
    /// The report of the driver; `Null` if no device was opened.
    counted: Value,
    /// The events in the run folder.
    recorded: String,
}

impl Run {
    fn new(args: &[String], faults: &[(&str, &str)]) -> Self {
        Self::with_commands(args, &[], faults)
    }

    /// Runs with `lines` on stdin after the first step; then stdin closes.
    fn with_commands(args: &[String], lines: &[&str], faults: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let report = folder.path().join("report.json");
        let mut child = Command::new(env!("CARGO_BIN_EXE_wgpt"))
            .args(["train", "--json", "--device=vulkan:0", "--run=run"])
            .args(args)
            .current_dir(folder.path())
            .stdin(if lines.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_remove("VK_ADD_DRIVER_FILES")
            .env("VK_DRIVER_FILES", driver())
            .env("FAULT_REPORT", &report)
            .envs(faults.iter().copied())
            .spawn()
            .expect("the program starts");
        let mut stdin = child.stdin.take();
        let mut events: Vec<Value> = Vec::new();
        for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
            events.push(serde_json::from_str(&line.expect("text")).expect("an event"));
            if events.last().is_some_and(|event| event["event"] == "step")
                && let Some(mut stdin) = stdin.take()
            {
                stdin.write_all(lines.concat().as_bytes()).expect("the program reads");
            }
        }
        let output = child.wait_with_output().expect("the program ends");
        let counted = std::fs::read_to_string(&report)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or(Value::Null);
        let recorded = std::fs::read_to_string(folder.path().join("run/events.jsonl"));
        Self { output, events, counted, recorded: recorded.unwrap_or_default() }
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

/// Generates the flags of a small run with evaluations and samples, and its budget as a share of the
/// memory that it takes.
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
fn a_run_never_allocates_more_than_its_budget() {
    let cases = std::env::var("BUDGET_CASES").map_or(6, |n| n.parse().expect("a number"));
    // To continue a long test that was interrupted.
    let first = std::env::var("BUDGET_FIRST").map_or(0, |n| n.parse().expect("a number"));
    let mut runner = TestRunner::deterministic();
    let (mut refused, mut cut) = (0, 0);
    for number in 0..cases {
        let (args, share) = case().new_tree(&mut runner).unwrap().current();
        if number < first {
            continue;
        }
        let asked = plan(&args);
        let budget = (asked * share) as u64;
        let limited: Vec<String> =
            args.iter().cloned().chain([format!("--vram_budget={budget}")]).collect();
        // The driver gives no more than the budget: one byte more ends the run.
        let run = Run::new(&limited, &[("FAULT_CAP", &budget.to_string())]);
        if run.output.status.code() == Some(3) {
            assert_eq!(run.peak(), 0.0, "refused, but not before: {args:?}");
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
    println!("{first} to {cases}: {refused} refused, {cut} cut");
    assert!(refused < cases - first && cut > 0, "{refused} refused, {cut} cut of {cases}");
}

/// Returns the flags of a run to inject failures into.
fn small_run() -> Vec<String> {
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

/// Without a supervisor, out-of-memory or a lost device ends the run with code 5 and an error: it neither
/// panics nor hangs.
#[test]
fn a_failing_device_ends_its_process_with_an_error() {
    let args = [small_run(), vec!["--no-supervise".to_string()]].concat();
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
        // Without its first allocation the device does not open.
        let code = run.output.status.code();
        assert!(matches!(code, Some(4 | 5)), "{fault}={value}: {code:?}\n{error}");
        assert!(error.contains("hint:"), "{error}");
        assert!(run.event("error").is_some(), "{fault}={value}: no event");
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

/// The number of points at which a run fails: a few here, 50 for docs/memory.md.
fn points() -> u64 {
    std::env::var("BUDGET_POINTS").map_or(3, |n| n.parse().expect("a number"))
}

/// Runs `args` with a fault in one of their processes; also returns true if the fault fired.
fn run_with_fault(args: &[String], fault: &str, value: u64) -> (Run, bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let once = folder.path().join("once");
    let faults =
        [(fault, value.to_string()), ("FAULT_ONCE", once.to_str().expect("a path").to_string())];
    let start = Instant::now();
    let run = Run::new(args, &faults.each_ref().map(|(name, value)| (*name, value.as_str())));
    println!("{fault}={value}: {:?} in {:?}", run.output.status.code(), start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(60), "{fault}={value}: {:?}", start.elapsed());
    (run, once.exists())
}

/// Checks that every loss of `run` is that of the undisturbed run, also of steps that were repeated.
fn assert_same_losses(run: &Run, undisturbed: &[(u64, f64)], tolerance: f64) {
    for (iter, loss) in losses(run) {
        let (_, wanted) = undisturbed[iter as usize];
        let off = (loss / wanted - 1.0).abs();
        assert!(off <= tolerance, "{iter}: {loss}, not {wanted}");
    }
}

/// With a supervisor, a lost device costs the steps after the last checkpoint, and no digit.
#[test]
fn a_run_continues_after_its_device_was_lost() {
    let args = small_run();
    let whole = Run::new(&args, &[]);
    assert!(whole.output.status.success(), "{}", whole.stderr());
    let undisturbed = losses(&whole);
    assert_eq!(undisturbed.len(), 6);
    let count = |what: &str| whole.counted[what].as_u64().unwrap();
    let mut fired_count = 0;
    for point in 0..points() {
        let (fault, calls) = match point % 2 {
            0 => ("FAULT_LOSE_SUBMIT", count("submits")),
            // The number of waits grows with the load of the machine.
            _ => ("FAULT_LOSE_WAIT", count("waits") / 8),
        };
        // Spread over the run without its end, where the calls differ from run to run.
        let value = 1 + calls * (point + 1) / (points() + 2);
        let (run, fired) = run_with_fault(&args, fault, value);
        assert!(run.output.status.success(), "{fault}={value}\n{}", run.stderr());
        assert_same_losses(&run, &undisturbed, 0.0);
        assert_eq!(losses(&run).last().map(|(iter, _)| *iter), Some(5));
        if fired {
            let replan = run.event("replan").unwrap_or_else(|| panic!("{fault}={value}"));
            assert_eq!(replan["reason"], "device_lost");
            assert!(run.recorded.contains("\"replan\""), "events.jsonl has no replan");
            fired_count += 1;
        }
    }
    println!("{fired_count} of {} losses fired", points());
    assert!(fired_count * 10 >= points() * 9, "{fired_count}");
    // A device that is lost every time: the run gives up.
    let start = Instant::now();
    let run = Run::new(&args, &[("FAULT_LOSE_SUBMIT", "20")]);
    assert_eq!(run.output.status.code(), Some(5), "{}", run.stderr());
    let text = run.event("error").expect("an error")["text"].to_string();
    assert!(text.contains("3 failures"), "{text}");
    println!("gave up after {:?}", start.elapsed());
}

/// A run waits for a device that is lost and cannot be opened for a while, and ends with the losses of an
/// undisturbed one. `AWAY_SECONDS` sets that time; the default is 4.
#[test]
fn a_run_waits_for_a_lost_device() {
    let seconds: u64 = std::env::var("AWAY_SECONDS").map_or(4, |n| n.parse().expect("a number"));
    let args = small_run();
    let whole = Run::new(&args, &[]);
    let undisturbed = losses(&whole);
    let submit = (whole.counted["submits"].as_u64().unwrap() * 2 / 3).to_string();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let once = folder.path().join("once");
    let away = seconds.to_string();
    let faults = [
        ("FAULT_LOSE_SUBMIT", submit.as_str()),
        ("FAULT_ONCE", once.to_str().expect("a path")),
        ("FAULT_AWAY", away.as_str()),
    ];
    let start = Instant::now();
    let run = Run::new(&args, &faults);
    println!("away for {seconds} s: {:?} in {:?}", run.output.status.code(), start.elapsed());
    assert!(run.output.status.success(), "{}", run.stderr());
    assert!(once.exists() && start.elapsed() >= Duration::from_secs(seconds));
    assert_same_losses(&run, &undisturbed, 0.0);
    assert_eq!(losses(&run).last(), undisturbed.last());
    let waits: Vec<&Value> =
        run.events.iter().filter(|event| event["event"] == "waiting").collect();
    waits.iter().for_each(|wait| println!("{wait}"));
    // One after the loss, and one after each attempt to open the device.
    assert!(waits.len() >= 2, "{waits:?}");
    assert!(waits[1]["text"].to_string().contains("could not open"), "{}", waits[1]);
    assert!(run.recorded.contains("\"waiting\""), "events.jsonl has no wait");
}

/// A signal stops a run that waits for its device at once.
#[test]
fn a_signal_stops_a_wait_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = Command::new(env!("CARGO_BIN_EXE_wgpt"))
        .args(["train", "--json", "--device=vulkan:0", "--run=run"])
        .args(small_run())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env_remove("VK_ADD_DRIVER_FILES")
        .env("VK_DRIVER_FILES", driver())
        .env("FAULT_LOSE_SUBMIT", "20")
        .env("FAULT_ONCE", folder.path().join("once"))
        .env("FAULT_AWAY", "3600")
        .spawn()
        .expect("the program starts");
    let mut signalled = None;
    let mut last = Value::Null;
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        last = serde_json::from_str(&line.expect("text")).expect("an event");
        if last["event"] == "waiting" && last["seconds"] == 5 {
            let id = child.id().to_string();
            assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
            signalled = Some(Instant::now());
        }
    }
    let status = child.wait().expect("the program ends");
    let took = signalled.expect("a wait of five seconds").elapsed();
    assert_eq!(status.code(), Some(130));
    assert_eq!((&last["event"], &last["reason"]), (&"done".into(), &"stopped".into()));
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// A run whose allocation is refused once ends with the same data in smaller micro-batches. If all later
/// allocations are refused, it ends soon, with or without an error.
#[test]
fn a_run_continues_after_out_of_memory() {
    let args = small_run();
    let whole = Run::new(&args, &[]);
    let undisturbed = losses(&whole);
    let allocations = whole.counted["allocations"].as_u64().unwrap();
    let every = (allocations / points()).max(1) as usize;
    let mut fired_count = 0;
    for nth in (1..=allocations).rev().step_by(every) {
        let (run, fired) = run_with_fault(&args, "FAULT_REFUSE", nth);
        let code = run.output.status.code();
        // Without its first allocation the device does not open: the run is refused at once.
        assert!(code == Some(0) || nth == 1 && code == Some(4), "{nth}\n{}", run.stderr());
        assert_same_losses(&run, &undisturbed, 1e-4);
        match run.event("replan") {
            // Before the plan there is nothing to make smaller.
            Some(replan) if !replan["from"].is_null() => {
                assert_eq!(replan["reason"], "out_of_memory");
                assert_eq!(replan["from"]["micro_batch"], 8);
                assert_eq!(replan["to"]["micro_batch"], 4);
            }
            Some(replan) => assert_eq!(replan["reason"], "out_of_memory"),
            // The second attempt to allocate succeeded: nothing was lost.
            None => assert_same_losses(&run, &undisturbed, 0.0),
        }
        fired_count += usize::from(fired);
        let start = Instant::now();
        let run = Run::new(&args, &[("FAULT_REFUSE", &format!("{nth}+"))]);
        let code = run.output.status.code();
        println!("FAULT_REFUSE={nth}+: {code:?} in {:?}", start.elapsed());
        assert!(matches!(code, Some(0 | 4 | 5)), "{nth}: {code:?}\n{}", run.stderr());
        assert!(start.elapsed() < Duration::from_secs(60));
        assert_same_losses(&run, &undisturbed, 1e-4);
    }
    assert!(fired_count > 0, "nothing was refused");
}

/// A run keeps a budget that is lowered while it trains, with a smaller micro-batch and the same global
/// batch.
#[test]
fn a_run_keeps_a_lowered_budget() {
    let mut args = small_run();
    let long = ["--max_iters=40", "--eval_interval=1000", "--vram_budget=200MiB"];
    args.extend(long.map(String::from));
    let asked = plan(&args);
    let less = (asked * 0.8) as u64;
    let set = format!("{{\"command\":\"set\",\"key\":\"vram_budget\",\"value\":{less}}}\n");
    let too_little = "{\"command\":\"set\",\"key\":\"vram_budget\",\"value\":1000000}\n";
    let run = Run::with_commands(&args, &[too_little, &set], &[]);
    assert!(run.output.status.success(), "{}", run.stderr());
    let replan = run.event("replan").expect("a replan");
    assert_eq!(replan["reason"], "budget");
    assert_eq!(replan["from"]["micro_batch"], 8);
    let to = &replan["to"];
    assert_eq!(to["micro_batch"].as_u64().unwrap() * to["accumulation"].as_u64().unwrap(), 8);
    let warning = run.event("warning").expect("a warning")["text"].to_string();
    assert!(warning.contains("the budget stays"), "{warning}");
    let step = run.event("step").expect("a step");
    let held = step["vram_bytes"].as_u64().unwrap();
    println!("{asked} planned, {less} allowed, {held} held at the end");
    assert!(held <= less, "{held} of {less}");
    let known = &step["vram_classes"];
    assert_eq!(known["optimizer"].as_u64(), known["weights"].as_u64().map(|bytes| 2 * bytes));
}

/// The supervisor does not resume a run that it did not start; and warnings are printed once.
#[test]
fn another_run_is_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = folder.path().join("run/checkpoints/00000001");
    std::fs::create_dir_all(&checkpoint).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_wgpt"))
        .args(["train", "--device=vulkan:0", "--run=run", "--compile=True"])
        .args(small_run())
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

/// Returns the planned memory of a run, in bytes.
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
