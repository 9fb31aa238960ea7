//! Conversations and questions on several ranks.

use super::*;
use crate::disk;

/// Conversations, of which each window has another number of tokens that count.
fn chats(run: &Path, more: &[(&str, &str)]) -> TrainRequest {
    let settings = [("data", "builtin:chats"), ("block_size", "64"), ("max_iters", "20")];
    request(run, &[&settings, more].concat())
}

#[test]
fn conversations_give_the_losses_of_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str| folder.path().join(name);
    let expected = alone(&chats(&run("1"), &[]));
    assert_eq!((steps(&expected).len(), evals(&expected).len()), (20, 6));
    for (name, shares) in [("a", &[1.0, 1.0][..]), ("b", &[8.0, 1.0, 3.0])] {
        let request = TrainRequest { shares: shares.to_vec(), ..chats(&run(name), &[]) };
        let all = train_on(shares.len(), &request);
        assert_close(&all[0], &expected);
        assert_eq!(steps(&all[1]), steps(&all[0]));
        assert_eq!(scores(&all[1]), scores(&all[0]));
        for (found, expected) in scores(&all[0]).iter().zip(scores(&expected)) {
            assert!((found.0 / expected.0 - 1.0).abs() < 1e-5, "{found:?} for {expected:?}");
        }
    }
}

/// The bits per byte and the share of right answers of each evaluation.
fn scores(events: &[Event]) -> Vec<(f64, Option<f64>)> {
    let scores =
        each!(events, Event::Eval { bits_per_byte, hellaswag, .. } => (bits_per_byte, hellaswag));
    scores.map(|(bits, hellaswag)| (bits.unwrap(), *hellaswag)).collect()
}

#[test]
fn questions_are_divided_among_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("questions.jsonl");
    let animals = ["dog", "cat", "owl", "cow", "hen"];
    let question = |index: usize| {
        let [one, other] = [animals[index % 5], animals[(index + 1 + index / 5) % 5]];
        format!(
            r#"{{"ctx":"The {one} and","endings":["the {other}","the {one} too"],"label":{}}}"#,
            index % 2
        ) + "\n"
    };
    disk::write(&file, (0..23).map(question).collect::<String>()).unwrap();
    let asked = |name: &str, file: &str| {
        let more = [("hellaswag", file), ("max_iters", "10")];
        chats(&folder.path().join(name), &more)
    };
    let file = file.to_str().unwrap();
    let expected = scores(&alone(&asked("1", file)));
    assert_eq!(expected.len(), 2);
    assert!(expected.iter().all(|(_, share)| share.is_some()));
    for ranks in 2..=3 {
        let name = ranks.to_string();
        let all = on_threads(ranks, |group| {
            // The file is on the first machine alone.
            let file = if group.is_first() { file } else { "" };
            train(asked(&name, file), group, &[]).unwrap()
        });
        for events in &all {
            let shares = |scores: &[(f64, Option<f64>)]| scores.iter().map(|s| s.1).collect();
            let found: Vec<Option<f64>> = shares(&scores(events));
            assert_eq!(found, shares(&expected), "{ranks} ranks");
        }
    }
}
