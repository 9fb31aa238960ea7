//! Runs beside other programs that take memory of the device and give it back.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use proptest::strategy::Just;

use super::*;

/// The device, in bytes. A run that makes way leaves a twentieth of it to others.
const DEVICE: u64 = 256 << 20;

/// The budget of a run: about so many bytes, or less if others leave less when it begins.
const BUDGET: &str = "--vram_budget=39%";
const MOST: u64 = 100 << 20;

/// How long the others must have been away before a run takes its room again.
const QUIET: &str = "--quiet_time=2s";

/// Losses of two plans differ by rounding: a thousandth is far more, and far less than another update makes.
const ROUNDING: f64 = 1e-3;

/// Flags of a run that ends by a command. It hardly learns, so that losses of two plans stay close.
fn endless() -> Vec<String> {
    let mut args = small_run();
    let changed = ["--max_iters", "--eval_", "--vram_budget"];
    args.retain(|flag| !changed.iter().any(|key| flag.starts_with(key)));
    let more = [
        "--vocab_size=5000",
        "--batch_size=24",
        "--max_iters=100000",
        "--eval_interval=100000",
        "--eval_iters=1",
        "--learning_rate=1e-6",
        "--min_lr=1e-7",
        BUDGET,
        QUIET,
    ];
    args.extend(more.map(String::from));
    args
}

/// A run beside others.
struct Shared {
    folder: TempDir,
    child: Child,
    events: Receiver<Value>,
    losses: BTreeMap<u64, f64>,
    /// The last plan that the run has reported.
    predicted: u64,
}

impl Shared {
    fn start(args: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut child = program(folder.path())
            .args(["train", "--json", "--device=vulkan:0", "--run=run"])
            .args(args)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env("FAULT_REPORT", folder.path().join("report-%p.json"))
            .env("FAULT_KIND", "discrete")
            .env("FAULT_HEAP", DEVICE.to_string())
            .env("FAULT_OTHERS", folder.path().join("others"))
            .spawn()
            .expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, events) = channel();
        std::thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .all(|line| sender.send(serde_json::from_str(&line).expect("an event")).is_ok())
        });
        let mut run = Self { folder, child, events, losses: BTreeMap::new(), predicted: 0 };
        run.until(|event| event["event"] == "step" && event["iter"] == 8);
        run
    }

    /// Lets the others hold this much from now on.
    fn others_hold(&self, bytes: u64) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, bytes.to_string()).unwrap();
        std::fs::rename(new, self.folder.path().join("others")).unwrap();
    }

    /// Returns the next event that is wanted.
    fn until(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(600);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| {
                let record = self.folder.path().join("run/events.jsonl");
                panic!("{:?}", std::fs::read_to_string(record));
            });
            self.observe(&event);
            if is_wanted(&event) {
                return event;
            }
        }
    }

    fn observe(&mut self, event: &Value) {
        if event["event"] == "step" {
            let loss = event["loss"].as_f64().unwrap();
            self.losses.insert(event["iter"].as_u64().unwrap(), loss);
        }
        if event["event"] == "plan" {
            self.predicted = event["predicted_bytes"].as_u64().unwrap();
        }
        assert_ne!(event["event"], "error", "{event}");
    }

    /// Stops the run. Returns its losses.
    fn stop(mut self) -> BTreeMap<u64, f64> {
        let mut stdin = self.child.stdin.take().expect("a pipe");
        stdin.write_all(b"{\"command\":\"stop\"}\n").unwrap();
        let end = self.until(|event| event["event"] == "done");
        assert_eq!(end["reason"], "stopped");
        assert!(self.child.wait().unwrap().success());
        std::mem::take(&mut self.losses)
    }
}

/// Checks the losses of a run that was disturbed against those of one that was not.
fn compare(disturbed: &BTreeMap<u64, f64>, undisturbed: &BTreeMap<u64, f64>) {
    assert!(disturbed.len() > 8);
    let last = disturbed.keys().last().copied().unwrap_or(0);
    assert_eq!(disturbed.len() as u64, last + 1, "every update has a loss");
    for (iter, loss) in disturbed {
        let Some(expected) = undisturbed.get(iter) else { continue };
        assert!((loss - expected).abs() < ROUNDING, "{iter}: {loss}, undisturbed {expected}");
    }
}

/// The losses of as many updates as a disturbed run makes.
fn undisturbed(updates: u64) -> BTreeMap<u64, f64> {
    let mut run = Shared::start(&endless());
    run.until(|event| event["iter"].as_u64() >= Some(updates));
    run.stop()
}

/// Returns what others hold if they leave nothing of the memory, besides what a run holds now.
fn all_but(step: &Value) -> u64 {
    DEVICE - step["vram_bytes"].as_u64().expect("pools")
}

fn is_step(event: &Value) -> bool {
    event["event"] == "step"
}

fn is_plan(event: &Value) -> bool {
    event["event"] == "plan"
}

#[test]
fn a_run_shrinks_for_others_ends_its_process_and_returns() {
    let mut run = Shared::start(&endless());
    let whole = run.predicted;
    // A part of its room, all of it, and nothing.
    let step = run.until(is_step);
    run.others_hold(all_but(&step));
    run.until(is_plan);
    assert!(run.predicted < whole, "{} of {whole}", run.predicted);
    // The new plan has its memory.
    (0..3).for_each(|_| drop(run.until(is_step)));
    run.others_hold(DEVICE);
    let waiting = run.until(|event| event["event"] == "waiting");
    let text = waiting["text"].as_str().unwrap();
    assert!(text.starts_with("other programs use 25") && text.contains("continues when"), "{text}");
    // Some of it is enough to begin, but not for the whole plan, which comes back later.
    let needed = waiting["free_bytes"].as_u64().unwrap();
    run.others_hold(DEVICE - needed);
    run.until(|event| event["event"] == "start");
    run.until(is_plan);
    assert!(run.predicted < whole, "{} of {whole}", run.predicted);
    run.until(is_step);
    run.others_hold(0);
    run.until(is_plan);
    assert_eq!(run.predicted, whole);
    // And a part again, which comes back.
    (0..5).for_each(|_| drop(run.until(is_step)));
    let step = run.until(is_step);
    run.others_hold(all_but(&step));
    run.until(is_plan);
    assert!(run.predicted < whole, "{} of {whole}", run.predicted);
    run.others_hold(0);
    run.until(is_plan);
    assert_eq!(run.predicted, whole);
    let losses = run.stop();
    compare(&losses, &undisturbed(losses.len() as u64));
}

/// What others do next: they hold this share of the device, and wait for some seconds.
fn sequence() -> impl Strategy<Value = Vec<(f64, f64)>> {
    let share = proptest::prop_oneof![Just(1.0), Just(0.0), 0.5..1.0f64];
    proptest::collection::vec((share, 0.5..8.0f64), 2..5)
}

/// `NEIGHBOURS` sequences, in two threads: about 20 s for each.
#[test]
#[ignore = "long"]
fn no_sequence_of_others_costs_a_run() {
    let cases = std::env::var("NEIGHBOURS").map_or(4, |n| n.parse().expect("a number"));
    // To continue a long test that was interrupted.
    let first = std::env::var("NEIGHBOURS_FIRST").map_or(0, |n| n.parse().expect("a number"));
    let mut runner = TestRunner::deterministic();
    let sequences: Vec<_> =
        (0..cases).map(|_| sequence().new_tree(&mut runner).unwrap().current()).collect();
    let expected = undisturbed(150);
    let next = std::sync::atomic::AtomicUsize::new(first);
    let results = Mutex::new((0, 0));
    std::thread::scope(|scope| {
        let work = || loop {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(sequence) = sequences.get(number) else { return };
            let mut run = Shared::start(&endless());
            let (mut plans, mut waits) = (0, 0);
            for (share, seconds) in sequence {
                run.others_hold((share * DEVICE as f64) as u64);
                let until = Instant::now() + Duration::from_secs_f64(*seconds);
                while let Ok(event) =
                    run.events.recv_timeout(until.saturating_duration_since(Instant::now()))
                {
                    run.observe(&event);
                    plans += usize::from(is_plan(&event));
                    waits += usize::from(event["event"] == "waiting");
                }
            }
            run.others_hold(0);
            let updates = run.losses.len();
            while run.losses.len() < updates + 3 {
                run.until(is_step);
            }
            let reports = std::fs::read_dir(run.folder.path()).unwrap().flatten();
            for path in reports.map(|entry| entry.path()) {
                let name = path.file_name().unwrap().to_string_lossy();
                if name.starts_with("report-") {
                    let report: Value =
                        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
                    let peak = report["peak_bytes"].as_u64().unwrap();
                    assert!(peak <= MOST, "{number}: {peak} bytes");
                }
            }
            compare(&run.stop(), &expected);
            println!("{number}: {sequence:?}: {plans} plans, {waits} waits");
            let mut results = results.lock().unwrap();
            *results = (results.0 + plans, results.1 + waits);
        };
        scope.spawn(work);
        scope.spawn(work);
    });
    let (plans, waits) = *results.lock().unwrap();
    println!("{cases} sequences: {plans} plans, {waits} waits");
    assert!(plans > 0 && waits > 0);
}
