//! Moves data and models: from any input, to any folder, to other programs.

use std::io::Write;

use super::*;

const STORY: &str = "The fox saw nine red baskets and went home. The owl was asleep by then.\n";

/// Prepares data for characters in `data/x`, below `folder`.
fn prepare(folder: &Path) {
    fs::write(folder.join("story.md"), STORY.repeat(40)).unwrap();
    ok(folder, &["prepare", "story.md", "-o", "data/x", "--tokenizer", "char"]);
}

#[test]
fn prepare_tells_what_it_read_and_what_comes_next() {
    let folder = temporary();
    let texts = folder.path().join("my texts");
    fs::create_dir(&texts).unwrap();
    fs::write(texts.join("story.md"), STORY.repeat(40)).unwrap();
    fs::write(texts.join("zero.bin"), "\0").unwrap();
    let output = run(folder.path(), &["prepare", "my texts", "-o", "my data"]);
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    for line in [
        "read 1 file, 1 document, 2,880 bytes of text",
        "tokenizer: char, because the text is short; --tokenizer chooses another",
        "my data: 2,592 training tokens, 288 validation tokens",
        "vocabulary: 23 (char), 1.00 bytes per token",
    ] {
        assert!(out.lines().any(|found| found == line), "no line {line:?} in {out}");
    }
    let zero = Path::new("my texts").join("zero.bin");
    let skipped = format!("skipped 1 file that is not UTF-8 text: {}", zero.display());
    assert!(said.contains(&skipped), "{said}");
    let quote = if cfg!(windows) { '"' } else { '\'' };
    let next = format!(" train --data={quote}my data{quote} --time=1h\n");
    assert!(said.contains("train on it with: ") && said.ends_with(&next), "{said}");
    // The default depends on the size alone, not on who gives it.
    ok(folder.path(), &["prepare", "my texts", "-o", "same", "--tokenizer=char"]);
    let [chosen, given] =
        ["my data", "same"].map(|data| fs::read(folder.path().join(data).join("meta.json")));
    assert_eq!(chosen.unwrap(), given.unwrap());
}

#[test]
fn text_in_another_encoding_is_prepared_by_choice() {
    let folder = temporary();
    fs::write(folder.path().join("utf8.txt"), "le caf\u{e9} na\u{ef}f. ".repeat(99)).unwrap();
    fs::write(folder.path().join("latin.txt"), b"le caf\xe9 na\xeff. ".repeat(99)).unwrap();
    let refused = run(folder.path(), &["prepare", "latin.txt", "-o", "data"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(7), "{said}");
    assert!(
        said.contains("latin.txt: not UTF-8 at byte 6") && said.contains("--encoding latin1"),
        "{said}"
    );
    ok(folder.path(), &["prepare", "latin.txt", "-o", "latin", "--encoding=latin1"]);
    ok(folder.path(), &["prepare", "utf8.txt", "-o", "utf8"]);
    for name in ["train.bin", "val.bin"] {
        let [a, b] = ["latin", "utf8"].map(|data| fs::read(folder.path().join(data).join(name)));
        assert_eq!(a.unwrap(), b.unwrap(), "{name}");
    }
}

/// Ctrl-C while it waits for input, and while it writes.
#[cfg(unix)]
#[test]
fn an_interrupted_prepare_leaves_nothing() {
    let folder = temporary();
    fs::write(folder.path().join("story.md"), STORY.repeat(1_500_000)).unwrap();
    let started = |input: &str| {
        let mut command = wgpt(folder.path());
        command.args(["prepare", input, "-o", "new/data", "--tokenizer=gpt2"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    for (input, signal, code) in [("-", "-INT", 130), ("story.md", "-TERM", 143)] {
        let mut child = started(input);
        let mut stdin = child.stdin.take().unwrap();
        let began = Instant::now();
        if input == "-" {
            // More than a pipe holds: it reads, and handles signals since before.
            stdin.write_all(&[b'x'; 1 << 20]).unwrap();
        } else {
            while !folder.path().join("new/data/train.bin.tmp").exists() {
                assert!(began.elapsed() < Duration::from_secs(120), "it writes nothing");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said, "stopped: nothing was written\n");
        assert!(!folder.path().join("new").exists());
    }
}

#[test]
fn stdin_is_prepared_like_a_file() {
    let folder = temporary();
    prepare(folder.path());
    let mut child = wgpt(folder.path())
        .args(["prepare", "-", "-o", "new/piped", "--tokenizer=char"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(STORY.repeat(40).as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    for name in ["train.bin", "val.bin"] {
        let [file, piped] =
            ["data/x", "new/piped"].map(|data| fs::read(folder.path().join(data).join(name)));
        assert_eq!(file.unwrap(), piped.unwrap(), "{name}");
    }
    let meta = fs::read_to_string(folder.path().join("new/piped/meta.json")).unwrap();
    assert!(meta.contains("\"stdin\""), "{meta}");
    // The copy of stdin is gone, so the folder has only the story, `data` and `new`.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// A file is opened more than once, so a pipe would be waited for, or have nothing left.
#[cfg(unix)]
#[test]
fn a_device_is_no_file_to_prepare() {
    let folder = temporary();
    let output = run(folder.path(), &["prepare", "/dev/null", "-o", "new"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(
        said.contains("/dev/null: this is a pipe or a device") && said.contains("`-`"),
        "{said}"
    );
}

#[test]
fn a_run_finds_its_data_from_any_folder() {
    let folder = temporary();
    let old = folder.path().join("old");
    fs::create_dir(&old).unwrap();
    prepare(&old);
    train(&old, "out/r", &["--data=data/x", "--max_iters=4"]);

    // From another folder, and after the run and its data were moved together.
    let resume = |run: &Path, iters: &str| {
        let run = run.display().to_string();
        let iters = format!("--max_iters={iters}");
        let args = ["train", "--json", "--resume", "--run", &run, &iters, "--device=cpu"];
        let seen = events(&ok(folder.path(), &args));
        assert_eq!(losses(&seen).len(), 2);
        ok(folder.path(), &["eval", &run, "--windows=1", "--device=cpu"]);
    };
    resume(&old.join("out/r"), "6");
    let new = folder.path().join("new");
    fs::rename(&old, &new).unwrap();
    let run = new.join("out/r");
    resume(&run, "8");

    // A run of an older version has relative paths.
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    let is_path = |line: &str| line.starts_with("data = ") || line.starts_with("out_dir = ");
    let others = config.lines().filter(|line| !is_path(line)).collect::<Vec<_>>().join("\n");
    let relative = format!("data = \"data/x\"\nout_dir = \"out/r\"\n{others}\n");
    fs::write(run.join("config.toml"), relative).unwrap();
    resume(&run, "10");

    fs::rename(new.join("data/x"), new.join("data/y")).unwrap();
    let run = run.display().to_string();
    let lost = self::run(folder.path(), &["train", "--resume", "--run", &run, "--device=cpu"]);
    assert_eq!(lost.status.code(), Some(7));
    let said = text(&lost.stderr);
    assert!(said.contains(&new.join("data").join("x").display().to_string()), "{said}");
    assert!(said.contains("--data"), "{said}");
}

/// An exported folder has its tokenizer, so `sample` needs nothing else.
#[test]
fn exported_models_have_their_tokenizer() {
    let folder = temporary();
    prepare(folder.path());
    ok(folder.path(), &["prepare", "story.md", "-o", "data/bytes", "--tokenizer=byte"]);
    ok(folder.path(), &["prepare", "story.md", "-o", "data/pairs", "--tokenizer=bpe:280"]);
    assert!(folder.path().join("data/pairs/tokenizer.json").exists());
    let file = "--tokenizer=data/pairs/tokenizer.json";
    ok(folder.path(), &["prepare", "story.md", "-o", "data/same", file]);
    for name in ["train.bin", "val.bin", "meta.json"] {
        let [trained, loaded] = ["pairs", "same"]
            .map(|data| fs::read(folder.path().join("data").join(data).join(name)));
        assert_eq!(trained.unwrap(), loaded.unwrap(), "{name}");
    }
    for data in ["x", "bytes", "pairs"] {
        train(folder.path(), data, &[&format!("--data=data/{data}"), "--max_iters=10"]);
        let exported = format!("{data}-hf");
        ok(folder.path(), &["export", data, "-o", &exported]);
        assert!(folder.path().join(&exported).join("tokenizer.json").exists());
        let sample = |model: &str| {
            let args = ["--start=The fox", "--temperature=0", "--max-new-tokens=30"];
            ok(folder.path(), &[&["sample", model, "--device=cpu"], &args[..]].concat())
        };
        assert_eq!(sample(&exported), sample(data));
        fs::write(folder.path().join(&exported).join("tokenizer.json"), "{").unwrap();
        let damaged = run(folder.path(), &["sample", &exported, "--device=cpu"]);
        assert_eq!(damaged.status.code(), Some(7));
        assert!(text(&damaged.stderr).contains("tokenizer.json"), "{}", text(&damaged.stderr));
    }
}

/// In two vocabularies of the same size, a token stands for different texts.
#[test]
fn data_of_other_tokens_is_refused_though_their_number_is_the_same() {
    let folder = temporary();
    prepare(folder.path());
    let other = "Zebras jump quickly over the lazy dwarves, by and by.\n".repeat(40);
    fs::write(folder.path().join("other.txt"), other).unwrap();
    ok(folder.path(), &["prepare", "story.md", "-o", "own", "--tokenizer=bpe:270"]);
    ok(folder.path(), &["prepare", "other.txt", "-o", "other", "--tokenizer=bpe:270"]);
    train(folder.path(), "r", &["--data=own", "--max_iters=10"]);
    let checkpoint = Path::new("r").join("checkpoints").join("00000010").display().to_string();
    let same = format!("--tokenizer={checkpoint}");
    ok(folder.path(), &["prepare", "other.txt", "-o", "same", &same]);

    let tune = |data: &str| {
        let data = format!("--data={data}");
        let more = ["--init_from=r", &data, "--max_iters=2"];
        run(folder.path(), &[&["train", "--run=s"], TINY, &more].concat())
    };
    for output in [
        tune("other"),
        run(folder.path(), &["eval", "r", "--data=other", "--device=cpu"]),
        run(folder.path(), &["sample", "r", "--data=other", "--device=cpu"]),
        run(folder.path(), &["export", "r", "--data=other", "-o", "hf"]),
        run(folder.path(), &["export", "r", "--data=other", "-o", "model.gguf"]),
    ] {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("use different tokenizers") && said.contains("hint: "), "{said}");
    }
    for refused in ["s", "hf", "model.gguf"] {
        assert!(!folder.path().join(refused).exists(), "{refused}");
    }

    let tuned = tune("same");
    assert!(tuned.status.success(), "{}", text(&tuned.stderr));
    ok(folder.path(), &["eval", "r", "--data=same", "--device=cpu"]);
    ok(folder.path(), &["sample", "r", "--data=same", "--max-new-tokens=5", "--device=cpu"]);
    ok(folder.path(), &["train", "--resume", "--run=r", "--max_iters=12", "--device=cpu"]);
}

/// A vocabulary of GPT-2's size is not GPT-2's if the model has a tokenizer, supported or not.
#[test]
fn a_model_with_an_unsupported_tokenizer_is_not_given_gpt2s() {
    let folder = temporary();
    prepare(folder.path());
    ok(folder.path(), &["prepare", "story.md", "-o", "pairs", "--tokenizer=bpe:270"]);
    train(folder.path(), "r", &["--data=pairs", "--vocab_size=50257", "--max_iters=1"]);
    ok(folder.path(), &["export", "r", "-o", "hf"]);
    let path = folder.path().join("hf/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["normalizer"] = serde_json::json!({ "type": "NFKC" });
    fs::write(&path, tokenizer.to_string()).unwrap();
    ok(folder.path(), &["import", "hf", "-o", "back"]);
    for model in ["hf", "back"] {
        for args in [
            &["sample", model][..],
            &["eval", model, "--hellaswag=questions.jsonl"],
            &["export", model, "-o", "model.gguf"],
        ] {
            let output = run(folder.path(), &[args, &["--device=cpu"]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{args:?}\n{said}");
            assert!(said.contains("warning: cannot use") && said.contains("NFKC"), "{said}");
            assert!(said.contains("the tokenizer of the model is unknown"), "{said}");
        }
        // Losses need no text.
        ok(folder.path(), &["eval", model, "--data=pairs", "--device=cpu"]);
    }
}

/// The logs of a run that was killed between checkpoints have each iteration once.
#[test]
fn scalar_logs_follow_a_resumed_run() {
    let folder = temporary();
    let log = ["--log=csv, tensorboard", "--keep_checkpoints=100"];
    let seen = train(folder.path(), "r", &log);
    let table =
        |run: &str| fs::read_to_string(folder.path().join(run).join("scalars.csv")).unwrap();
    let whole = table("r");
    let rows = named(&seen, "step").count() + named(&seen, "eval").count();
    assert_eq!(whole.lines().count(), 1 + rows);
    assert!(whole.lines().nth(1).unwrap().starts_with("0,,,,,,"), "{whole}");

    // This looks as if it was killed at 25.
    for checkpoint in ["00000030", "00000040"] {
        fs::remove_dir_all(folder.path().join("r/checkpoints").join(checkpoint)).unwrap();
    }
    ok(folder.path(), &["train", "--resume", "--run=r", "--device=cpu"]);
    let columns = |table: &str, count: usize| -> Vec<String> {
        let first =
            |line: &str| line.splitn(count + 1, ',').take(count).collect::<Vec<_>>().join(",");
        table.lines().map(first).collect()
    };
    // Without the speed, which differs.
    assert_eq!(columns(&table("r"), 4), columns(&whole, 4));
    let is_log = |name: &str| name.starts_with("events.out.tfevents.");
    let names = fs::read_dir(folder.path().join("r")).unwrap().flatten();
    assert_eq!(names.filter(|entry| is_log(&entry.file_name().to_string_lossy())).count(), 2);
}

/// A resumed run warns if its data has changed.
#[test]
fn a_resumed_run_says_that_its_data_has_changed() {
    let folder = temporary();
    let prepare = |story: &str| {
        fs::write(folder.path().join("story.txt"), story.repeat(200)).unwrap();
        ok(folder.path(), &["prepare", "story.txt", "-o", "data", "--tokenizer=char", "--force"]);
    };
    prepare("The fox looked at the moon.\n");
    train(folder.path(), "r", &["--data=data", "--max_iters=10"]);
    let warnings = |last: &str| {
        let args = ["train", "--json", "--resume", "--run=r", "--device=cpu", last];
        let seen = events(&ok(folder.path(), &args));
        let warns =
            |event: &&Value| event["text"].to_string().contains("the data has changed since");
        named(&seen, "warning").filter(warns).count()
    };
    assert_eq!(warnings("--max_iters=12"), 0);
    prepare("The moon looked at the fox.\n");
    assert_eq!(warnings("--max_iters=14"), 1);
}

/// A log that cannot be opened or written costs the log, not the run.
#[test]
fn a_scalar_log_that_cannot_be_written_is_a_warning() {
    let folder = temporary();
    fs::create_dir_all(folder.path().join("r/scalars.csv")).unwrap();
    // Else the folder would be another program's.
    fs::write(folder.path().join("r/lock"), "").unwrap();
    let seen = train(folder.path(), "r", &["--log=csv", "--max_iters=4"]);
    assert_eq!(losses(&seen).len(), 4);
    let warns = |event: &&Value| event["text"].to_string().contains("the log for csv ends here");
    assert_eq!(named(&seen, "warning").filter(warns).count(), 1, "{seen:?}");
}

/// As the window requests it before a model is trained further.
#[test]
fn texts_for_a_model_are_prepared_with_its_tokenizer() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=1", "--sample_tokens=0"]);
    let file = folder.path().join("foxes.txt");
    fs::write(&file, "a fox saw a fox\n".repeat(500)).unwrap();
    let vocabulary = |model: Option<&str>| {
        let request = serde_json::json!({
            "message": "request", "request": "prepare", "texts": { "files": [file] },
            "folder": folder.path().join("data"), "model": model,
        });
        let messages = ask_worker(wgpt(folder.path()), &request);
        let spec = messages.last().unwrap()["spec"].as_str().expect("it is prepared").to_string();
        let meta = fs::read_to_string(Path::new(&spec).join("meta.json")).unwrap();
        serde_json::from_str::<Value>(&meta).unwrap()["vocab_size"].as_u64().unwrap()
    };
    assert_eq!(vocabulary(None), 8);
    assert!(vocabulary(Some("r")) > 40, "the tokens of the stories");
}

/// A checkpoint of nanoGPT names its data, whose folder has the characters that the model knows.
#[test]
fn a_checkpoint_of_nanogpt_finds_the_tokenizer_of_its_data() {
    let folder = temporary();
    let path = |name: &str| folder.path().join(name);
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/nanogpt_ckpt.pt");
    std::fs::create_dir_all(path("nanogpt/out")).unwrap();
    std::fs::copy(reference, path("nanogpt/out/ckpt.pt")).unwrap();
    let import = |output: &str| {
        let output = run(folder.path(), &["import", "nanogpt/out/ckpt.pt", "-o", output]);
        assert!(output.status.success());
        text(&output.stderr)
    };
    let said = import("without");
    assert!(said.contains("has no tokenizer") && said.contains("--data"), "{said}");
    // As many characters as the model has rows.
    let characters: String = (0..64_u8).map(|at| char::from(b'0' + at)).chain(['\n']).collect();
    std::fs::write(path("text.txt"), characters.repeat(200)).unwrap();
    let prepare = ["prepare", "text.txt", "--tokenizer", "char", "-o"];
    ok(folder.path(), &[&prepare[..], &["nanogpt/data/tiny"]].concat());
    assert!(!import("with").contains("has no tokenizer"));
    assert!(path("with/tokenizer.json").exists() && !path("without/tokenizer.json").exists());
    ok(folder.path(), &[&prepare[..], &["elsewhere"]].concat());
    std::fs::remove_dir_all(path("nanogpt/data")).unwrap();
    ok(folder.path(), &["import", "nanogpt/out/ckpt.pt", "-o", "given", "--data=elsewhere"]);
    assert!(path("given/tokenizer.json").exists());
}
