//! Tests the errors for bad input.

use super::*;

/// Each row has the arguments, the exit code, and a part of the error.
#[test]
fn bad_input_gets_one_clear_error() {
    let folder = temporary();
    let path = folder.path();
    fs::write(path.join("story.txt"), "to be or not to be\n".repeat(100)).unwrap();
    ok(path, &["prepare", "story.txt", "-o", "good", "--tokenizer", "char"]);
    fs::create_dir_all(path.join("raw")).unwrap();
    let tokens = |ids: &[u16]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    fs::write(path.join("raw/train.bin"), tokens(&[7; 500])).unwrap();
    fs::write(path.join("raw/val.bin"), tokens(&[60_000; 500])).unwrap();
    copy(&path.join("raw"), &path.join("odd"));
    fs::write(path.join("odd/train.bin"), [1, 2, 3]).unwrap();
    fs::write(path.join("bad.toml"), "batch_size = \"many\"\n").unwrap();
    fs::write(path.join("bad.py"), "if True:\n").unwrap();
    train(path, "r", &["--max_iters=2"]);
    copy(&path.join("r/checkpoints/00000002"), &path.join("cut"));
    let weights = fs::read(path.join("cut/model.safetensors")).unwrap();
    fs::write(path.join("cut/model.safetensors"), &weights[..weights.len() - 9]).unwrap();
    copy(&path.join("cut"), &path.join("foreign"));
    fs::remove_file(path.join("foreign/state.json")).unwrap();
    fs::write(path.join("not.pt"), "no pickle").unwrap();
    fs::write(path.join("utf-16.toml"), b"\xff\xfes\0e\0e\0d\0").unwrap();
    fs::write(path.join("latin.py"), b"seed = 1\nout_dir = 'caf\xe9'\n").unwrap();
    fs::write(path.join("words.json"), "{\"model\":{\"type\":\"WordPiece\"}}").unwrap();
    fs::write(path.join("latin.txt"), b"caf\xe9").unwrap();
    copy(&path.join("good"), &path.join("garbled"));
    fs::write(path.join("garbled/meta.json"), b"\xff\xfe{}").unwrap();
    copy(&path.join("foreign"), &path.join("garbled_model"));
    fs::write(path.join("garbled_model/config.json"), b"\xff\xfe{}").unwrap();

    #[rustfmt::skip] // One case a line: this is read as a table.
    let cases: &[(&[&str], i32, &str)] = &[
        (&["train", "--batch_sise=8"], 2, "batch_size"),
        (&["train", "--data=good", "--batch_size=many"], 2, "batch_size"),
        (&["train", "--data=good", "--n_embd=30", "--n_head=4"], 2, "n_head"),
        (&["train", "--data=good", "--batch_size=0"], 2, "batch_size"),
        (&["train", "--data=builtin:chats", "--vocab_size=97"], 2, "101 in builtin:chats"),
        (&["train", "--data=good", "--block_size=99999999999"], 2, "block_size"),
        (&["train", "--data=good", "--learning_rate=nan"], 2, "learning_rate"),
        (&["train", "--data=good", "--block_size=100000"], 7, "100001"),
        (&["train"], 2, "data"),
        (&["train", "--data=nowhere"], 7, "wgpt prepare"),
        (&["train", "--data=raw", "--block_size=16"], 7, "60000"),
        (&["train", "--data=odd", "--block_size=1"], 7, "3"),
        (&["train", "bad.toml"], 2, "bad.toml:1"),
        (&["train", "bad.py"], 2, "bad.py:1"),
        (&["train", "nothing.toml"], 2, "nothing.toml"),
        (&["train", "--preset=gpt5"], 2, "gpt2"),
        (&["train", "--data=good", "--device=tpu"], 2, "tpu"),
        (&["train", "--data=good", "--device=vulkan:99"], 4, "vulkan:99"),
        (&["train", "--data=good", "--ops=fast"], 2, "reference"),
        (&["train", "--resume", "--run=nowhere"], 2, "no run"),
        (&["train", "--data=good", "--init_from=nowhere", "--block_size=16"], 7, "nowhere"),
        (&["train", "--data=builtin:chats", "--init_from=r"], 2, "different tokenizers"),
        (&["train", "--resume", "--run=r", "--n_layer=3", "--max_iters=3"], 2, "n_layer"),
        (&["sample", "nowhere"], 7, "nowhere"),
        (&["sample", "no\nerror: fake"], 7, r"no\nerror: fake"),
        (&["sample", "cut"], 7, "model.safetensors"),
        (&["sample", "foreign", "--data=builtin:stories"], 7, "cut short"),
        (&["sample", "not.pt"], 7, "not.pt"),
        (&["sample", "r", "--start="], 2, "empty prompt"),
        (&["sample", "r", "--start=\u{1f600}"], 2, "character"),
        (&["sample", "cut", "--data=good"], 7, "model.safetensors"),
        (&["sample", "r", "--data=good"], 2, "the model"),
        (&["eval", "r", "--data=nowhere"], 7, "nowhere"),
        (&["prepare", "nowhere.txt", "-o", "new"], 7, "nowhere.txt"),
        (&["prepare", "story.txt", "-o", "good"], 2, "--force"),
        (&["prepare", "story.txt", "-o", "new", "--val-fraction=2"], 2, "val_fraction"),
        (&["train", "--data=good", "--vram_budget=10"], 2, "10GiB"),
        (&["export", "nowhere", "-o", "new"], 7, "nowhere"),
        (&["train", "utf-16.toml"], 2, "utf-16.toml:1: not UTF-8"),
        (&["train", "latin.py"], 2, "latin.py:2: not UTF-8"),
        (&["train", "--data=garbled", "--block_size=16"], 7, "meta.json"),
        (&["sample", "garbled_model", "--data=good"], 7, "config.json"),
        (&["sample", "r", "--start=FILE:latin.txt"], 2, "latin.txt is not UTF-8"),
        (&["trian"], 2, "`train`"),
        (&["trian", "--preset=demo"], 2, "`train`"),
        (&["config", "shwo"], 2, "show"),
        (&["prepare", "story.txt", "-o", "new", "--tokenizer=bpe"], 2, "char"),
        (&["prepare", "story.txt", "-o", "new", "--tokenizer=bpe:7"], 2, "bpe:8192"),
        (&["prepare", "story.txt", "-o", "new", "--tokenizer=nowhere.json"], 7, "nowhere.json"),
        (&["prepare", "story.txt", "-o", "new", "--tokenizer=words.json"], 7, "BPE on bytes"),
        (&["prepare", "story.txt", "-o", "new", "--encoding=latn1"], 2, "did you mean latin1?"),
        (&["prepare", "latin.txt", "-o", "new"], 7, "--encoding latin1"),
    ];
    let before = listing(path);
    for (args, code, word) in cases {
        let device: &[&str] = if args.iter().any(|arg| arg.starts_with("--device")) {
            &[]
        } else {
            &["--device=cpu"]
        };
        let output = run(path, &[args, device].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}\n{said}");
        assert!(said.contains(word), "{args:?} does not say `{word}`:\n{said}");
        assert!(!said.contains("panicked"), "{args:?}\n{said}");
    }
    let after = listing(path);
    for (file, bytes) in &before {
        // A run records the attempt to resume it, and no other file changes.
        if !file.ends_with("events.jsonl") && !file.ends_with("log.txt") {
            assert_eq!(after.get(file), Some(bytes), "{} changed", file.display());
        }
    }
}

/// Each row has a change of a model folder, what is said about it, and a part of the advice.
#[test]
fn a_model_that_cannot_be_used_is_told_with_what_helps() {
    let folder = temporary();
    let path = folder.path();
    train(path, "r", &["--max_iters=2"]);
    ok(path, &["export", "r", "-o", "good"]);
    let weights = "model.safetensors";
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    type Change<'a> = &'a dyn Fn(&Path);
    let write = |name: &'static str, content: &'static str| {
        move |model: &Path| fs::write(model.join(name), content).unwrap()
    };
    let edit = |from: &'static str, to: &'static str| {
        move |model: &Path| {
            let file = model.join("config.json");
            let config = fs::read_to_string(&file).unwrap();
            assert!(config.contains(from), "{config}");
            fs::write(file, config.replace(from, to)).unwrap();
        }
    };
    let remove =
        |name: &'static str| move |model: &Path| fs::remove_file(model.join(name)).unwrap();
    #[rustfmt::skip] // One case a line: this is read as a table.
    let cases: &[(&str, Change, &str, &str)] = &[
        ("m", &remove("config.json"), "config.json: does not exist", "next to its weights"),
        ("m", &remove(weights), "no weights", "fetch its model.safetensors"),
        ("m", &remove("tokenizer.json"), "tokenizer of the model is unknown", "copy its tokenizer.json"),
        ("m", &write(weights, pointer), "pointer of Git LFS", "git lfs pull"),
        ("m", &write("tokenizer.json", pointer), "pointer of Git LFS", "git lfs pull"),
        ("m", &write("config.json", pointer), "pointer of Git LFS", "git lfs pull"),
        ("m", &write(weights, "<html>, not weights"), "not a safetensors file", "download or export"),
        ("m", &edit("\"n_layer\": 2", "\"n_layer\": 3"), "is missing", "belongs to another model"),
        ("m", &edit("\"n_positions\": 16", "\"n_positions\": 8"), "has shape", "belongs to another model"),
        ("m", &edit("\"gpt2\"", "\"mamba\""), "\"mamba\"", "give a GPT-2, a Llama or a Qwen;"),
        ("m/model.safetensors", &|_| (), "one file of a model", "give its folder: m"),
        ("m/config.json", &|_| (), "one file of a model", "give its folder: m"),
    ];
    for (given, change, what, hint) in cases {
        copy(&path.join("good"), &path.join("m"));
        change(&path.join("m"));
        let output = run(path, &["sample", given, "--device=cpu"]);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(what), "{given}: {what}\n{said}");
        let (_, advice) = said.split_once("hint: ").unwrap();
        assert!(advice.contains(hint), "{given}: {hint}\n{said}");
        fs::remove_dir_all(path.join("m")).unwrap();
    }
    // A chat needs a tokenizer before it needs conversations.
    copy(&path.join("good"), &path.join("m"));
    fs::remove_file(path.join("m/tokenizer.json")).unwrap();
    let said = text(&run(path, &["chat", "m", "--device=cpu"]).stderr);
    assert!(said.contains("tokenizer of the model is unknown\n  hint: copy its"), "{said}");
}

/// Runs the command of an error's advice.
#[test]
fn advice_that_is_followed_to_the_letter_works() {
    let folder = temporary();
    let path = folder.path();
    fs::create_dir(path.join("texts")).unwrap();
    fs::write(path.join("texts/a.txt"), "The fox runs over the hill. ".repeat(200)).unwrap();
    train(path, "r", &["--max_iters=2"]);
    let failed = |args: &[&str]| {
        let output = run(path, args);
        assert!(!output.status.success(), "{args:?}");
        text(&output.stderr)
    };
    let advised = |said: &str, part: &str| {
        let (_, advice) = said.split_once("hint: ").unwrap();
        assert!(advice.contains(part), "{said}");
    };
    let tiny = |data: &'static str, run: &'static str| {
        [&["train", run], TINY, &[data, "--max_iters=2"]].concat()
    };

    // A folder with texts is no data.
    let said = failed(&tiny("--data=texts", "--run=a"));
    advised(&said, "`wgpt prepare texts -o texts-tokens`, and give --data=texts-tokens");
    ok(path, &["prepare", "texts", "-o", "texts-tokens"]);
    ok(path, &tiny("--data=texts-tokens", "--run=a"));

    // Half of the data is lost.
    fs::remove_file(path.join("texts-tokens/val.bin")).unwrap();
    let said = failed(&tiny("--data=texts-tokens", "--run=b"));
    advised(&said, "-o texts-tokens --force`");
    ok(path, &["prepare", "texts/a.txt", "-o", "texts-tokens", "--force"]);
    ok(path, &tiny("--data=texts-tokens", "--run=b"));

    // A run has no tokenizer, its checkpoints have.
    let said = failed(&["prepare", "texts", "-o", "c", "--tokenizer=b"]);
    assert!(said.contains("no tokenizer.json in this folder"), "{said}");
    advised(&said, "checkpoints of a run");
    ok(path, &["prepare", "texts", "-o", "c", "--tokenizer=b/checkpoints/00000002"]);

    // A run that lost its configuration, or the state of its optimizer, still has its weights.
    copy(&path.join("r"), &path.join("lost"));
    fs::remove_file(path.join("lost/config.toml")).unwrap();
    let said = failed(&["train", "--resume", "--run=lost", "--device=cpu"]);
    advised(&said, "--init_from=lost and a new --run");
    ok(
        path,
        &[
            "train",
            "--run=d",
            "--init_from=lost",
            "--data=builtin:stories",
            "--max_iters=1",
            "--device=cpu",
        ],
    );
    copy(&path.join("r"), &path.join("half"));
    fs::remove_file(path.join("half/checkpoints/00000002/optimizer.safetensors")).unwrap();
    let said = failed(&["train", "--resume", "--run=half", "--max_iters=3", "--device=cpu"]);
    advised(&said, "with --init_from=half/checkpoints/00000002");
    let weights = "--init_from=half/checkpoints/00000002";
    ok(
        path,
        &["train", "--run=e", weights, "--data=builtin:stories", "--max_iters=1", "--device=cpu"],
    );

    // A run without a checkpoint begins again.
    fs::remove_dir_all(path.join("a/checkpoints")).unwrap();
    let said = failed(&["sample", "a", "--device=cpu"]);
    assert!(said.contains("a: this run has no checkpoint yet"), "{said}");
    advised(&said, "`wgpt train --resume --run=a`");
    ok(path, &["train", "--resume", "--run=a", "--device=cpu"]);
    ok(path, &["sample", "a", "--max-new-tokens=1", "--device=cpu"]);

    // Training cannot leave out lines that are no questions.
    fs::write(path.join("questions.jsonl"), "{\"text\": \"a\"}\n").unwrap();
    let said = failed(&tiny("--hellaswag=questions.jsonl", "--run=f"));
    advised(&said, "`wgpt eval` leaves such lines out");
    let said = failed(&["prepare", "texts", "-o", "questions.jsonl"]);
    advised(&said, "something of this name is already there");
}

/// nanoGPT's train_gpt2.py can be planned before its data is prepared.
#[test]
fn a_plan_needs_no_data() {
    let folder = temporary();
    let config = "wandb_log = True\nbatch_size = 12\ngradient_accumulation_steps = 5 * 8\n";
    fs::write(folder.path().join("train_gpt2.py"), config).unwrap();
    let output = run(folder.path(), &["plan", "--json", "train_gpt2.py", "--target=12GiB"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("data/openwebtext"), "{said}");
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&plan["fits"], &plan["micro_batch"]), (&true.into(), &12.into()));
}

/// A run that does not fit is refused before any file is written, with three changes that make it
/// fit.
#[test]
fn a_run_that_does_not_fit_is_refused_with_three_fixes() {
    let folder = temporary();
    let args = ["plan", "--preset=gpt2-xl", "--target", "12GiB"];
    let output = run(folder.path(), &args);
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    let (_, fixes) = error.split_once("it would fit with ").unwrap_or_else(|| panic!("{error}"));
    // Each is an option that works.
    let options: Vec<&str> = fixes
        .lines()
        .next()
        .unwrap()
        .split(", or ")
        .filter_map(|fix| fix.split(" (").next())
        .collect();
    assert_eq!(options.len(), 3, "{fixes}");
    for option in options {
        ok(folder.path(), &[&args[..], &option.split(' ').collect::<Vec<_>>()].concat());
    }
    let suggested = run(folder.path(), &[&args[..], &["--suggest"]].concat());
    let suggested = text(&suggested.stdout);
    let (_, lines) = suggested
        .split_once("these changes make it fit:\n")
        .unwrap_or_else(|| panic!("{suggested}"));
    assert_eq!(lines.lines().filter(|line| line.contains("--") && line.contains("iB")).count(), 3);
    let run_folder = folder.path().join("run");
    let refused =
        run(folder.path(), &[&["train", "--run=run", "--vram_budget=64KiB"], TINY].concat());
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(!run_folder.exists());
}

#[test]
fn a_closed_stdout_is_no_error() {
    let folder = temporary();
    for args in [&["completions", "bash"][..], &["config", "init", "--preset=gpt2"], &["devices"]] {
        let mut child = wgpt(folder.path())
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(text(&output.stderr), "", "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let folder = temporary();
    for args in [&["completions", "bash"][..], &["config", "init"], &["devices"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = wgpt(folder.path()).args(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(text(&output.stderr).contains("cannot write"), "{}", text(&output.stderr));
    }
}

/// Errors have colours like clap's: on request, and never with `NO_COLOR` or into a file.
#[test]
fn colours_of_errors_follow_the_flag_and_the_terminal() {
    let folder = temporary();
    let said = |args: &[&str], variable: Option<(&str, &str)>| {
        let mut command = wgpt(folder.path());
        command.args(args).envs(variable);
        text(&command.output().unwrap().stderr)
    };
    let plain = "error: nowhere: does not exist\n  hint: ";
    assert!(said(&["sample", "nowhere"], None).starts_with(plain));
    let always = ["sample", "nowhere", "--color=always"];
    for args in [&always[..], &["--color", "always", "sample", "nowhere"]] {
        let said = said(args, None);
        assert!(said.starts_with("\u{1b}[") && said.contains("error:\u{1b}[0m"), "{said:?}");
        assert!(said.contains("hint:\u{1b}[0m give"), "{said:?}");
    }
    assert!(said(&["sample", "nowhere"], Some(("WGPT_COLOR", "always"))).starts_with("\u{1b}["));
    assert!(said(&["sample", "nowhere"], Some(("NO_COLOR", "1"))).starts_with(plain));
    // clap's own errors too.
    assert!(said(&["--color=always", "sample", "--nonsense"], None).starts_with("\u{1b}["));
    assert!(said(&["sample", "--nonsense"], None).starts_with("error: "));
}

/// Without a display, the window's error names what to start with and no path of its sources.
#[cfg(all(target_os = "linux", feature = "gui"))]
#[test]
fn without_a_display_the_first_commands_are_named() {
    let folder = temporary();
    let mut command = wgpt(folder.path());
    for name in ["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: no display") && !said.contains(".rs"), "{said}");
    for first in ["wgpt train --preset=demo", "wgpt prepare ", "wgpt plan "] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(first)), "{said}");
    }
}
