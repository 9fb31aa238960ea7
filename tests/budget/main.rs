//! Tests the budget, the recovery and cooperative matrices on a Vulkan driver (tests/driver) that counts, fails on request,
//! and forwards to the software renderer. `BUDGET_CASES` sets the number of random runs.

#![cfg(all(feature = "wgpu", target_os = "linux"))]

mod crashes;
mod integrated;
#[path = "../isolated/mod.rs"]
mod isolated;
mod matrices;
mod neighbours;
mod recovery;
mod self_test;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use isolated::isolated;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::Value;
use tempfile::TempDir;

const MIB: f64 = (1 << 20) as f64;

/// Compiles the driver once, and returns its manifest.
fn driver() -> &'static Path {
    static MANIFEST: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, manifest) = MANIFEST.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/build.sh");
        let mut build = Command::new("sh");
        build.arg(script).arg(folder.path()).envs(real_driver());
        let output = build.output().expect("a shell");
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

/// Returns the variable that names the library of the real driver, if `VK_DRIVER_FILES` chooses it.
fn real_driver() -> Option<(&'static str, PathBuf)> {
    let path = PathBuf::from(std::env::var_os("VK_DRIVER_FILES")?);
    let manifest: Value = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
    let library = Path::new(manifest["ICD"]["library_path"].as_str()?);
    // A bare name is looked up in the system, and a path counts from the manifest.
    let library = if library.components().count() == 1 {
        library.into()
    } else {
        path.parent()?.join(library)
    };
    Some(("FAULT_DRIVER", library))
}

/// Returns a command of the program whose only Vulkan driver is the counting one, and whose cache folder is
/// `cache`: the measured speed of a failing device must not be shared, but its compiled kernels may.
fn program(cache: &Path) -> Command {
    let mut command = isolated(env!("CARGO_BIN_EXE_wgpt"));
    command
        .stdin(Stdio::null())
        .env_remove("VK_ADD_DRIVER_FILES")
        .env("VK_DRIVER_FILES", driver())
        .env("XDG_CACHE_HOME", cache)
        // Mesa's cache of compiled kernels.
        .env("MESA_SHADER_CACHE_DIR", Path::new(isolated::HOME).join(".cache"))
        .envs(real_driver());
    command
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

    /// Sends `lines` to stdin after the first step, then closes stdin.
    fn with_commands(args: &[String], lines: &[&str], faults: &[(&str, &str)]) -> Self {
        let cache = tempfile::tempdir().expect("a temporary folder");
        Self::start(args, lines, faults, cache.path())
    }

    /// Keeps what is known of the device in the folder `cache`.
    fn with_cache(args: &[String], faults: &[(&str, &str)], cache: &Path) -> Self {
        Self::start(args, &[], faults, cache)
    }

    fn start(args: &[String], lines: &[&str], faults: &[(&str, &str)], cache: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let report = folder.path().join("report.json");
        let mut child = program(cache)
            .args(["train", "--json", "--device=vulkan:0", "--run=run"])
            .args(args)
            .current_dir(folder.path())
            .stdin(if lines.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
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

/// The flag of runs whose faults are for the process that trains, not for the one that tests kernels.
const NO_SELF_TEST: &str = "--no-self-test";

/// Generates the flags of a small run with evaluations and samples, and its budget as a share of the
/// memory that it takes. Lavapipe stores float16, so the flags include half precision.
fn case() -> impl Strategy<Value = (Vec<String>, f64)> {
    let shape = (1..=4u32, 1..=4u32, 0..3usize, 0..3usize, 2..=16u32, 1..=2u32);
    let memory = (0..3usize, 0..3usize, 0..2usize);
    (shape, memory, proptest::bool::ANY, 0..2usize, 0.75..1.2f64).prop_map(
        |(shape, (offload, optimizer, dtype), flag, vocab, share)| {
            let (layers, heads, size, block, batch, accumulation) = shape;
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
                format!("--offload_optimizer={}", ["auto", "true", "false"][offload]),
                format!("--optimizer={}", ["adamw", "muon", "adamw"][optimizer]),
                format!("--dtype={}", ["float32", "float16"][dtype]),
                NO_SELF_TEST.to_string(),
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
    let (mut refused, mut split, mut offloaded) = (0, 0, 0);
    for number in 0..cases {
        let (args, share) = case().new_tree(&mut runner).unwrap().current();
        if number < first {
            continue;
        }
        let unlimited = plan(&args);
        let budget = (unlimited * share) as u64;
        let limited: Vec<String> =
            args.iter().cloned().chain([format!("--vram_budget={budget}")]).collect();
        // The driver allocates no more than the budget. One byte more ends the run.
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
            "{number}: counted {:.1}, predicted {:.1}, budget {:.1} MiB, {} {}",
            peak / MIB,
            predicted / MIB,
            budget as f64 / MIB,
            if forecast["offload_optimizer"] == true { "offloaded" } else { "" },
            forecast["why"]
        );
        assert!(peak > 0.0 && peak <= budget as f64);
        assert!(peak <= predicted, "{args:?}: counted {peak}, predicted {predicted}");
        assert!(predicted <= 1.1 * peak + 32.0 * MIB, "{args:?}: {peak}, predicted {predicted}");
        let step = run.event("step").expect("a step");
        let pools = step["vram_peak_bytes"].as_f64().unwrap();
        assert!(pools > 0.0 && pools <= peak, "the meter counts {pools}, the driver {peak}");
        split += usize::from(forecast["why"] != "");
        let is_offloaded = forecast["offload_optimizer"] == true;
        assert_eq!(forecast["host_bytes"].as_u64().unwrap() > 0, is_offloaded, "{args:?}");
        offloaded += usize::from(is_offloaded);
    }
    let counts = format!("{refused} refused, {split} split, {offloaded} offloaded of {cases}");
    println!("{first} to {cases}: {counts}");
    assert!(refused < cases - first && split > 0 && offloaded > 0, "{counts}");
}

/// Returns the flags of a run to inject failures into.
fn small_run() -> Vec<String> {
    [
        "--data=builtin:stories",
        "--n_layer=2",
        "--n_head=2",
        "--n_embd=64",
        "--block_size=64",
        "--batch_size=8",
        "--gradient_accumulation_steps=1",
        "--vocab_size=1000",
        "--max_iters=6",
        "--warmup_iters=0",
        "--eval_interval=2",
        "--eval_iters=2",
        "--log_interval=1",
        "--sample_tokens=10",
        "--vram_budget=none",
        NO_SELF_TEST,
    ]
    .map(String::from)
    .to_vec()
}

/// A run keeps a budget that is lowered while it trains, with a smaller micro-batch and the same
/// global batch.
#[test]
fn a_run_keeps_a_lowered_budget() {
    let mut args = small_run();
    // Large enough that its activations, not the allocator's overhead, decide what fits.
    let larger = ["--n_embd=128", "--vocab_size=5000", "--vram_budget=200MiB"];
    let long = ["--max_iters=12", "--eval_interval=1000"];
    args.extend(larger.into_iter().chain(long).map(String::from));
    let predicted = plan(&args);
    let less = (predicted * 0.8) as u64;
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
    assert!(warning.contains("the budget is unchanged"), "{warning}");
    let step = run.event("step").expect("a step");
    let held = step["vram_bytes"].as_u64().unwrap();
    println!("{predicted} planned, {less} allowed, {held} held at the end");
    assert!(held <= less, "{held} of {less}");
    let known = &step["vram_classes"];
    assert_eq!(known["optimizer"].as_u64(), known["weights"].as_u64().map(|bytes| 2 * bytes));
}

/// A new budget applies even if it cannot be saved.
#[test]
fn a_budget_that_cannot_be_saved_is_a_warning() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = program(folder.path())
        .args(["train", "--json", "--device=vulkan:0", "--run=run"])
        // A checkpoint would write the configuration again.
        .args(["--max_iters=1000000", "--eval_interval=1000000"])
        .args(
            small_run()
                .iter()
                .filter(|flag| !flag.contains("max_iters") && !flag.contains("eval_interval")),
        )
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut events = BufReader::new(child.stdout.take().expect("a pipe"))
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.expect("text")).expect("an event"));
    events.find(|event| event["event"] == "step").expect("a step");
    let config = folder.path().join("run/config.toml");
    std::fs::remove_file(&config).unwrap();
    // A file does not replace a folder.
    std::fs::create_dir(&config).unwrap();
    stdin.write_all(b"{\"command\":\"set\",\"key\":\"vram_budget\",\"value\":1e9}\n").unwrap();
    let is_told =
        |event: &Value| event["text"].to_string().contains("the new budget was not saved");
    events.find(|event| event["event"] == "warning" && is_told(event)).expect("a warning");
    std::fs::remove_dir(&config).unwrap();
    stdin.write_all(b"{\"command\":\"stop\"}\n").unwrap();
    assert_eq!(events.last().expect("an end")["reason"], "stopped");
    assert!(child.wait().unwrap().success());
}

/// A run that was planned with less memory keeps its plan when it is resumed: another split of its steps rounds in
/// another way.
#[test]
fn a_resumed_run_keeps_its_plan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let train = |args: &[&str], budget: &str| {
        let output = program(folder.path())
            .args(["train", "--json", "--device=vulkan:0", "--run=run", NO_SELF_TEST])
            .args(args)
            .current_dir(folder.path())
            .envs([
                ("FAULT_KIND", "discrete"),
                ("FAULT_HEAP", "8589934592"),
                ("FAULT_BUDGET", budget),
            ])
            .output()
            .expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let events = String::from_utf8(output.stdout).expect("text");
        let plan = events.lines().find(|line| line.contains(r#""event":"plan""#)).expect("a plan");
        let plan: Value = serde_json::from_str(plan).unwrap();
        plan["micro_batch"].as_u64().unwrap()
    };
    let mut args = small_run();
    args.retain(|flag| flag != NO_SELF_TEST && !flag.contains("vram_budget"));
    args.extend(["--n_embd=128", "--vocab_size=5000"].map(String::from));
    // Less than the run wants, besides what `auto` leaves to other programs, and what a process takes.
    let granted = plan(&args) * 0.8 + 8192.0 / 20.0 * MIB + 64.0 * MIB;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let planned = train(&args, &(granted as u64).to_string());
    assert!(planned < 8, "micro-batch {planned}");
    assert_eq!(train(&["--resume", "--max_iters=8"], "none"), planned);
}

/// A discrete GPU with 8 GiB, of which the driver grants 3 GiB, or of which it only reports the size.
#[test]
fn a_plan_follows_what_the_driver_grants() {
    const GIB: u64 = 1 << 30;
    // What a process takes of a GPU with Vulkan, and what `auto` leaves to other programs.
    let (context, reserve) = (64 << 20, 8 * GIB / 20);
    let granted = "3221225472";
    fn gpu(budget: &str) -> [(&str, &str); 3] {
        [("FAULT_KIND", "discrete"), ("FAULT_HEAP", "8589934592"), ("FAULT_BUDGET", budget)]
    }
    let cache = tempfile::tempdir().expect("a temporary folder");
    let planned = |budget: &str, args: &[&str]| {
        let output = program(cache.path())
            .args(["plan", "--device=vulkan:0", "--preset=demo"])
            .args(args)
            .envs(gpu(budget))
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    for (budget, setting, expected) in [
        (granted, "auto", 3 * GIB - context - reserve),
        ("none", "auto", 8 * GIB - context - reserve),
        // A share leaves what other programs use.
        (granted, "90%", 3 * GIB - context),
        (granted, "25%", 2 * GIB),
        ("none", "25%", 2 * GIB),
    ] {
        let json = planned(budget, &["--json", &format!("--vram_budget={setting}")]);
        let forecast: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(forecast["budget_bytes"], expected, "{budget}, {setting}");
    }
    let text = planned(granted, &[]);
    assert!(text.contains("3.00 GiB of 8.00 GiB is free (the graphics driver)"), "{text}");
    let text = planned("none", &[]);
    assert!(text.contains("8.00 GiB of 8.00 GiB is free (only its size is known)"), "{text}");

    let mut args = small_run();
    args.extend(["--vram_budget=auto", "--dtype=float32"].map(String::from));
    let run = Run::new(&args, &gpu(granted));
    assert!(run.output.status.success(), "{}", run.stderr());
    let plan = run.event("plan").expect("a plan");
    assert_eq!(plan["budget_bytes"], 3 * GIB - context - reserve);
    // The driver counts what wgpu allocates, which is a little more than what the pools hold.
    let others = run.event("step").expect("a step")["others_bytes"].as_u64().unwrap();
    assert!((5 * GIB..5 * GIB + (64 << 20)).contains(&others), "{others}");
}

/// Returns the planned memory of a run on any device, in bytes.
fn plan(args: &[String]) -> f64 {
    let output = isolated(env!("CARGO_BIN_EXE_wgpt"))
        .args(["plan", "--json", "--vram_budget=1024GiB"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let forecast: Value = serde_json::from_slice(&output.stdout).unwrap();
    forecast["predicted_bytes"].as_f64().unwrap()
}

/// An adapter on a base whose embedding is its largest tensor, stored in float32, float16 and 8 bits. The budget is
/// what the plan predicts.
#[test]
fn an_adapter_allocates_no_more_than_its_plan() {
    let base = tempfile::tempdir().expect("a temporary folder");
    let path = base.path().join("base").display().to_string();
    let shape = [
        "--arch=llama",
        "--n_layer=2",
        "--n_head=4",
        "--n_kv_head=2",
        "--n_embd=256",
        "--block_size=64",
    ];
    let made = isolated(env!("CARGO_BIN_EXE_wgpt"))
        .args([
            "train",
            "--device=cpu",
            "--data=builtin:stories",
            "--vocab_size=20000",
            "--max_iters=1",
        ])
        .args([
            "--warmup_iters=0",
            "--sample_tokens=0",
            "--eval_iters=1",
            "--batch_size=1",
            &format!("--run={path}"),
        ])
        .args(shape)
        .output()
        .expect("the program starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut before = f64::MAX;
    for (dtype, base) in [("float32", "auto"), ("float16", "auto"), ("float16", "q8_0")] {
        let args: Vec<String> = [
            "--data=builtin:stories".to_string(),
            format!("--init_from={path}"),
            "--lora_rank=4".to_string(),
            format!("--dtype={dtype}"),
            format!("--base_dtype={base}"),
            "--batch_size=2".to_string(),
            "--max_iters=3".to_string(),
            "--warmup_iters=0".to_string(),
            "--eval_interval=2".to_string(),
            "--eval_iters=1".to_string(),
            "--sample_tokens=5".to_string(),
            NO_SELF_TEST.to_string(),
        ]
        .into();
        let predicted = plan(&args);
        let limited = [&args[..], &[format!("--vram_budget={predicted}")]].concat();
        let run = Run::new(&limited, &[("FAULT_CAP", &predicted.to_string())]);
        assert!(run.output.status.success(), "{args:?}\n{}", run.stderr());
        assert_eq!(run.counted["refused"], 0, "{args:?}");
        let peak = run.peak();
        println!(
            "{dtype}, {base}: counted {:.1}, predicted {:.1} MiB",
            peak / MIB,
            predicted / MIB
        );
        assert!(
            peak <= predicted && predicted <= 1.1 * peak + 32.0 * MIB,
            "{args:?}: {peak}, {predicted}"
        );
        // Pages are of 8 MiB, or larger.
        assert!(peak <= before, "{dtype}, {base}: {peak}, and {before} before");
        before = peak;
    }
}
