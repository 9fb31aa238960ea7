//! Runs that continue from a checkpoint, and what the checkpoint has.

use super::*;
use crate::disk;
use crate::disk::recorder::{Call, record};

fn resumed(request: TrainRequest) -> Vec<Event> {
    alone(&TrainRequest { resume: true, ..request })
}

/// The iterations of a run's evaluations and of its samples.
fn due(events: &[Event]) -> [Vec<u64>; 2] {
    let evals = each!(events, Event::Eval { iter, .. } => *iter);
    [evals.collect(), each!(events, Event::Sample(sample) => sample.iter).collect()]
}

#[test]
fn an_evaluation_is_made_once_and_a_sample_by_each_process() {
    let (_folder, run) = new_run();
    let until = |last: &str| {
        let settings = [("max_iters", last), ("sample_interval", "5"), ("sample_tokens", "3")];
        request(&run, &settings)
    };
    assert_eq!(due(&alone(&until("10"))), [vec![0, 10], vec![0, 5, 10]]);
    assert_eq!(due(&resumed(until("20"))), [vec![20], vec![10, 15, 20]]);
}

#[test]
fn the_best_evaluation_is_that_of_the_whole_run() {
    let (_folder, run) = new_run();
    let part = |more: &[(&str, &str)]| {
        let settings = [("eval_interval", "5"), ("always_save_checkpoint", "true")];
        request(&run, &[&settings, more].concat())
    };
    let best = |events: &[Event]| -> Vec<bool> {
        each!(events, Event::Checkpoint(saved) => saved.best).collect()
    };
    let first = alone(&part(&[("max_iters", "10")]));
    assert_eq!(best(&first), [true, true]);
    // A model that such a rate leaves is worse.
    let rate = [("max_iters", "20"), ("learning_rate", "0.5"), ("decay_lr", "false")];
    let second = resumed(part(&rate));
    let lowest = evals(&first).into_iter().skip(1).step_by(2).fold(f64::INFINITY, f64::min);
    assert!(evals(&second)[1] > lowest, "{:?}", evals(&second));
    assert_eq!(best(&second), [false, false]);
    let Some(Event::Done { best_val_loss, .. }) = second.last() else { panic!("{second:?}") };
    assert_eq!(*best_val_loss, Some(lowest));
}

#[test]
fn a_worse_model_is_saved_only_if_all_are() {
    let (_folder, run) = new_run();
    let part = |more: &[(&str, &str)]| {
        let settings = [("eval_interval", "5"), ("always_save_checkpoint", "false")];
        request(&run, &[&settings, more].concat())
    };
    let saved = |events: &[Event]| -> Vec<u64> {
        each!(events, Event::Checkpoint(saved) => saved.iter).collect()
    };
    assert_eq!(saved(&alone(&part(&[("max_iters", "10")]))), [5, 10]);
    let rate = [("max_iters", "20"), ("learning_rate", "0.5"), ("decay_lr", "false")];
    // The end of a run is saved in any case.
    assert_eq!(saved(&resumed(part(&rate))), [20]);
}

#[test]
fn each_update_has_the_learning_rate_of_its_iteration() {
    let (_folder, run) = new_run();
    let request = |last: &str| request(&run, &[("max_iters", last)]);
    let mut events = alone(&request("6"));
    events.extend(resumed(request("12")));
    let found: Vec<(u64, f64)> = each!(events, Event::Step(step) => (step.iter, step.lr)).collect();
    let config = request("12").config;
    let expected = (0..12).map(|iter| (iter, config::learning_rate(&config, iter)));
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert!(found[0].1 < found[3].1 && found[5].1 > found[11].1, "{found:?}");
}

#[test]
fn a_checkpoint_takes_the_place_of_an_unfinished_one() {
    let folder = tempfile::tempdir().unwrap();
    for resume in [false, true] {
        let run = folder.path().join("r");
        let unfinished = run.join("checkpoints/.writing-00000003");
        disk::create_dir_all(&unfinished).unwrap();
        disk::write(run.join("lock"), "").unwrap();
        disk::write(unfinished.join("config.json"), "{").unwrap();
        let last = if resume { "4" } else { "2" };
        alone(&TrainRequest { resume, ..request(&run, &[("max_iters", last)]) });
        assert!(!unfinished.exists(), "resume: {resume}");
    }
}

#[test]
fn every_file_of_a_checkpoint_is_verified() {
    let (_folder, run) = new_run();
    alone(&request(&run, &[("max_iters", "2")]));
    let path = run.join("checkpoints/00000002");
    let entries = disk::read_dir(&path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "state.json");
    for name in ["config.json", "tokenizer.json", "model.safetensors", "optimizer.safetensors"] {
        assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
    }
    for name in names {
        let file = path.join(&name);
        let whole = disk::read(&file).unwrap();
        disk::write(&file, [&whole[..], b" "].concat()).unwrap();
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("damaged"), "{error}");
        disk::write(&file, whole).unwrap();
    }
    Checkpoint::open(&path).unwrap();
}

/// A power failure leaves either no checkpoint of this name or a whole one.
#[test]
fn a_checkpoint_is_synced_before_its_name_and_its_folder_after() {
    let (_folder, run) = new_run();
    let request = request(&run, &[("eval_interval", "2"), ("max_iters", "2")]);
    let (_, calls) = record(|| alone(&request));
    let checkpoints = run.join("checkpoints");
    let path = checkpoints.join("00000002");
    let is_named = |call: &Call| matches!(call, Call::Rename(_, to) if *to == path);
    let named = calls.iter().position(is_named).unwrap();
    let Call::Rename(temporary, _) = &calls[named] else { unreachable!() };
    for entry in std::fs::read_dir(&path).unwrap() {
        let name = entry.unwrap().file_name();
        let file = temporary.join(&name);
        // The last file is written under a temporary name, too.
        let is_synced = |call: &Call| match call {
            Call::SyncFile(synced) => *synced == file,
            Call::Rename(_, to) => *to == file && name == "state.json",
            Call::SyncFolder(_) => false,
        };
        assert!(calls[..named].iter().any(is_synced), "{name:?} in {calls:?}");
    }
    assert!(calls[named..].contains(&Call::SyncFolder(checkpoints)), "{calls:?}");
}
