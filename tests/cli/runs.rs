//! Tests the list of runs, and which run a command takes if none is given.

use super::*;

/// Trains a run in `out/`, and returns only once its files are older than the next run's.
fn train_in_out(folder: &Path, name: &str, more: &[&str]) {
    train(folder, &format!("out/{name}"), more);
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn runs_are_listed_the_newest_first() {
    let folder = temporary();
    let empty = run(folder.path(), &["runs"]);
    assert!(empty.status.success());
    assert_eq!(text(&empty.stdout), "");
    assert!(text(&empty.stderr).contains("no runs in out"), "{}", text(&empty.stderr));
    assert_eq!(ok(folder.path(), &["runs", "--json"]), "[]\n");
    assert_eq!(run(folder.path(), &["runs", "nowhere"]).status.code(), Some(2));

    train_in_out(folder.path(), "old", &["--max_iters=10"]);
    train_in_out(folder.path(), "new", &["--max_time=1ms"]);
    let listed: Vec<Value> = serde_json::from_str(&ok(folder.path(), &["runs", "--json"])).unwrap();
    let of = |key: &str| listed.iter().map(|run| run[key].clone()).collect::<Vec<Value>>();
    assert_eq!(of("name"), ["new", "old"]);
    assert_eq!(of("state"), ["stopped", "finished"]);
    assert_eq!(of("iteration"), [0, 10]);
    assert_eq!(of("max_iters"), [40, 10]);
    assert_eq!(of("has_checkpoint"), [true, true]);
    assert!(listed[1]["val_loss"].is_f64() && listed[0]["val_loss"].is_null());
    let table = ok(folder.path(), &["runs"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[1].contains("new") && lines[1].contains("0 of 40"), "{table}");
    assert!(lines[2].contains("finished") && lines[2].ends_with(" ago"), "{table}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{table}");
    assert_eq!(ok(folder.path(), &["runs", "out/old"]).lines().count(), 2);
}

/// `sample`, `eval` and `export` take the newest run with a checkpoint, and name it.
#[test]
fn the_newest_run_is_the_default() {
    let folder = temporary();
    for command in [&["sample"][..], &["eval"], &["export", "-o", "hf"], &["train", "--resume"]] {
        let refused = run(folder.path(), command);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("in out/") || said.contains("out/ has none"), "{said}");
        assert!(said.contains("hint: "), "{said}");
    }
    train_in_out(folder.path(), "first", &["--max_iters=10"]);
    train_in_out(folder.path(), "second", &["--max_iters=10"]);
    train_in_out(folder.path(), "empty", &["--eval_only=true"]);
    let used = Path::new("out").join("second");
    let said = format!(
        "using {}, the newest run\ncheckpoint: {}\n",
        used.display(),
        used.join("checkpoints").join("00000010").display()
    );
    let short = "--max-new-tokens=3";
    for command in
        [&["sample", short, "--seed=1"][..], &["eval", "--windows=1"], &["export", "-o", "hf"]]
    {
        let output = run(folder.path(), &[command, &["--device=cpu"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), said, "{command:?}");
    }
    let quiet = run(folder.path(), &["sample", short, "-q", "--device=cpu"]);
    assert_eq!(text(&quiet.stderr), "");
    // A model folder has no checkpoints.
    let model =
        run(folder.path(), &["sample", "hf", short, "--data=builtin:stories", "--device=cpu"]);
    assert!(text(&model.stderr).starts_with("model: hf"), "{}", text(&model.stderr));
}

/// `train --resume` takes the newest run that no process trains.
#[test]
fn the_newest_run_is_resumed() {
    let folder = temporary();
    train_in_out(folder.path(), "first", &["--max_iters=10"]);
    let args = [&["train", "--json", "--run=out/second"], TINY, &ENDLESS].concat();
    let mut second = wgpt(folder.path()).args(&args).stdout(Stdio::null()).spawn().unwrap();
    wait_for(&folder.path().join("out/second/checkpoints/00000010/state.json"), &mut second);
    let resume = ["train", "--resume", "--json", "--max_iters=12", "--device=cpu"];
    let output = run(folder.path(), &resume);
    second.kill().unwrap();
    second.wait().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let first = Path::new("out").join("first");
    assert!(said.starts_with(&format!("using {}, the newest run\n", first.display())), "{said}");
    let seen = events(&text(&output.stdout));
    assert_eq!(named(&seen, "start").next().unwrap()["resumed_from"], 10);
    assert_eq!(losses(&seen).len(), 2);
    // A configuration does not apply to the newest run.
    let named = run(folder.path(), &["train", "--resume", "--preset=demo"]);
    assert_eq!(named.status.code(), Some(2), "{}", text(&named.stderr));
}

/// The command that a run prints last works.
#[test]
fn a_run_ends_with_the_command_that_follows() {
    let folder = temporary();
    let next = |args: &[&str]| {
        let output = run(folder.path(), args);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        let last = said.lines().last().unwrap_or_default().to_string();
        let (does, command) = last.split_once(" with: ").unwrap_or_else(|| panic!("{said}"));
        (does.to_string(), command.to_string())
    };
    let start = [&["train", "--run=my run"], TINY].concat();
    let (does, command) = next(&[&start, &["--max_time=1ms"][..]].concat());
    assert_eq!(does, "continue it");
    let quoted = if cfg!(windows) { "\"my run\"" } else { "'my run'" };
    assert!(command.ends_with(&format!(" train --resume --run {quoted}")), "{command}");
    let (does, command) =
        next(&["train", "--resume", "--run=my run", "--max_time=1h", "--device=cpu"]);
    assert_eq!(does, "try it");
    assert!(command.contains(&format!(" sample {quoted}")), "{command}");
    if cfg!(unix) {
        let mut shell = started("sh", folder.path());
        let output = shell.args(["-c", &command]).env("WGPT_DEVICE", "cpu").output().unwrap();
        assert!(output.status.success(), "{command}\n{}", text(&output.stderr));
    }
}

/// Progress of long work is reported to other programs, and not recorded.
#[test]
fn an_evaluation_reports_how_far_it_is() {
    let folder = temporary();
    let long = ["--eval_only=true", "--eval_iters=4000", "--n_embd=64"];
    let stdout = ok(folder.path(), &[&["train", "--json", "--run=r"], TINY, &long].concat());
    let working: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"] == "working" && event["task"] == "evaluation")
        .collect();
    assert!(!working.is_empty(), "{stdout}");
    let done: Vec<u64> = working.iter().map(|event| event["done"].as_u64().unwrap()).collect();
    assert!(done.is_sorted(), "{done:?}");
    assert!(working.iter().all(|event| event["done"].as_u64() < event["total"].as_u64()));
    for file in ["events.jsonl", "log.txt"] {
        let kept = fs::read_to_string(folder.path().join("r").join(file)).unwrap();
        assert!(!kept.contains("working") && !kept.contains("evaluating"), "{kept}");
    }
}

/// The window moves a run to the trash, as file managers do.
#[cfg(target_os = "linux")]
#[test]
fn a_run_is_moved_to_the_trash() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=2"]);
    let run = folder.path().join("r");
    let remove = |gio: Option<&str>| {
        let programs = temporary();
        if let Some(gio) = gio {
            let file = programs.path().join("gio");
            fs::write(&file, format!("#!/bin/sh\n{gio}\n")).unwrap();
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&file, executable).unwrap();
        }
        let mut program = wgpt(folder.path());
        program.env("PATH", programs.path());
        let request = serde_json::json!({"message": "request", "request": "remove", "path": &run});
        ask_worker(program, &request).pop().unwrap()
    };
    for (gio, wanted) in [
        (None, "could not be moved to the trash: `gio` is not installed"),
        (Some("echo there is no trash >&2; exit 1"), "trash: there is no trash"),
    ] {
        let failed = remove(gio);
        assert_eq!(failed["reply"], "failed", "{failed}");
        assert!(failed["text"].to_string().contains(wanted), "{failed}");
        assert!(run.exists());
    }
    let removed = remove(Some("[ \"$1\" = trash ] && exec /bin/rm -r \"$2\""));
    assert_eq!(removed["reply"], "removed", "{removed}");
    assert!(!run.exists());
}
