//! Adapters: trained on a model that stays as it is, resumed, sampled, exported.

use super::*;

/// Trains a base, and an adapter of it. Returns the adapter's events.
fn adapted(folder: &Path, more: &[&str]) -> Vec<Value> {
    train(folder, "base", &["--max_iters=10", "--dropout=0", "--sample_tokens=0"]);
    train(folder, "tuned", &[&["--init_from=base", "--lora_rank=2"], more].concat())
}

/// Returns the lowest validation loss of a run that started from a model.
fn best(events: &[Value]) -> f64 {
    let losses = named(events, "eval").map(|event| event["val_loss"].as_f64().unwrap());
    losses.fold(f64::INFINITY, f64::min)
}

fn state(folder: &Path, iteration: u64) -> Value {
    let file = folder.join(format!("tuned/checkpoints/{iteration:08}/state.json"));
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn an_adapter_learns_and_its_checkpoint_is_small() {
    let folder = temporary();
    let base = || fs::read(folder.path().join("base/checkpoints/00000010/model.safetensors"));
    let events = adapted(folder.path(), &[]);
    let evals: Vec<f64> =
        named(&events, "eval").map(|event| event["val_loss"].as_f64().unwrap()).collect();
    assert!(best(&events) < evals[0] - 0.01, "{evals:?}");
    let before = base().unwrap();
    let checkpoint = folder.path().join("tuned/checkpoints/00000040");
    let size = |name: &str| fs::metadata(checkpoint.join(name)).map(|file| file.len());
    // Two blocks of four matrices with 16 + 48, 16 + 16, 16 + 64 and 64 + 16 rows and columns.
    let weights = 4 * 2 * 2 * (64 + 32 + 80 + 80);
    let [adapter, states] =
        ["adapter_model.safetensors", "optimizer.safetensors"].map(|name| size(name).unwrap());
    assert!((weights..weights + 4096).contains(&adapter), "{adapter}");
    assert!((2 * weights..2 * weights + 8192).contains(&states), "{states}");
    assert!(size("model.safetensors").is_err());
    assert_eq!(base().unwrap(), before);
    let recorded = &state(folder.path(), 40)["base"];
    assert!(recorded["name"].as_str().unwrap().ends_with("00000010"), "{recorded}");

    // Its samples and losses are those of the merged model.
    let merged = ok(folder.path(), &["export", "tuned", "-o", "merged"]);
    assert!(merged.contains("merged"), "{merged}");
    let greedy = |model: &str| {
        ok(folder.path(), &["sample", model, "--temperature=0", "--max-new-tokens=20", "--start=a"])
    };
    assert_eq!(greedy("tuned"), greedy("merged"));
    let loss = |model: &str| {
        let data = "--data=builtin:stories";
        let eval: Value =
            serde_json::from_str(&ok(folder.path(), &["eval", model, data, "--json"])).unwrap();
        eval["val_loss"].as_f64().unwrap()
    };
    assert_eq!(loss("tuned"), loss("merged"));
    assert!(loss("base") > loss("tuned"));
}

/// A run that is stopped and resumed has the losses of an undisturbed one, with accumulation and checkpointing.
#[test]
fn a_resumed_adapter_changes_no_bit() {
    let folder = temporary();
    let settings = ["--micro_batch=2", "--grad_checkpoint=true"];
    let want = losses(&adapted(folder.path(), &settings));
    let first = ["--init_from=base", "--lora_rank=2", "--max_iters=20"];
    let mut got = losses(&train(folder.path(), "twice", &[&settings[..], &first].concat()));
    let resume = ["train", "--json", "--resume", "--run=twice", "--max_iters=40", "--device=cpu"];
    got.extend(losses(&events(&ok(folder.path(), &resume))));
    assert_eq!(got, want);
    // The settings of an adapter do not change on the way.
    for (more, word) in [("--lora_rank=4", "lora_rank"), ("--lora_alpha=1", "lora_alpha")] {
        let output = run(folder.path(), &[&resume[..4], &[more, "--device=cpu"]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    }
}

/// An exported adapter is continued as PEFT's are, by its folder alone.
#[test]
fn an_exported_adapter_continues() {
    let folder = temporary();
    let tuned = adapted(folder.path(), &[]);
    ok(folder.path(), &["export", "tuned", "--format=peft", "-o", "peft"]);
    let config = fs::read_to_string(folder.path().join("peft/adapter_config.json")).unwrap();
    assert!(config.contains("\"fan_in_fan_out\": true"), "{config}");
    let more = ["--init_from=peft", "--max_iters=2", "--lr_decay_iters=4"];
    let events = train(folder.path(), "more", &more);
    let config = &named(&events, "start").next().unwrap()["config"];
    assert_eq!((&config["lora_rank"], &config["lora_alpha"]), (&2.into(), &4.0.into()));
    let before = named(&events, "eval").next().unwrap()["val_loss"].as_f64().unwrap();
    assert_eq!(before, best(&tuned));
    // With all weights trained, it starts from the merged model.
    let all = train(folder.path(), "all", &[&more[..], &["--lora_rank=0"]].concat());
    let merged = named(&all, "eval").next().unwrap()["val_loss"].as_f64().unwrap();
    assert!((merged - before).abs() < 1e-5, "{merged} {before}");
    assert!(folder.path().join("all/checkpoints/00000002/model.safetensors").exists());
}

#[test]
fn bad_adapters_are_refused_and_write_nothing() {
    let folder = temporary();
    adapted(folder.path(), &["--max_iters=4", "--eval_interval=4"]);
    ok(folder.path(), &["export", "tuned", "--format=peft", "-o", "peft"]);
    let refused = |args: &[&str], exit: i32, word: &str| {
        let args = [&["train", "--run=new"], TINY, args].concat();
        let output = run(folder.path(), &args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{args:?} {said}");
        assert!(said.contains(word) && said.contains("hint:"), "{word}: {said}");
        assert!(!folder.path().join("new").exists(), "{args:?}");
    };
    let from_base = "--init_from=base";
    refused(&["--lora_rank=2"], 2, "needs a model");
    refused(&[from_base, "--lora_rank=17"], 2, "lora_rank");
    refused(&[from_base, "--lora_rank=2", "--lora_targets=q_proj"], 2, "no matrix of this name");
    refused(&[from_base, "--lora_rank=2", "--optimizer=muon"], 2, "optimizer");
    refused(&[from_base, "--lora_rank=2", "--shard_optimizer=true"], 2, "shard_optimizer");
    refused(&["--init_from=peft", "--lora_rank=4"], 2, "other settings");

    // Another base, by its sizes and by its weights.
    let others = ["--max_iters=1", "--lr_decay_iters=4", "--eval_only=false"];
    train(folder.path(), "wide", &[&others[..], &["--n_embd=32"]].concat());
    let config = folder.path().join("peft/adapter_config.json");
    let said = fs::read_to_string(&config).unwrap();
    let wide = folder.path().join("wide/checkpoints/00000001");
    let base = folder.path().join("base/checkpoints/00000010");
    let [base_text, wide_text] = [&base, &wide].map(|path| path.display().to_string());
    fs::write(&config, said.replace(&base_text, &wide_text)).unwrap();
    refused(&["--init_from=peft"], 7, "base_model_name_or_path");
    // An adapter that names itself.
    fs::write(&config, said.replace(&base_text, "peft")).unwrap();
    refused(&["--init_from=peft"], 7, "this is an adapter, too");
    fs::write(&config, said.replace(&base_text, "gone/away")).unwrap();
    refused(&["--init_from=peft"], 7, "its model cannot be opened");

    let file = base.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let resume = ["train", "--resume", "--run=tuned", "--max_iters=8", "--device=cpu"];
    for args in [&resume[..], &["sample", "tuned"]] {
        let output = run(folder.path(), args);
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("damaged") || text(&output.stderr).contains("changed")
        );
    }
}
