//! Runs beside other programs that take memory of the device and give it back.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// The device, in bytes. A run leaves 256 MiB of it to others.
const DEVICE: u64 = 2 << 30;
const RESERVE: u64 = 256 << 20;

/// How long the others must have been away before a run takes its room again.
const QUIET: &str = "--quiet_time=2s";

/// Losses of two plans differ by rounding: a thousandth is far more, and far less than another update makes.
const ROUNDING: f64 = 1e-3;

/// Flags of a run that ends by a command. It hardly learns, so that losses of two plans stay close.
fn endless() -> Vec<String> {
    let mut args = small_run();
    args.retain(|flag| !flag.starts_with("--max_iters") && !flag.starts_with("--eval_"));
    let more = [
        "--n_embd=128",
        "--vocab_size=5000",
        "--batch_size=16",
        "--max_iters=100000",
        "--eval_interval=100000",
        "--eval_iters=1",
        "--learning_rate=1e-6",
        "--min_lr=1e-7",
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
            output.lines().map_while(Result::ok).all(|line| {
                sender.send(serde_json::from_str(&line).expect("an event")).is_ok()
            })
        });
        let mut run = Self { folder, child, events, losses: BTreeMap::new(), predicted: 0 };
        run.until(|event| event["iter"].as_u64() >= Some(20));
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
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).expect("an event");
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
    assert!(disturbed.len() > 20);
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

#[test]
fn a_run_shrinks_for_others_ends_its_process_and_returns() {
    let mut run = Shared::start(&endless());
    let whole = run.predicted;
    let replanned = |event: &Value| event["event"] == "plan";
    // A part of its room, all of it, and nothing.
    run.others_hold(DEVICE - RESERVE - whole * 3 / 4);
    run.until(replanned);
    assert!(run.predicted <= whole * 3 / 4, "{} of {whole}", run.predicted);
    run.others_hold(DEVICE);
    let waiting = run.until(|event| event["event"] == "waiting");
    let text = waiting["text"].as_str().unwrap();
    assert!(text.contains("other programs use 2.0 GiB"), "{text}");
    run.others_hold(0);
    run.until(|event| event["event"] == "start");
    run.until(replanned);
    assert_eq!(run.predicted, whole);
    // And a part again, which comes back.
    run.until(|event| event["event"] == "step");
    run.others_hold(DEVICE - RESERVE - whole * 3 / 4);
    run.until(replanned);
    assert!(run.predicted <= whole * 3 / 4);
    run.others_hold(0);
    run.until(replanned);
    assert_eq!(run.predicted, whole);
    let losses = run.stop();
    compare(&losses, &undisturbed(losses.len() as u64));
}
