//! Tests on run folders as a trainer writes them.

use super::*;
use crate::config::InitFrom;
use crate::plan::{Backend, DeviceKind, DeviceLine};
use crate::protocol::{RunError, Step, Waiting};
use crate::runs::{RunFolder, json_line};
use std::fs;
use std::io::Write;

fn start() -> Event {
    let [id, name] = ["vulkan:0", "GPU"].map(String::from);
    let (backend, kind) = (Backend::Vulkan, DeviceKind::Discrete);
    Event::Start {
        run: "out/demo-1".into(),
        device: DeviceLine { id, name, backend, kind },
        config: Box::new(Config::default()),
        params: 10,
        resumed_from: None,
        entropy_floor: None,
        products: None,
        ranks: Vec::new(),
    }
}

fn step(iter: u64) -> Event {
    Event::Step(Step { iter, loss: 3.0 - iter as f64 / 4096.0, ..Step::default() })
}

fn eval(iter: u64, val_loss: f64) -> Event {
    Event::Eval { iter, train_loss: 1.0, val_loss, bits_per_byte: None, hellaswag: None }
}

fn done(reason: StopReason) -> Event {
    Event::Done { iter: 7, best_val_loss: Some(2.0), seconds: 1.0, reason }
}

fn replan(reason: ReplanReason) -> Event {
    Event::Replan { reason, text: "gone".into(), from: None, to: None }
}

fn write(run: &Path, text: &str) {
    let file = std::fs::File::options().create(true).append(true).open(run.join(EVENTS_FILE));
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

fn say(run: &Path, events: &[Event]) {
    events.iter().for_each(|event| write(run, &format!("{}\n", json_line(event))));
}

fn read(tail: &mut Tail) -> Vec<Event> {
    tail.read()
}

fn only(run: &Path) -> RunSummary {
    let mut found = list(run).unwrap();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[test]
fn the_last_event_tells_the_state_of_a_run() {
    let error = RunError { text: "no data".into(), hint: "give some".into(), cause: None };
    let failed = RunState::Failed { text: error.text.clone() };
    let waiting = Waiting {
        text: "restarting".into(),
        attempt: 1,
        attempts: 9,
        seconds: 1,
        free_bytes: None,
    };
    for (last, wanted) in [
        (done(StopReason::Finished), RunState::Finished),
        (done(StopReason::EvalOnly), RunState::Finished),
        (done(StopReason::Stopped), RunState::Stopped),
        (done(StopReason::MaxTime), RunState::Stopped),
        (Event::Error(error), failed),
        (step(7), RunState::Crashed),
        (replan(ReplanReason::Budget), RunState::Crashed),
        (replan(ReplanReason::OutOfMemory), RunState::Running),
        (Event::Waiting(waiting), RunState::Running),
        (Event::Paused { iter: 7 }, RunState::Crashed),
    ] {
        let folder = tempfile::tempdir().unwrap();
        say(folder.path(), &[start(), step(6), last]);
        assert_eq!(only(folder.path()).state, wanted);
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(list(folder.path()).unwrap(), []);
    write(folder.path(), "{\"v\":1,\"event\":\"st");
    assert_eq!(only(folder.path()).state, RunState::Empty);
}

#[test]
fn a_locked_run_is_running_or_paused() {
    let folder = tempfile::tempdir().unwrap();
    say(folder.path(), &[start(), done(StopReason::Stopped)]);
    let held = RunFolder::open(folder.path(), true).unwrap();
    assert_eq!(only(folder.path()).state, RunState::Running);
    assert!(is_training(folder.path()));
    say(folder.path(), &[start(), Event::Paused { iter: 0 }]);
    assert_eq!(only(folder.path()).state, RunState::Paused);
    assert!(is_training(folder.path()));
    say(folder.path(), &[done(StopReason::Stopped)]);
    drop(held);
    assert!(!is_training(folder.path()));
    assert_eq!(only(folder.path()).state, RunState::Stopped);
    RunFolder::open(folder.path(), true).unwrap();
}

#[test]
fn a_display_name_leaves_the_folder_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    say(folder.path(), &[start(), step(6)]);
    let before = only(folder.path());
    assert_eq!((before.title(), &before.about), (before.name.as_str(), &About::default()));
    let about = About { name: "Foxes \"2\"".into(), note: "wide\nand \\ deep".into() };
    describe(folder.path(), &about).unwrap();
    let named = only(folder.path());
    assert_eq!((named.title(), &named.about), ("Foxes \"2\"", &about));
    assert_eq!((&named.name, named.modified), (&before.name, before.modified));
    fs::write(folder.path().join(ABOUT_FILE), "name = ").unwrap();
    assert_eq!(only(folder.path()).title(), before.name);
}

#[test]
fn a_long_record_is_summarized_from_its_ends() {
    let folder = tempfile::tempdir().unwrap();
    say(folder.path(), &[start(), eval(0, 9.0)]);
    let lines: String = (0..2000).map(|iter| json_line(&step(iter)) + "\n").collect();
    assert!(lines.len() as u64 > 4 * END_BYTES);
    write(folder.path(), &lines);
    write(folder.path(), "not an event\n");
    write(folder.path(), &json_line(&done(StopReason::Finished)));
    let run = only(folder.path());
    assert_eq!((run.iteration, run.max_iters), (2000, Some(600_000)));
    assert_eq!((run.state, run.val_loss), (RunState::Crashed, None));
    assert_eq!(run.loss, Some(3.0 - 1999.0 / 4096.0));
    assert_eq!(run.device.unwrap().name, "GPU");
    assert!(!run.has_checkpoint);

    let checkpoint = folder.path().join(CHECKPOINTS_FOLDER).join("00001900");
    fs::create_dir_all(&checkpoint).unwrap();
    let state = r#"{"iteration":1900,"val_loss":2.5,"best_val_loss":2.25,"version":1}"#;
    fs::write(checkpoint.join(STATE_FILE), state).unwrap();
    let run = only(folder.path());
    assert!(run.has_checkpoint);
    assert_eq!((run.iteration, run.val_loss, run.best_val_loss), (2000, Some(2.5), Some(2.25)));
}

#[test]
fn runs_are_listed_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    for (name, age) in [("old", 300), ("new", 100), ("between", 200)] {
        let run = folder.path().join(name);
        fs::create_dir(&run).unwrap();
        say(&run, &[start()]);
        let file = std::fs::File::options().append(true).open(run.join(EVENTS_FILE)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    fs::create_dir(folder.path().join("data")).unwrap();
    let config = Config { max_iters: 50.try_into().unwrap(), ..Config::default() };
    fs::write(folder.path().join(CONFIG_FILE), config.to_toml()).unwrap();
    let found = list(folder.path()).unwrap();
    let names: Vec<&str> = found.iter().map(|run| run.name.as_str()).collect();
    let own = folder.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(names, [own, "new", "between", "old"]);
    assert_eq!((&found[0].state, found[0].max_iters), (&RunState::Empty, Some(50)));
    assert_eq!(list(&folder.path().join("none")).unwrap(), []);
}

#[test]
fn a_tail_returns_complete_lines_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    let mut all = Tail::open(run, true);
    assert_eq!(read(&mut all), []);
    say(run, &[start(), step(0)]);
    let mut new = Tail::open(run, false);
    assert_eq!((read(&mut all), read(&mut new)), (vec![start(), step(0)], vec![]));
    let line = json_line(&step(1)) + "\n";
    let (half, rest) = line.split_at(30);
    write(run, half);
    let mut late = Tail::open(run, false);
    for tail in [&mut all, &mut new, &mut late] {
        assert_eq!(read(tail), []);
    }
    write(run, &format!("{rest}no event\n"));
    for tail in [&mut all, &mut new, &mut late] {
        assert_eq!((read(tail), read(tail)), (vec![step(1)], vec![]));
    }
    assert_eq!(read(&mut follow(run).unwrap().1), []);
}

#[test]
fn a_tail_starts_over_with_another_record() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    say(run, &[start(), step(0)]);
    let mut tail = Tail::open(run, false);
    for others in [vec![start()], vec![step(1), step(2)]] {
        fs::remove_file(run.join(EVENTS_FILE)).unwrap();
        assert_eq!(read(&mut tail), []);
        say(run, &others);
        assert_eq!(read(&mut tail), others);
    }
}

#[test]
fn progress_is_read_from_the_whole_record() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(follow(folder.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
    say(folder.path(), &[start(), eval(0, 3.0), step(0), eval(1, 4.0)]);
    let (progress, _) = follow(folder.path()).unwrap();
    assert_eq!((progress.iteration, progress.best_val_loss), (1, Some(3.0)));
}

#[test]
fn a_configuration_is_read_back_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(config(folder.path()), None);
    let a = Config { out_dir: "out/a".into(), ..Config::default() };
    fs::write(folder.path().join(CONFIG_FILE), a.to_toml()).unwrap();
    assert_eq!(config(folder.path()), Some(a.clone()));
    let b = Config { out_dir: "out/b".into(), ..a.clone() };
    assert_eq!(difference(&a, &b), []);
    let init_from = InitFrom::Path("out/a".into());
    let b = Config { init_from, learning_rate: 0.002, ..b };
    let wanted = [("init_from", "scratch", "out/a"), ("learning_rate", "0.0006", "0.002")];
    let wanted = wanted.map(|(key, a, b)| (key, a.to_string(), b.to_string()));
    assert_eq!(difference(&a, &b), wanted);
}
