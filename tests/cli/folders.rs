//! Folders from somebody else, of other users, and folders that vanish while their run trains.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

/// Runs a command that must end by itself, even if a file in its way never ends.
fn ended(folder: &Path, args: &[&str]) -> Output {
    ended_after(wgpt(folder).args(args).stdout(Stdio::piped()), |_| ())
}

/// Starts a command that must end by itself after `act`.
fn ended_after(command: &mut Command, act: impl FnOnce(&mut Child)) -> Output {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    act(&mut child);
    for _ in 0..1200 {
        if child.try_wait().unwrap().is_some() {
            return child.wait_with_output().unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("{command:?} does not end");
}

/// Starts a run without an end in `out/r`, and acts once it has a checkpoint. Returns its end.
fn disturbed(folder: &Path, act: impl FnOnce(&Path, &Child)) -> Output {
    let run = folder.join("out/r");
    let mut command = wgpt(folder);
    command.args([&["train", "--run=out/r"], TINY, &ENDLESS].concat()).stdout(Stdio::null());
    ended_after(&mut command, |child| {
        wait_for(&run.join("checkpoints/00000010/state.json"), child);
        act(&run, child);
    })
}

/// Checks that a command is refused, and returns what it says.
fn refused(folder: &Path, args: &[&str]) -> String {
    let output = ended(folder, args);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("hint: "), "{args:?}\n{said}");
    assert!(!said.contains("panicked"), "{args:?}\n{said}");
    said
}

fn stop(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
}

fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

const RESUME: [&str; 5] =
    ["train", "--resume", "--run=r", "--max_iters=20", "--keep_checkpoints=1"];

#[test]
fn nothing_is_written_or_removed_through_a_link() {
    let folder = temporary();
    let at = |name: &str| folder.path().join(name);
    train(folder.path(), "whole", &["--max_iters=10"]);
    fs::create_dir(at("home")).unwrap();
    fs::write(at("home/notes.txt"), "mine").unwrap();
    copy(&at("whole/checkpoints/00000010"), &at("home/00000005"));
    let before = listing(&at("home"));
    let config =
        ["r/config.toml", "r/lock", "r/commands.jsonl", "r/checkpoints/00000010/state.json"];
    let files = ["r/log.txt", "r/events.jsonl", "r/checkpoints/00000010/model.safetensors"];
    for (name, target) in config
        .iter()
        .chain(&files)
        .map(|&name| (name, "home/notes.txt"))
        .chain([("r/checkpoints/00000005", "home/00000005"), ("r/checkpoints", "home")])
    {
        let _ = fs::remove_dir_all(at("r"));
        copy(&at("whole"), &at("r"));
        let place = at(name);
        let _ = if place.is_dir() { fs::remove_dir_all(&place) } else { fs::remove_file(&place) };
        symlink(at(target), place).unwrap();
        let said = refused(folder.path(), &[&RESUME[..], &["--device=cpu"]].concat());
        assert!(said.contains(name) && said.contains("it is a link"), "{said}");
        assert_eq!(listing(&at("home")), before, "{name}");
    }
    // Nor does a run that has no checkpoint yet write its first through one.
    fs::remove_file(at("r/checkpoints")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    symlink(at("empty"), at("r/checkpoints")).unwrap();
    let said = refused(folder.path(), &[&RESUME[..], &["--device=cpu"]].concat());
    assert!(said.contains("r/checkpoints") && said.contains("it is a link"), "{said}");
    assert!(listing(&at("empty")).is_empty());
    // The folder itself may be one.
    fs::remove_dir_all(at("r")).unwrap();
    symlink(at("whole"), at("r")).unwrap();
    ok(folder.path(), &[&RESUME[..], &["--device=cpu"]].concat());
    symlink(at("home/notes.txt"), at("whole/report.html")).unwrap();
    refused(folder.path(), &["report", "r", "-o", "r/report.html"]);
    assert_eq!(listing(&at("home")), before);
}

#[test]
fn hashes_name_no_file_outside_the_checkpoint() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=10"]);
    let file = folder.path().join("r/checkpoints/00000010/state.json");
    let state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for name in ["/dev/zero", "../../config.toml", "sub/../model.safetensors"] {
        let mut changed = state.clone();
        changed["hashes"][name] = "0".into();
        fs::write(&file, changed.to_string()).unwrap();
        let said = refused(folder.path(), &["sample", "r", "--device=cpu"]);
        assert!(said.contains("missing") && said.contains(name), "{said}");
    }
}

#[test]
fn a_named_pipe_in_the_place_of_a_file_stops_no_command() {
    let folder = temporary();
    let at = |name: &str| folder.path().join(name);
    train(folder.path(), "whole", &["--max_iters=10"]);
    let resume = &[&RESUME[..], &["--device=cpu"]].concat()[..];
    let sample = &["sample", "r", "--device=cpu"][..];
    for (name, commands) in [
        ("events.jsonl", &[resume, &["report", "r"][..]][..]),
        ("config.toml", &[resume]),
        ("log.txt", &[resume]),
        ("lock", &[resume]),
        ("commands.jsonl", &[resume]),
        ("checkpoints/00000010/state.json", &[resume, sample]),
        ("checkpoints/00000010/model.safetensors", &[resume, sample]),
    ] {
        let _ = fs::remove_dir_all(at("r"));
        copy(&at("whole"), &at("r"));
        pipe(&at("r").join(name));
        for command in commands {
            let said = refused(folder.path(), command);
            assert!(said.contains(name) && said.contains("not a regular file"), "{name}: {said}");
        }
        for command in [&["runs", "r", "--json"][..], &["compare", "r", "whole"]] {
            ended(folder.path(), command);
        }
    }
}

/// Another process may put one there while the run trains.
#[test]
fn a_run_stops_at_a_signal_with_a_named_pipe_for_its_commands() {
    let folder = temporary();
    let stopped = disturbed(folder.path(), |run, child| {
        pipe(&run.join("commands.jsonl"));
        std::thread::sleep(Duration::from_secs(1));
        stop(child);
    });
    assert_eq!(stopped.status.code(), Some(143), "{}", text(&stopped.stderr));
    let said = refused(folder.path(), &["train", "--resume", "--run=out/r", "--device=cpu"]);
    assert!(said.contains("commands.jsonl"), "{said}");
}

/// Hugging Face's cache has links to its files. So may a model folder, but only to regular files.
#[test]
fn a_model_folder_may_have_links_to_files() {
    let folder = temporary();
    let at = |name: &str| folder.path().join(name);
    train(folder.path(), "r", &["--max_iters=10"]);
    ok(folder.path(), &["export", "r", "-o", "blobs", "--device=cpu"]);
    fs::create_dir(at("model")).unwrap();
    for entry in fs::read_dir(at("blobs")).unwrap().flatten() {
        symlink(entry.path(), at("model").join(entry.file_name())).unwrap();
    }
    let sample = ["sample", "model", "--max-new-tokens=3", "--device=cpu"];
    ok(folder.path(), &sample);
    fs::create_dir(at("saved")).unwrap();
    for entry in fs::read_dir(at("r/checkpoints/00000010")).unwrap().flatten() {
        symlink(entry.path(), at("saved").join(entry.file_name())).unwrap();
    }
    ok(folder.path(), &["sample", "saved", "--max-new-tokens=3", "--device=cpu"]);
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let kept = fs::read(at("blobs").join(name)).unwrap();
        pipe(&at("blobs").join(name));
        let said = refused(folder.path(), &sample);
        assert!(said.contains(name) && said.contains("not a regular file"), "{said}");
        fs::remove_file(at("blobs").join(name)).unwrap();
        fs::write(at("blobs").join(name), kept).unwrap();
    }
}

/// What a group may read of a run follows from the umask, for files that are replaced, too.
#[test]
fn files_have_the_permissions_that_the_umask_leaves() {
    let folder = temporary();
    let program = env!("CARGO_BIN_EXE_wgpt");
    let train = |umask: &str, more: &str| {
        let flags = TINY.join(" ");
        let line = format!("umask {umask} && exec {program} train --run=r {flags} {more}");
        let output = started("sh", folder.path()).args(["-c", &line]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().mode() & 0o777;
    train("027", "--max_iters=10");
    let names = ["config.toml", "events.jsonl", "checkpoints/00000010/state.json"];
    for name in names {
        assert_eq!(mode(&format!("r/{name}")), 0o640, "{name}");
    }
    let config = folder.path().join("r/config.toml");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o664)).unwrap();
    train("077", "--max_iters=20 --resume");
    assert_eq!(mode("r/config.toml"), 0o664, "a replaced file keeps its permissions");
    assert_eq!(mode("r/checkpoints/00000020/state.json"), 0o600);
}

/// A folder of another user is not taken for one without a run or a model. Permissions do not stop root, so that
/// the command runs without root's right to ignore them.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_may_not_be_read_is_not_taken_for_an_empty_one() {
    let folder = temporary();
    let at = |name: &str| folder.path().join(name);
    train(folder.path(), "r", &["--max_iters=10"]);
    ok(folder.path(), &["export", "r", "-o", "hf", "--device=cpu"]);
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let denied = |args: &[&str]| {
        let program = env!("CARGO_BIN_EXE_wgpt");
        let mut command = started(if is_root { "setpriv" } else { program }, folder.path());
        if is_root {
            command.args(["--bounding-set=-dac_override,-dac_read_search", program]);
        }
        let output = command.args(args).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{args:?}\n{said}");
        assert!(
            said.contains("Permission denied") && said.contains("another user"),
            "{args:?}\n{said}"
        );
    };
    let run: &[&[&str]] = &[
        &["sample", "r", "--device=cpu"],
        &["report", "r"],
        &["train", "--resume", "--run=r", "--device=cpu"],
    ];
    for (path, commands) in [
        ("r", &[run, &[&["runs", "r"]]].concat()[..]),
        ("r/checkpoints", &[run[0], run[2]]),
        ("r/checkpoints/00000010/state.json", &[run[0], run[2]]),
        ("r/events.jsonl", &[run[1]]),
        ("r/config.toml", &[run[2]]),
        ("hf", &[&["sample", "hf", "--device=cpu"]]),
        ("hf/model.safetensors", &[&["sample", "hf", "--device=cpu"]]),
    ] {
        let before = fs::metadata(at(path)).unwrap().permissions();
        fs::set_permissions(at(path), fs::Permissions::from_mode(0o000)).unwrap();
        commands.iter().for_each(|command| denied(command));
        fs::set_permissions(at(path), before).unwrap();
    }
}

/// Trains a run, takes its folder away with `take`, and returns the folder that it is saved in.
fn saved_elsewhere(folder: &Path, take: impl Fn(&Path)) -> PathBuf {
    let output = disturbed(folder, |run, _| take(run));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("deleted or moved") && said.contains("hint: "), "{said}");
    let saved =
        said.split("the run is saved in ").nth(1).expect("a folder").lines().next().unwrap();
    let saved = PathBuf::from(saved);
    assert_eq!(saved.parent(), Some(&*folder.canonicalize().unwrap().join("out")));
    assert!(!folder.join("out/r").exists(), "the folder was made again");
    let config = fs::read_to_string(saved.join("config.toml")).unwrap();
    assert!(config.contains(&format!("out_dir = {:?}", saved.display().to_string())), "{config}");

    // The whole run is there: its settings, its record from the start, and the checkpoint.
    let recorded = events(&fs::read_to_string(saved.join("events.jsonl")).unwrap());
    assert_eq!(recorded[0]["event"], "start");
    assert_eq!(recorded.last().unwrap()["event"], "error");
    let iter = named(&recorded, "checkpoint").last().unwrap()["iter"].as_u64().unwrap();
    let logged = losses(&recorded).len() as u64;
    // The run may end before its last update is logged.
    assert!(losses(&recorded).keys().copied().eq(0..logged) && iter - logged <= 1, "{iter}");
    let run = format!("--run={}", saved.display());
    let more = format!("--max_iters={}", iter + 2);
    let resumed =
        events(&ok(folder, &["train", "--json", "--resume", &run, &more, "--device=cpu"]));
    assert_eq!(named(&resumed, "start").next().unwrap()["resumed_from"], iter);
    saved
}

#[test]
fn a_run_whose_folder_is_deleted_or_moved_stops_and_is_saved_elsewhere() {
    let folder = temporary();
    // A checkpoint may be written meanwhile.
    let remove = |run: &Path| (0..1000).any(|_| fs::remove_dir_all(run).is_ok());
    let deleted = saved_elsewhere(folder.path(), |run| assert!(remove(run)));
    let moved = folder.path().join("moved");
    let other = saved_elsewhere(folder.path(), |run| fs::rename(run, &moved).unwrap());
    assert_ne!(deleted, other);
    let again = ["train", "--resume", "--run=moved", "--max_time=1ms", "--device=cpu"];
    ok(folder.path(), &again);
}

#[test]
fn a_run_that_cannot_be_saved_elsewhere_says_why() {
    let folder = temporary();
    let output = disturbed(folder.path(), |_, _| {
        fs::rename(folder.path().join("out"), folder.path().join("moved")).unwrap();
        fs::write(folder.path().join("out"), "a file").unwrap();
    });
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("could not be saved elsewhere: cannot create"), "{said}");
}

#[test]
fn a_configuration_that_is_deleted_is_written_again() {
    let folder = temporary();
    let config = folder.path().join("out/r/config.toml");
    let mut before = String::new();
    let stopped = disturbed(folder.path(), |_, child| {
        before = fs::read_to_string(&config).unwrap();
        fs::remove_file(&config).unwrap();
        stop(child);
    });
    assert_eq!(stopped.status.code(), Some(143), "{}", text(&stopped.stderr));
    assert_eq!(fs::read_to_string(&config).unwrap(), before);
}

#[test]
fn a_folder_of_one_kind_takes_no_other() {
    let folder = temporary();
    fs::write(folder.path().join("t.txt"), "The fox comes home.\n".repeat(200)).unwrap();
    ok(folder.path(), &["prepare", "t.txt", "-o", "data", "--tokenizer=byte"]);
    train(folder.path(), "run", &["--data=data", "--max_iters=4"]);
    ok(folder.path(), &["export", "run", "-o", "model"]);
    let prepare = |to| vec!["prepare", "t.txt", "-o", to, "--tokenizer=char", "--force"];
    let export = |to| vec!["export", "run", "-o", to];
    let begin = |to| [&["train", "--data=data", to], TINY].concat();
    for (args, kind) in [
        (prepare("run"), "the folder of a run"),
        (prepare("model"), "the folder of a model"),
        (begin("--run=data"), "the folder of data"),
        (begin("--run=model"), "the folder of a model"),
        (export("run"), "the folder of a run"),
        (export("data"), "the folder of data"),
    ] {
        let names = || {
            let of = |name| fs::read_dir(folder.path().join(name)).unwrap().count();
            ["run", "data", "model"].map(of)
        };
        let before = names();
        let output = run(folder.path(), &args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(kind) && said.contains("hint: give another folder"), "{said}");
        assert_eq!(names(), before, "{args:?}");
    }
}
