//! Runs that train in some hours only or below a temperature, and commands that follow a run.

use super::*;

#[cfg(unix)]
/// Returns a time zone in which it is now 12:00 and `seconds`.
fn noon_and(seconds: i64) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    let ahead = (12 * 3600 + seconds - now % 86_400).rem_euclid(86_400);
    // At most half a day in either direction, west of Greenwich counted as positive.
    let west = if ahead > 43_200 { 86_400 - ahead } else { -ahead };
    let sign = if west < 0 { "-" } else { "" };
    let [hours, minutes, seconds] = [west.abs() / 3600, west.abs() / 60 % 60, west.abs() % 60];
    format!("NOON{sign}{hours:02}:{minutes:02}:{seconds:02}")
}

// Elsewhere, no variable sets the time zone.
#[cfg(unix)]
#[test]
fn a_run_waits_for_its_hours_and_loses_nothing() {
    let folder = temporary();
    let undisturbed = train(folder.path(), "undisturbed", &[]);
    let mut command = wgpt(folder.path());
    command.args(["train", "--json", "--run=late", "--hours=12:01-13:00"]).args(TINY);
    let output = command.env("TZ", noon_and(45)).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let late = events(&text(&output.stdout));
    let starts: Vec<_> = named(&late, "start").map(|start| &start["resumed_from"]).collect();
    assert_eq!(starts, [&Value::Null, &0.into()], "a worker before the hours, and one in them");
    let losses = |events: &[Value]| {
        let steps = named(events, "step");
        steps.map(|step| (step["iter"].clone(), step["loss"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(losses(&late), losses(&undisturbed));
    assert_eq!(late.last().unwrap()["reason"], "finished");
    assert_eq!(named(&late, "done").count(), 1);
}

#[cfg(unix)]
#[test]
fn a_run_that_waits_for_its_hours_can_be_stopped_and_resumed() {
    let folder = temporary();
    let start = |more: &[&str]| {
        let mut command = wgpt(folder.path());
        command.args(["train", "--json", "--run=r"]).args(more).env("TZ", noon_and(0));
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut child = start(&[TINY, &["--hours=23:00-07:00"]].concat());
    let record = folder.path().join("r/events.jsonl");
    wait_for(&record, &mut child);
    let waits = || fs::read_to_string(&record).is_ok_and(|text| text.contains("\"waiting\""));
    let deadline = Instant::now() + Duration::from_secs(120);
    while !waits() {
        assert!(Instant::now() < deadline, "{:?}", fs::read_to_string(&record));
        std::thread::sleep(Duration::from_millis(50));
    }
    // Nobody trains it meanwhile, and it is no crashed run.
    assert!(ok(folder.path(), &["runs", "."]).contains("running"));
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let found = events(&text(&output.stdout));
    let waiting = named(&found, "waiting").next().unwrap();
    let expected = "outside the hours 23:00-07:00; the run continues at 23:00";
    assert_eq!(waiting["text"], expected);
    assert!((39_500..=39_600).contains(&waiting["seconds"].as_u64().unwrap()), "{waiting}");
    assert_eq!(found.last().unwrap()["reason"], "stopped");
    assert_eq!(named(&found, "step").count(), 0);
    let resumed = start(&["--resume", "--hours="]).wait_with_output().unwrap();
    let resumed = events(&text(&resumed.stdout));
    assert_eq!(named(&resumed, "step").count(), 40);
    assert_eq!(resumed.last().unwrap()["reason"], "finished");
}

#[test]
fn hours_need_a_process_that_waits() {
    let folder = temporary();
    let args = [&["train", "--run=r", "--no-supervise", "--hours=sat-sun"], TINY].concat();
    let output = run(folder.path(), &args);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(!folder.path().join("r").exists());
}

#[test]
fn limits_need_a_device_that_reports_what_they_limit() {
    let folder = temporary();
    for (flag, what) in [("--max_celsius=75", "temperature"), ("--max_watts=100", "power")] {
        let output = run(folder.path(), &[&["train", "--run=r", flag], TINY].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("nothing reports the {what} of CPU")), "{stderr}");
        assert!(!folder.path().join("r").exists(), "{flag}");
    }
}

#[cfg(unix)]
#[test]
fn a_command_follows_a_run_that_ends_by_itself() {
    let folder = temporary();
    let args = |more: &[&'static str]| {
        [&["train", "--json", "--run=r", "--on-finish=cat > ended.json; echo done"], TINY, more]
            .concat()
    };
    let ended = folder.path().join("ended.json");
    let output = run(folder.path(), &args(&[]));
    assert!(output.status.success());
    let line: Value = serde_json::from_str(&fs::read_to_string(&ended).unwrap()).unwrap();
    assert_eq!((&line["name"], &line["state"]), (&"r".into(), &"finished".into()));
    // stdout has events alone.
    assert_eq!(events(&text(&output.stdout)).last().unwrap()["event"], "done");
    assert!(text(&output.stderr).contains("done"));

    fs::remove_file(&ended).unwrap();
    fs::remove_dir_all(folder.path().join("r")).unwrap();
    let mut child = wgpt(folder.path());
    let mut child = child.args(args(&ENDLESS)).stdout(Stdio::null()).spawn().unwrap();
    wait_for(&folder.path().join("r/events.jsonl"), &mut child);
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!ended.exists(), "a person has stopped it");

    // A variable, and a command that fails: the result of the run stays.
    let args = [&["train", "--run=s"], TINY, &["--max_iters=1"]].concat();
    let output = wgpt(folder.path()).args(args).env("WGPT_ON_FINISH", "exit 3").output().unwrap();
    assert!(output.status.success());
    let stderr = text(&output.stderr);
    assert!(stderr.contains("on-finish command failed") && stderr.contains("exit 3"), "{stderr}");
    // Nothing has begun.
    let bad = ["train", "--run=t", "--on-finish=touch bad", "--n_layer=0"];
    assert_eq!(run(folder.path(), &bad).status.code(), Some(2));
    assert!(!folder.path().join("bad").exists());
}
