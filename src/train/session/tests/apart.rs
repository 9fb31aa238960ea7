//! Ranks that train apart.

use std::path::PathBuf;

use super::*;
use crate::disk;

/// With evaluations and checkpoints that do not fall on the ends of rounds.
fn apart(run: &Path, more: &[(&str, &str)]) -> Request {
    let settings = [("sync_every", "5"), ("eval_interval", "7")];
    request(run, &[&settings, more].concat())
}

const MISSING: &str = "lacks the optimizer state of some ranks";

/// The file of rank 1 for the checkpoint after `iteration` updates.
fn own_states(run: &Path, iteration: u64) -> PathBuf {
    run.join(format!("ranks/1-{iteration:08}.safetensors"))
}

#[test]
fn ranks_train_apart_and_average_their_weights() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| train_on(3, &apart(&folder.path().join(name), &[("max_iters", "23")]));
    let all = of("a");
    for events in &all {
        assert_eq!(losses(events), losses(&all[0]), "losses are those of all ranks");
    }
    assert_eq!(losses(&of("b")[0]), losses(&all[0]), "the same bits each time");
    let (steps, evals) = losses(&all[0]);
    assert_eq!(steps.len(), 23);
    // At the ends of the rounds in which 7 and 14 are; 21 is in that which the run ends.
    assert_eq!(
        each!(all[0], Event::Eval { iter, .. } => *iter).collect::<Vec<_>>(),
        [0, 10, 15, 23]
    );
    assert!(evals[evals.len() - 1] < evals[1], "it learns: {evals:?}");
    assert!(warns(&all[0], "not the same algorithm"));
    let together = request(&folder.path().join("c"), &[("max_iters", "23")]);
    let together = losses(&train_on(3, &together)[0]).0;
    // The loss of the first update is that of the initial weights.
    assert!((steps[0].1 / together[0].1 - 1.0).abs() < 1e-5);
    assert_ne!(steps[5..], together[5..]);
}

#[test]
fn ranks_that_train_apart_continue_with_the_same_losses() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = train_on(2, &apart(&folder.path().join("a"), &[("max_iters", "20")]));
    let expected = losses(&undisturbed[0]).0;
    let run = folder.path().join("b");
    let first = train_on(2, &apart(&run, &[("max_iters", "10")]));
    assert_eq!(losses(&first[0]).0, expected[..10]);
    assert!(run.join("ranks/1-00000010.safetensors").exists());
    let resumed = |ranks: usize, last: &str| {
        train_on(ranks, &Request { resume: true, ..apart(&run, &[("max_iters", last)]) })
    };
    assert_eq!(losses(&resumed(2, "20")[0]).0, expected[10..]);
    // A new rank has no state yet.
    let more = resumed(3, "22");
    assert!(warns(&more[0], MISSING));
    assert_eq!(losses(&more[2]), losses(&more[0]));
    // An end within a round averages too: all have what rank 0 has written.
    let last = Request { resume: true, ..apart(&run, &[("max_iters", "24")]) };
    assert_eq!(steps(&alone(&last)).len(), 2);
}

#[test]
fn a_rank_that_cannot_write_its_state_ends_nothing() {
    let (_folder, run) = new_run();
    // A folder where its file goes.
    disk::create_dir_all(own_states(&run, 10)).unwrap();
    let all = train_on(2, &apart(&run, &[("max_iters", "10")]));
    for events in &all {
        assert!(warns(events, "rank 1 has not saved its optimizer state"));
        assert!(matches!(events.last(), Some(Event::Done { iter: 10, .. })));
    }
    assert!(!own_states(&run, 10).with_extension("writing").exists());
    let resumed = Request { resume: true, ..apart(&run, &[("max_iters", "15")]) };
    let resumed = &train_on(2, &resumed)[0];
    assert_eq!((steps(resumed).len(), warns(resumed, MISSING)), (5, true));
}

#[test]
fn own_states_stay_as_long_as_their_checkpoints() {
    let (_folder, run) = new_run();
    let settings = [("eval_interval", "5"), ("keep_checkpoints", "1")];
    let until = |last: &str, resume: bool| {
        let request = apart(&run, &[&settings[..], &[("max_iters", last)]].concat());
        Request { resume, ..request }
    };
    train_on(2, &until("5", false));
    // A file where rank 0 writes the next one.
    let obstacle = run.join("checkpoints/.writing-00000010");
    disk::write(&obstacle, "").unwrap();
    let failed = on_threads(2, |group| train(until("10", true), group, &[]).err());
    assert!(matches!(failed[0], Some(TrainError::Io { .. })), "{failed:?}");
    assert!(own_states(&run, 5).exists());
    disk::remove_file(obstacle).unwrap();
    let continued = &train_on(2, &until("20", true))[0];
    assert_eq!((steps(continued).len(), warns(continued, MISSING)), (15, false));
    assert!(!own_states(&run, 5).exists() && own_states(&run, 20).exists());
}

#[test]
fn states_of_a_dropped_history_do_not_outlive_it() {
    let (_folder, run) = new_run();
    let until = |last: &str, keep: &str, resume: bool| {
        let settings = [("eval_interval", "5"), ("max_iters", last), ("keep_checkpoints", keep)];
        train_on(2, &Request { resume, ..apart(&run, &settings) })
    };
    until("20", "4", false);
    for dropped in ["00000015", "00000020"] {
        disk::remove_dir_all(run.join("checkpoints").join(dropped)).unwrap();
    }
    // What a killed process leaves behind.
    let unfinished = run.join("ranks/1-00000017.writing");
    disk::write(&unfinished, "").unwrap();
    assert!(!warns(&until("15", "1", true)[0], MISSING));
    let exist = [15, 20].map(|iteration| own_states(&run, iteration).exists());
    assert_eq!((exist, unfinished.exists()), ([true, false], false));
    assert!(!warns(&until("20", "1", true)[0], MISSING));
}

#[test]
fn a_rank_counts_the_updates_that_it_has_skipped_itself() {
    let (_folder, run) = new_run();
    train_on(2, &apart(&run, &[("max_iters", "10")]));
    // As if it had trained in float16.
    let path = own_states(&run, 10);
    let mut file = disk::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    let scale = header["loss_scale"]["data_offsets"][0].as_u64().unwrap() as usize;
    let skipped = start + scale + 2 * size_of::<f32>();
    file[skipped..][..4].copy_from_slice(&3f32.to_le_bytes());
    disk::write(&path, file).unwrap();
    let resumed = Request { resume: true, ..apart(&run, &[("max_iters", "15")]) };
    for (events, expected) in train_on(2, &resumed).iter().zip([0, 3]) {
        let found: Vec<u64> = each!(events, Event::Step(step) => step.skipped).collect();
        assert_eq!(found, [expected; 5]);
    }
}
