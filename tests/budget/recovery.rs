//! Tests failures of the device: out of memory, a lost device, and one that does not work for a while.

use super::*;

pub fn losses(run: &Run) -> Vec<(u64, f64)> {
    let steps = run.events.iter().filter(|event| event["event"] == "step");
    steps.map(|step| (step["iter"].as_u64().unwrap(), step["loss"].as_f64().unwrap())).collect()
}

/// Without a supervisor, out of memory or a lost device ends the run with code 5 and an error. It
/// neither panics nor hangs.
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
        ("FAULT_REFUSE_SUBMIT", (submits / 2).to_string()),
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

/// The number of points at which a run fails. docs/memory.md reports on 50.
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

/// Checks that `run` has the losses of the undisturbed run, including repeated steps.
fn assert_same_losses(run: &Run, undisturbed: &[(u64, f64)], tolerance: f64) {
    for (iter, loss) in losses(run) {
        let (_, wanted) = undisturbed[iter as usize];
        let off = (loss / wanted - 1.0).abs();
        assert!(off <= tolerance, "{iter}: {loss}, not {wanted}");
    }
}

/// With a supervisor, a lost device costs the steps after the last checkpoint, but changes no digit.
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
            _ => ("FAULT_LOSE_WAIT", count("waits") / 8),
        };
        // The points are spread over the run without its end, where the calls differ from run to run.
        let mut value = 1 + calls * (point + 1) / (points() + 2);
        let (run, fired) = loop {
            let (run, fired) = run_with_fault(&args, fault, value);
            // The number of waits grows with the load of the machine: this run may have had fewer.
            if fired || fault == "FAULT_LOSE_SUBMIT" || value == 1 {
                break (run, fired);
            }
            value = value.div_ceil(4);
        };
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
}

/// If the device is lost every time, the run gives up after five minutes.
#[test]
#[ignore = "takes five minutes"]
fn a_device_that_is_lost_every_time_ends_the_run() {
    let start = Instant::now();
    let run = Run::new(&small_run(), &[("FAULT_LOSE_SUBMIT", "20")]);
    println!("gave up after {:?}", start.elapsed());
    assert_eq!(run.output.status.code(), Some(5), "{}", run.stderr());
    assert!(start.elapsed() >= Duration::from_secs(300));
    let text = run.event("error").expect("an error")["text"].to_string();
    assert!(text.contains("did not recover within"), "{text}");
}

/// Loses the device for a while in the way of `fault`, and checks that the run waits and ends with the losses
/// of an undisturbed one. Returns its waits.
fn assert_survives(fault: &str, seconds: u64) -> Vec<Value> {
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
        (fault, away.as_str()),
    ];
    let start = Instant::now();
    let run = Run::new(&args, &faults);
    println!("{fault}={seconds}: {:?} in {:?}", run.output.status.code(), start.elapsed());
    assert!(run.output.status.success(), "{}", run.stderr());
    assert!(once.exists() && start.elapsed() >= Duration::from_secs(seconds));
    assert_same_losses(&run, &undisturbed, 0.0);
    assert_eq!(losses(&run).last(), undisturbed.last());
    let waits = run.events.iter().filter(|event| event["event"] == "waiting");
    let waits: Vec<Value> = waits.cloned().collect();
    waits.iter().for_each(|wait| println!("{wait}"));
    // The supervisor waits once after the loss, and once after each attempt in vain.
    assert!(waits.len() >= 2, "{waits:?}");
    assert!(run.recorded.contains("\"waiting\""), "events.jsonl has no wait");
    waits
}

/// `AWAY_SECONDS` sets the time for which the device cannot be opened; the default is 4.
#[test]
fn a_run_waits_for_a_lost_device() {
    let seconds: u64 = std::env::var("AWAY_SECONDS").map_or(4, |n| n.parse().expect("a number"));
    let waits = assert_survives("FAULT_AWAY", seconds);
    assert!(waits[1]["text"].to_string().contains("could not open"), "{}", waits[1]);
}

/// A device that opens, and is lost again at once, has the same time.
#[test]
fn a_run_waits_for_a_device_that_is_lost_again_and_again() {
    let waits = assert_survives("FAULT_LOSE_FOR", 20);
    assert!(waits.len() > 3, "{waits:?}");
}

/// Two minutes without a device are survived, too.
#[test]
#[ignore = "takes two minutes"]
fn a_run_waits_two_minutes() {
    assert_survives("FAULT_AWAY", 120);
}

/// A signal stops a run that waits for its device at once.
#[test]
fn a_signal_stops_a_wait_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = program(folder.path())
        .args(["train", "--json", "--device=vulkan:0", "--run=run"])
        .args(small_run())
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
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

/// A run whose allocation is refused once ends with the same data in smaller micro-batches. If all
/// later allocations are refused, it ends soon, with or without an error.
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
        // Without its first allocation the device does not open, so the run is refused at once.
        assert!(code == Some(0) || nth == 1 && code == Some(4), "{nth}\n{}", run.stderr());
        assert_same_losses(&run, &undisturbed, 1e-4);
        match run.event("replan") {
            // Before the plan nothing can be made smaller.
            Some(replan) if !replan["from"].is_null() => {
                assert_eq!(replan["reason"], "out_of_memory");
                assert_eq!(replan["from"]["micro_batch"], 8);
                assert_eq!(replan["to"]["micro_batch"], 4);
            }
            Some(replan) => assert_eq!(replan["reason"], "out_of_memory"),
            // The second attempt to allocate succeeded, so nothing was lost.
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

/// The supervisor does not resume a run that it did not start, and prints warnings once.
#[test]
fn another_run_is_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = folder.path().join("run/checkpoints/00000001");
    std::fs::create_dir_all(&checkpoint).unwrap();
    let output = isolated(env!("CARGO_BIN_EXE_wgpt"))
        .args(["train", "--device=vulkan:0", "--run=run", "--wandb_log=True"])
        .args(small_run())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{error}{stdout}");
    assert!(format!("{error}{stdout}").contains("this folder already has a run"));
    for once in ["flag --wandb_log", "error:"] {
        let lines = error.lines().chain(stdout.lines()).filter(|line| line.contains(once));
        assert_eq!(lines.count(), 1, "{once}\n{error}{stdout}");
    }
    assert!(checkpoint.exists());
}

/// Starts `args` on two ranks that share the device. Also returns the reports of their drivers.
fn launch(args: &[String], faults: &[(&str, &str)]) -> (TempDir, Output, Vec<Value>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut launch = program(folder.path());
    launch
        .args(["launch", "-n", "2", "--mpi=--allow-run-as-root", "--mpi=--oversubscribe"])
        .args(["--json", "--device=vulkan:0", "--run=run"])
        .args(args)
        .current_dir(folder.path())
        // A container forbids these copies between processes.
        .env("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
        .env("OMPI_MCA_orte_tmpdir_base", folder.path())
        .env("FAULT_REPORT", folder.path().join("report-%p"))
        .envs(faults.iter().copied());
    // The end of its stdin would stop the run.
    let mut child = launch
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let stdin = child.stdin.take();
    let output = child.wait_with_output().expect("the program ends");
    drop(stdin);
    let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
    let reports = entries.filter(|entry| entry.file_name().to_string_lossy().contains("report-"));
    let reports =
        reports.map(|file| serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap());
    let reports = reports.collect();
    (folder, output, reports)
}

/// Trains `args` on two ranks. Returns the allocations of the one that has most.
fn most_allocations(args: &[String]) -> u64 {
    let (_, output, reports) = launch(args, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    reports.iter().filter_map(|report| report["allocations"].as_u64()).max().expect("a device")
}

/// The launcher starts all ranks again, and the one that had no memory splits its steps smaller.
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_start_again_after_one_had_no_memory() {
    let args = small_run();
    let last = most_allocations(&args).to_string();
    let once = tempfile::tempdir().expect("a temporary folder");
    let once = once.path().join("once");
    let faults = [("FAULT_REFUSE", last.as_str()), ("FAULT_ONCE", once.to_str().expect("a path"))];
    let (folder, output, _) = launch(&args, &faults);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && once.exists(), "{said}");
    let limits = [0, 1].map(|rank| folder.path().join(format!("run/ranks/{rank}.json")).exists());
    assert!(limits[0] != limits[1], "one rank has a limit: {limits:?}\n{said}");
}

#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_end_if_one_has_no_memory_for_the_least_plan() {
    let least = ["--batch_size=2", "--grad_checkpoint=true", "--loss_chunk=32"].map(String::from);
    let args = [small_run(), least.to_vec()].concat();
    let last = format!("{}+", most_allocations(&args) - 1);
    let (_, output, _) = launch(&args, &[("FAULT_REFUSE", &last)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    for words in
        ["error: rank ", " of 2 ", " ran out of memory, and its steps cannot be split smaller"]
    {
        assert!(said.contains(words), "no {words} in {said}");
    }
}

/// Whoever measures the speed of a device sees that it is lost.
#[test]
fn a_benchmark_ends_when_its_device_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = |faults: &[(&str, &str)]| {
        program(folder.path())
            .args(["bench", "--card", "card.json", "--device=vulkan:0", "--preset=demo"])
            .arg("--vocab_size=64")
            .current_dir(folder.path())
            .envs(faults.iter().copied())
            .output()
            .expect("the program starts")
    };
    // The first tests the kernels, so that the device is lost in the measurement of the second.
    assert!(bench(&[]).status.success());
    let output = bench(&[("FAULT_LOSE_SUBMIT", "20")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("it was lost (Device is lost)"), "{said}");
    assert!(said.contains("other programs may be using the device"), "{said}");
}
