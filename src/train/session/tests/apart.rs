//! Ranks that train apart.

use super::*;

/// With evaluations and checkpoints that do not fall on the ends of rounds.
fn apart(run: &Path, more: &[(&str, &str)]) -> Request {
    let settings = [("sync_every", "5"), ("eval_interval", "7")];
    request(run, &[&settings, more].concat())
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
    let at = |event: &Event| if let Event::Eval { iter, .. } = event { Some(*iter) } else { None };
    assert_eq!(all[0].iter().filter_map(at).collect::<Vec<_>>(), [0, 10, 15, 23]);
    assert!(evals[evals.len() - 1] < evals[1], "it learns: {evals:?}");
    let said = all[0].iter().any(
        |event| matches!(event, Event::Warning { text } if text.contains("a different algorithm")),
    );
    assert!(said);
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
    // Another rank has no state of its own.
    let more = resumed(3, "22");
    let warned = |event: &Event| matches!(event, Event::Warning { text } if text.contains("not every rank has its optimizer"));
    assert!(more[0].iter().any(warned));
    assert_eq!(losses(&more[2]), losses(&more[0]));
    // An end within a round averages too: all have what rank 0 has written.
    let last = Request { resume: true, ..apart(&run, &[("max_iters", "24")]) };
    assert_eq!(steps(&alone(&last)).len(), 2);
}
