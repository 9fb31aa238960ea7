//! Runs that are interrupted and resumed.

use std::io::{BufRead, BufReader, Read};

use super::*;

/// A run that is killed 20 times and resumed each time has the losses of an undisturbed one.
#[test]
fn kill_and_resume_change_no_bit() {
    let folder = temporary();
    let long =
        ["--max_iters=2000", "--lr_decay_iters=2000", "--eval_interval=15", "--sample_tokens=0"];
    let want = losses(&train(folder.path(), "whole", &long));
    assert_eq!(want.len(), 2000);

    let args = [&["train", "--json", "--run=killed"], TINY, &long].concat();
    let mut got = BTreeMap::new();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut kills = 0;
    loop {
        let mut command = wgpt(folder.path());
        command.args(&args).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Without a checkpoint --resume starts from the beginning.
        if folder.path().join("killed/config.toml").exists() {
            command.arg("--resume");
        }
        let mut child = command.spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut stdout = String::new();
        if kills < 20 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // This is a fortieth of the run on average, so that the run is not done before the last
            // kill. It counts lines, because a busy machine is slow. The sleep ends somewhere in a
            // step.
            for _ in 0..random % 100 {
                reader.read_line(&mut stdout).unwrap();
            }
            std::thread::sleep(Duration::from_micros(random % 5000));
            child.kill().unwrap();
            kills += 1;
        }
        reader.read_to_string(&mut stdout).unwrap();
        let output = child.wait_with_output().unwrap();
        // The last line of a killed process may be incomplete.
        let complete = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
        let seen = events(complete);
        got.extend(losses(&seen));
        if output.status.success() {
            assert_eq!(seen.last().unwrap()["reason"], "finished");
            break;
        }
        assert!(was_killed(output.status), "killed, not failed: {}", text(&output.stderr));
    }
    assert_eq!(kills, 20);
    assert_eq!(got, want);
}

/// A run that ended before its first checkpoint has its settings, so it needs none to start over.
#[test]
fn a_run_without_a_checkpoint_is_resumed_from_its_beginning() {
    let folder = temporary();
    let short = ["--max_iters=6", "--lr_decay_iters=6"];
    let want = losses(&train(folder.path(), "whole", &short));
    train(folder.path(), "r", &[&short[..], &["--eval_only=true"]].concat());
    assert_eq!(fs::read_dir(folder.path().join("r/checkpoints")).unwrap().count(), 0);
    let args = ["train", "--json", "--resume", "--run=r", "--device=cpu"];
    let seen = events(&ok(folder.path(), &args));
    assert_eq!(losses(&seen), want);
    assert_eq!(named(&seen, "start").next().unwrap()["resumed_from"], Value::Null);
    let warning = named(&seen, "warning").next().expect("a warning")["text"].to_string();
    assert!(warning.contains("from the beginning"), "{warning}");
}

/// In float16, an update whose gradients overflow is skipped, and the loss scale is halved until they
/// do not. A resume in the middle of that changes no bit.
#[cfg(feature = "wgpu")]
#[test]
fn an_overflow_is_skipped_and_a_resume_around_it_changes_no_bit() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let half = [&device, "--dtype=float16", "--no-supervise"];
    let state_file = |run: &str, iteration: u64| {
        folder.path().join(run).join(format!("checkpoints/{iteration:08}/state.json"))
    };
    let state = |run, iteration| -> Value {
        serde_json::from_slice(&fs::read(state_file(run, iteration)).unwrap()).unwrap()
    };
    let resume = |run: &str, max_iters: u64| {
        let (run, max_iters) = (format!("--run={run}"), format!("--max_iters={max_iters}"));
        let args = ["train", "--json", "--resume", &run, &max_iters, half[0], half[2]];
        events(&ok(folder.path(), &args))
    };
    for run in ["once", "twice"] {
        let flag = format!("--run={run}");
        let first = ["train", "--json", &flag, "--max_iters=10", "--sample_tokens=0"];
        // `TINY` ends with its device.
        let args = [&first[..3], &TINY[..TINY.len() - 1], &first[3..], &half].concat();
        let seen = events(&ok(folder.path(), &args));
        assert!(named(&seen, "step").all(|step| step["skipped"] == 0), "the start overflows");
        let mut saved = state(run, 10);
        assert_eq!(saved["loss_scale"]["clean"], 10);
        saved["loss_scale"]["scale"] = 2f64.powi(30).into();
        fs::write(state_file(run, 10), saved.to_string()).unwrap();
    }
    let once = resume("once", 40);
    let mut twice = resume("twice", 13);
    assert_eq!(state("twice", 13)["loss_scale"]["skipped_in_a_row"], 3);
    twice.extend(resume("twice", 40));
    assert_eq!(losses(&twice), losses(&once));
    assert_eq!(state("twice", 40)["loss_scale"], state("once", 40)["loss_scale"]);
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [once, twice] = ["once", "twice"]
            .map(|run| fs::read(state_file(run, 40).with_file_name(file)).unwrap());
        assert!(once == twice, "{file} differs");
    }

    let steps: Vec<&Value> = named(&once, "step").collect();
    assert_eq!((&steps[0]["iter"], &steps[0]["skipped"]), (&10.into(), &1.into()));
    assert_eq!(
        (&steps[0]["grad_norm"], &steps[0]["loss_scale"]),
        (&Value::Null, &2f64.powi(29).into())
    );
    let last = steps.last().unwrap();
    let skipped = last["skipped"].as_u64().unwrap();
    assert!(last["grad_norm"].is_number() && (10..20).contains(&skipped), "{last}");
    let log = fs::read_to_string(folder.path().join("once/log.txt")).unwrap();
    let told = log.lines().filter(|line| line.contains(", skipped ")).count() as u64;
    assert_eq!(told, skipped, "{log}");
}

/// Returns the loss of each iteration as a number.
#[cfg(feature = "wgpu")]
fn numbers(events: &[Value]) -> Vec<f64> {
    named(events, "step").map(|step| step["loss"].as_f64().unwrap()).collect()
}

/// The place of the optimizer may change at each resume, because the files are the same.
#[cfg(feature = "wgpu")]
#[test]
fn the_optimizer_may_move_to_host_memory_and_back_at_a_resume() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let tiny = &TINY[..TINY.len() - 1];
    let train = |run: &str, offload: bool, max_iters: u64, resume: bool| {
        let run = format!("--run={run}");
        let offload = format!("--offload_optimizer={offload}");
        let max_iters = format!("--max_iters={max_iters}");
        let flags = [run.as_str(), offload.as_str(), max_iters.as_str(), device.as_str()];
        let first = if resume { vec!["--resume"] } else { [tiny, &["--sample_tokens=0"]].concat() };
        events(&ok(folder.path(), &[&["train", "--json"][..], &first, &flags].concat()))
    };
    let header = |run: &str, file: &str| {
        let path = folder.path().join(run).join("checkpoints/00000030").join(file);
        let bytes = fs::read(path).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let mut tensors: Vec<_> = header.tensors().into_iter().collect();
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        let of_one = |(name, info): (String, _)| format!("{name}: {info:?}");
        tensors.into_iter().map(of_one).collect::<Vec<String>>()
    };
    let whole = train("on the device", false, 30, false);
    let mut moved = train("moved", true, 10, false);
    moved.extend(train("moved", false, 20, true));
    moved.extend(train("moved", true, 30, true));
    let (want, got) = (numbers(&whole), numbers(&moved));
    assert_eq!((want.len(), got.len()), (30, 30));
    for (iter, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got / want - 1.0).abs() < 1e-5, "iteration {iter}: {got}, not {want}");
    }
    for file in ["model.safetensors", "optimizer.safetensors"] {
        assert_eq!(header("moved", file), header("on the device", file), "{file}");
    }
    let has_time = |events: &[Value]| {
        named(events, "step").filter(|step| step["optimizer_ms"].is_number()).count()
    };
    assert_eq!((has_time(&whole), has_time(&moved)), (0, 20));
    let log = fs::read_to_string(folder.path().join("moved/log.txt")).unwrap();
    assert!(log.contains(", optimizer "), "the share of an update is shown: {log}");
}

/// If a process is killed while the CPU updates the weights, the last checkpoint stays intact.
#[cfg(feature = "wgpu")]
#[test]
fn a_kill_during_an_offloaded_update_loses_nothing() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let flags = [
        device.as_str(),
        "--no-supervise",
        "--offload_optimizer=true",
        "--eval_interval=5",
        "--sample_tokens=0",
    ];
    let train = |run: &str| {
        let run = format!("--run={run}");
        [&["train", "--json", run.as_str()][..], &TINY[..TINY.len() - 1], &flags]
            .concat()
            .join("\n")
    };
    let start = |args: &str| {
        let mut command = wgpt(folder.path());
        command.args(args.lines()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let whole = start(&train("whole")).output().unwrap();
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let want = losses(&events(&text(&whole.stdout)));
    let args = train("killed");
    let mut got = BTreeMap::new();
    for attempt in 0..5u64 {
        let mut command = start(&args);
        if folder.path().join("killed/config.toml").exists() {
            command.arg("--resume");
        }
        let mut child = command.spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut stdout = String::new();
        if attempt < 4 {
            for _ in 0..12 {
                reader.read_line(&mut stdout).unwrap();
            }
            // The kill comes somewhere in an update, which includes the optimizer.
            std::thread::sleep(Duration::from_micros(700 * attempt));
            child.kill().unwrap();
        }
        reader.read_to_string(&mut stdout).unwrap();
        let output = child.wait_with_output().unwrap();
        let complete = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
        got.extend(losses(&events(complete)));
        assert!(attempt < 4 || output.status.success(), "{}", text(&output.stderr));
    }
    assert_eq!(got, want);
}

/// State files of earlier versions have no loss scale.
#[test]
fn a_checkpoint_of_a_former_version_loads() {
    let folder = temporary();
    let want = losses(&train(folder.path(), "whole", &["--max_iters=20"]));
    train(folder.path(), "r", &["--max_iters=10"]);
    let file = folder.path().join("r/checkpoints/00000010/state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let removed = state.as_object_mut().unwrap().remove("loss_scale");
    assert_eq!(removed, Some(Value::Null), "nothing was skipped");
    fs::write(&file, state.to_string()).unwrap();
    let args = ["train", "--json", "--resume", "--run=r", "--max_iters=20", "--device=cpu"];
    for (iter, loss) in losses(&events(&ok(folder.path(), &args))) {
        assert_eq!(loss, want[&iter], "iteration {iter}");
    }
}

/// A damaged checkpoint is reported, and the one before it is used.
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
        assert!(named(&events, "warning").count() > 0, "{file}: no warning");
        assert!(newest.with_file_name("damaged-00000020").exists(), "{file}: it was not renamed");
        assert_eq!(named(&events, "start").next().unwrap()["resumed_from"], 10);
        for (iter, loss) in losses(&events) {
            assert_eq!(loss, want[&iter], "{file}, iteration {iter}");
        }
    }
}

/// `eval_only` applies to one process, not to later ones that resume the run.
#[test]
fn eval_only_holds_for_one_process() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=10"]);
    let resume = |more: &[&str]| {
        let args = ["train", "--json", "--resume", "--run=r", "--device=cpu"];
        events(&ok(folder.path(), &[&args, more].concat()))
    };
    assert_eq!(resume(&["--eval_only=true"]).last().unwrap()["reason"], "eval_only");
    let seen = resume(&["--max_iters=20"]);
    assert_eq!(seen.last().unwrap()["reason"], "finished");
    assert_eq!(losses(&seen).len(), 10);
}

/// Sampling needs no optimizer state, and skips a damaged model with a warning.
#[test]
fn a_run_without_optimizer_state_can_be_sampled() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=20"]);
    let checkpoints = folder.path().join("r/checkpoints");
    let sample = || {
        let args = ["sample", "r", "--max-new-tokens=20", "--seed=1", "--device=cpu"];
        let output = run(folder.path(), &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (want, said) = sample();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("checkpoint: "), "{said}");
    for name in ["00000010", "00000020"] {
        fs::remove_file(checkpoints.join(name).join("optimizer.safetensors")).unwrap();
    }
    assert_eq!(sample(), (want.clone(), said));
    let args = ["train", "--resume", "--run=r", "--max_iters=30", "--device=cpu"];
    let resumed = run(folder.path(), &args);
    assert_eq!(resumed.status.code(), Some(7), "{}", text(&resumed.stderr));
    fs::write(checkpoints.join("00000020/model.safetensors"), "").unwrap();
    let (other, said) = sample();
    assert_ne!(other, want);
    assert!(said.contains("damaged") && said.contains("00000010"), "{said}");
}

/// On a full disk a run continues to its end with a warning, and its last checkpoint stays intact.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_no_checkpoint() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=10"]);
    let script = format!(
        "ulimit -f 20; exec {} train --json --resume --run=r --max_iters=20 --device=cpu",
        env!("CARGO_BIN_EXE_wgpt")
    );
    let output = started("bash", folder.path()).args(["-c", &script]).output().unwrap();
    // Its training is lost, so this is a failure.
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let seen = events(&text(&output.stdout));
    assert!(named(&seen, "warning").any(|w| w["text"].to_string().contains("no checkpoint")));
    assert_eq!((losses(&seen).len(), named(&seen, "error").count()), (10, 1));
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

/// A run with Muon continues without changing a bit. It does not continue with another optimizer, which
/// cannot use its state.
#[test]
fn a_run_with_muon_is_resumed_with_muon_alone() {
    let folder = temporary();
    let muon = ["--optimizer=muon", "--grad_clip=1"];
    let want = losses(&train(folder.path(), "whole", &muon));
    assert_eq!(want.len(), 40);
    assert_ne!(want, losses(&train(folder.path(), "adamw", &muon[1..])));
    let mut got = losses(&train(folder.path(), "r", &[&muon[..], &["--max_iters=20"]].concat()));

    let resume = ["train", "--resume", "--run=r", "--max_iters=40", "--device=cpu"];
    let refused = run(folder.path(), &[&resume[..], &["--optimizer=adamw"]].concat());
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("`optimizer` is adamw") && said.contains("but muon in"), "{said}");

    got.extend(losses(&events(&ok(folder.path(), &[&resume[..], &["--json"]].concat()))));
    assert_eq!(got, want);
}

/// A checkpoint that survives a power failure has the losses of its updates.
#[cfg(target_os = "linux")]
#[test]
fn the_record_is_synced_before_each_checkpoint() {
    let folder = temporary();
    let mut command = wgpt(folder.path());
    command.args(["train", "--run=r", "--log=csv,tensorboard"]).args(TINY);
    let renames = "fsync,?rename,?renameat,?renameat2";
    let Some((output, log)) = traced(&command, renames) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let calls: Vec<&str> = log.lines().collect();
    // The state of a checkpoint is renamed inside its folder.
    let names_checkpoint =
        |line: &&str| line.contains("rename") && line.matches(".writing-").count() == 1;
    let parts: Vec<&[&str]> = calls.split_inclusive(names_checkpoint).collect();
    assert_eq!(parts.len(), 5, "four checkpoints, and the end: {log}");
    for calls in parts {
        for name in ["events.jsonl", "log.txt", "scalars.csv", "tfevents"] {
            let is_sync = |line: &&str| line.contains("fsync(") && line.contains(name);
            assert!(calls.iter().any(is_sync), "{name}: {calls:#?}");
        }
    }
}

/// What is left of a checkpoint does not stop the run from saving it.
#[test]
fn a_checkpoint_without_a_state_is_replaced() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=10"]);
    let path = folder.path().join("r/checkpoints/00000020");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("model.safetensors"), "half").unwrap();
    ok(folder.path(), &["train", "--resume", "--run=r", "--max_iters=30", "--device=cpu"]);
    assert!(path.join("state.json").exists());
    assert_ne!(fs::read(path.join("model.safetensors")).unwrap(), b"half");
}
