//! Runs of Llama and Qwen3.

use super::*;

/// A shape with grouped heads that are no quotient of the width.
fn shaped(arch: &'static str, optimizer: &'static str) -> [(&'static str, &'static str); 8] {
    [
        ("arch", arch),
        ("n_kv_head", "1"),
        ("head_size", "10"),
        ("ffn_size", "24"),
        ("tie_embeddings", if optimizer == "muon" { "false" } else { "true" }),
        ("optimizer", optimizer),
        ("max_iters", "12"),
        ("lr_decay_iters", "12"),
    ]
}

#[test]
fn an_interrupted_run_has_the_bits_of_an_undisturbed_one() {
    for (arch, optimizer) in [("llama", "muon"), ("qwen3", "adamw")] {
        let settings = shaped(arch, optimizer);
        let (_folder, whole) = new_run();
        let expected = steps(&alone(&request(&whole, &settings)));
        let (_folder, run) = new_run();
        let interrupted = request(&run, &settings);
        let mut found = steps(&stopped(interrupted.clone(), Group::alone(), 5));
        assert_eq!(found.len(), 5);
        found.extend(steps(&alone(&TrainRequest { resume: true, ..interrupted })));
        assert_eq!(found, expected, "{arch}");
        assert!(saved(&run, 12) == saved(&whole, 12), "{arch}: weights or states differ");
    }
}

#[test]
fn a_sharded_optimizer_changes_no_bit() {
    for (arch, optimizer) in [("llama", "adamw"), ("qwen3", "muon")] {
        let [whole, sharded] = ["false", "true"].map(|shards| {
            let (_folder, run) = new_run();
            let settings = [&shaped(arch, optimizer)[..], &[("shard_optimizer", shards)]].concat();
            let events = train_on(2, &request(&run, &settings));
            (steps(&events[0]), saved(&run, 12))
        });
        assert!(whole == sharded, "{arch}");
    }
}

/// A run that begins with the checkpoint of another begins with its weights, and its shape.
#[test]
fn a_run_begins_with_the_weights_of_another() {
    let (_folder, first) = new_run();
    let settings = shaped("qwen3", "muon");
    alone(&request(&first, &settings));
    let (_folder, run) = new_run();
    let init_from = first.display().to_string();
    let more = [("init_from", init_from.as_str()), ("eval_only", "true"), ("block_size", "12")];
    let begun = alone(&request(&run, &[&settings[..], &more].concat()));
    let (_folder, fresh) = new_run();
    let untrained = alone(&request(&fresh, &[&settings[..], &more[1..]].concat()));
    assert!(evals(&begun)[1] < evals(&untrained)[1], "it has learned nothing before");
    let error = train(request(&run, &[more[0]]), Group::alone(), &[]).unwrap_err().to_string();
    assert!(error.contains("arch"), "{error}");
}
