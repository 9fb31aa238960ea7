//! `wgpt eval` against PyTorch: the scores of `tests/reference/choices.py`.

use safetensors::SafeTensors;

use super::*;

fn reference(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    folder.join(name).display().to_string()
}

/// Returns a tensor of PyTorch's scores.
fn scores(name: &str) -> Vec<f64> {
    let bytes = fs::read(reference("choices_scores.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let data = file.tensor(name).unwrap().data().to_vec();
    data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect()
}

/// Answers the questions and returns the losses of the endings, in the order of the file.
fn answer(folder: &Path, results: &str, device: &str) -> Vec<f64> {
    let (model, questions) = (reference("choices_tiny"), reference("choices.jsonl"));
    let results = format!("--results={results}");
    let args = ["eval", &model, "--hellaswag", &questions, &results, "--json", device];
    let output = run(folder, &args);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("67 questions are longer than the model's 160 positions"), "{said}");
    let score: Value = serde_json::from_slice(&output.stdout).unwrap();
    // PyTorch answers 44 of 200.
    let score = &score["hellaswag"];
    assert_eq!((&score["questions"], &score["accuracy"]), (&200.into(), &0.22.into()), "{score}");
    let text = fs::read_to_string(folder.join(&results["--results=".len()..])).unwrap();
    let read = |line| serde_json::from_str::<Value>(line).unwrap();
    let mut records: Vec<Value> = text.lines().skip(1).map(read).collect();
    assert_eq!(records.len(), 200);
    records.sort_by_key(|record| record["line"].as_u64());
    let losses = records.iter().flat_map(|record| record["losses"].as_array().unwrap());
    losses.map(|loss| loss.as_f64().unwrap()).collect()
}

fn assert_close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() < 1e-4 * want, "score {index} is {got}, PyTorch has {want}");
    }
}

#[test]
fn answers_equal_those_of_pytorch_also_after_an_interruption() {
    let folder = temporary();
    let losses = answer(folder.path(), "a.jsonl", "--device=cpu");
    assert_close(&losses, &scores("losses"));
    // This looks as if it was killed while it wrote the 90th line.
    let path = folder.path().join("a.jsonl");
    let written = fs::read_to_string(&path).unwrap();
    let cut: usize = written.lines().take(90).map(|line| line.len() + 1).sum();
    fs::write(&path, &written[..cut - 7]).unwrap();
    assert_close(&answer(folder.path(), "a.jsonl", "--device=cpu"), &losses);
    // Nothing is left to do.
    let complete = fs::read_to_string(&path).unwrap();
    assert_eq!(answer(folder.path(), "a.jsonl", "--device=cpu").len(), 800);
    assert_eq!(fs::read_to_string(&path).unwrap(), complete);
}

#[cfg(feature = "wgpu")]
#[test]
fn a_vulkan_adapter_gives_the_same_answers() {
    let folder = temporary();
    let device = vulkan(folder.path());
    assert_close(&answer(folder.path(), "b.jsonl", &device), &scores("losses"));
}

#[test]
fn a_run_answers_questions_at_its_evaluations() {
    let folder = temporary();
    fs::copy(reference("choices.jsonl"), folder.path().join("choices.jsonl")).unwrap();
    fs::copy(reference("choices.jsonl"), folder.path().join("choices.txt")).unwrap();
    ok(folder.path(), &["prepare", "choices.txt", "-o", "data", "--tokenizer=byte"]);
    let asked = ["--data=data", "--hellaswag=choices.jsonl", "--hellaswag_questions=20"];
    let seen = train(folder.path(), "r", &[&asked[..], &["--max_iters=10"]].concat());
    let shares: Vec<f64> =
        named(&seen, "eval").map(|eval| eval["hellaswag"].as_f64().unwrap()).collect();
    assert_eq!(shares.len(), 2, "at 0 and 10");
    // Of 20 questions.
    let whole = |share: &f64| (share * 20.0 - (share * 20.0).round()).abs() < 1e-9;
    assert!(shares.iter().all(|share| whole(share) && *share <= 1.0), "{shares:?}");
    let log = fs::read_to_string(folder.path().join("r/log.txt")).unwrap();
    assert!(log.contains(", HellaSwag "), "{log}");
    // The path is absolute in the run, so that the run can be resumed from elsewhere.
    let config = fs::read_to_string(folder.path().join("r/config.toml")).unwrap();
    let path = folder.path().join("choices.jsonl").display().to_string();
    let table: toml::Table = toml::from_str(&config).unwrap();
    assert_eq!(table["hellaswag"].as_str(), Some(path.as_str()), "{config}");

    let bad = [&["train", "--run=s"], TINY, &["--data=data", "--hellaswag=choices.txt"]].concat();
    fs::write(folder.path().join("choices.txt"), "{}\n").unwrap();
    let output = run(folder.path(), &bad);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("choices.txt:1"), "{}", text(&output.stderr));
}

#[test]
fn bits_per_byte_equal_those_of_pytorch() {
    let folder = temporary();
    fs::copy(reference("choices.jsonl"), folder.path().join("choices.txt")).unwrap();
    ok(folder.path(), &["prepare", "choices.txt", "-o", "data", "--tokenizer=byte"]);
    let args = ["eval", &reference("choices_tiny"), "--data=data", "--device=cpu"];
    let said = ok(folder.path(), &[&args[..], &["--json"]].concat());
    let eval: Value = serde_json::from_str(&said).unwrap();
    let got = ["val_loss", "bits_per_byte"].map(|key| eval[key].as_f64().unwrap());
    assert_close(&got, &scores("loss_and_bits_per_byte"));
    assert!(ok(folder.path(), &args).contains(" bits per byte\n"));
}

#[test]
fn bad_questions_get_one_clear_error() {
    let folder = temporary();
    let questions = fs::read_to_string(reference("choices.jsonl")).unwrap();
    let few: Vec<&str> = questions.lines().take(6).collect();
    let unlabelled = few[2].replace("\"label\"", "\"lable\"");
    let cut = &few[5][..40];
    let lines = [few[0], few[1], unlabelled.as_str(), few[3], few[4], cut];
    fs::write(folder.path().join("bad.jsonl"), lines.join("\n")).unwrap();
    fs::write(folder.path().join("none.jsonl"), "\n").unwrap();
    fs::write(folder.path().join("notes.txt"), "mine\n").unwrap();
    let (tiny, other) = (reference("choices_tiny"), reference("hf_tiny"));
    for (model, file, more, code, word) in [
        (&tiny, "bad.jsonl", "", 7, "bad.jsonl:3: no `label`"),
        (&tiny, "none.jsonl", "", 7, "no questions"),
        (&tiny, "nowhere.jsonl", "", 7, "nowhere.jsonl"),
        (&tiny, "bad.jsonl", "--results=notes.txt", 7, "bad.jsonl:3"),
        (&other, "bad.jsonl", "", 2, "tokenizer"),
    ] {
        let args = ["eval", model, "--hellaswag", file, "--device=cpu", more];
        let args = if more.is_empty() { &args[..5] } else { &args[..] };
        let output = run(folder.path(), args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{said}");
        assert!(said.contains(word) && !said.contains("panicked"), "{args:?}\n{said}");
    }
    let args = ["eval", &tiny, "--hellaswag=bad.jsonl", "--skip-bad-lines", "--device=cpu"];
    let output = run(folder.path(), &args);
    let said = text(&output.stderr);
    assert!(said.contains("skipped bad.jsonl:3") && said.contains("cut short"), "{said}");
    assert!(text(&output.stdout).contains(" of 4 right"), "{}", text(&output.stdout));
    let refused = run(folder.path(), &[&args[..], &["--results=notes.txt"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(fs::read_to_string(folder.path().join("notes.txt")).unwrap(), "mine\n");
    // A pipe would be waited for.
    #[cfg(unix)]
    {
        let refused = run(folder.path(), &[&args[..], &["--results=/dev/null"]].concat());
        assert!(text(&refused.stderr).contains("it is not a regular file"));
    }
}
