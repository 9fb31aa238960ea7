//! Tests how conversations are prepared, trained on, evaluated and exported.

use safetensors::SafeTensors;

use super::*;

fn reference(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    folder.join(name).display().to_string()
}

/// Returns a conversation as a line of a file.
fn line(question: &str, answer: &str) -> String {
    let message = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
    let messages = [message("user", question), message("assistant", answer)];
    format!("{}\n", serde_json::json!({ "messages": messages }))
}

fn read_json(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn losses_equal_those_of_pytorch() {
    let folder = temporary();
    let chats = reference("chats.jsonl");
    let flags = ["-o", "data", "--tokenizer=byte", "--val-fraction=0.25"];
    let said = ok(folder.path(), &[&["prepare", &chats], &flags[..]].concat());
    assert!(said.contains("vocabulary: 261 "), "{said}");
    assert!(said.contains("conversations: 30 for training, 10 for validation"), "{said}");
    let model = reference("chats_tiny");
    let flags = ["--data=data", "--windows=1000", "--json", "--device=cpu"];
    let losses = ok(folder.path(), &[&["eval", &model], &flags[..]].concat());
    let losses: Value = serde_json::from_str(&losses).unwrap();
    let bytes = fs::read(reference("chats_scores.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let scores = file.tensor("losses").unwrap().data().to_vec();
    let scores = scores.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let [train, _, val, bits] = scores.collect::<Vec<_>>()[..] else { panic!("four numbers") };
    for (name, want) in [("train_loss", train), ("val_loss", val), ("bits_per_byte", bits)] {
        let (got, want) = (losses[name].as_f64().unwrap(), f64::from(want));
        assert!((got - want).abs() < 1e-5 * want, "{name} is {got}, PyTorch has {want}");
    }
}

#[test]
fn bad_lines_are_refused_or_counted() {
    let folder = temporary();
    let good = line("How much is 2 plus 2?", "4") + &line("And 3 plus 3?", "6");
    let bad = line("x", "y").replace("assistant", "tool");
    fs::write(folder.path().join("chats.jsonl"), format!("{good}{bad}oh\n{good}")).unwrap();
    let args = ["prepare", "chats.jsonl", "-o", "data", "--tokenizer=char"];
    let refused = run(folder.path(), &args);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(7), "{said}");
    let expected =
        "chats.jsonl:3: message 2: unknown role \"tool\", expected system, user or assistant";
    assert!(said.contains(expected) && said.contains("--skip-bad-lines"), "{said}");
    assert!(!folder.path().join("data").exists());
    let skipped = run(folder.path(), &[&args[..], &["--skip-bad-lines"]].concat());
    let said = text(&skipped.stderr);
    assert!(skipped.status.success(), "{said}");
    assert!(said.contains("skipped 2 bad lines, the first: chats.jsonl:3: message 2"), "{said}");
    let meta = read_json(folder.path().join("data/meta.json"));
    assert_eq!(meta["documents"], 4);
    assert_eq!(meta["tokenizer"]["kind"], "chat");

    fs::write(folder.path().join("a.txt"), "text").unwrap();
    let mixed = run(folder.path(), &["prepare", "chats.jsonl", "a.txt", "-o", "d"]);
    let said = text(&mixed.stderr);
    assert!(said.contains("chats.jsonl has conversations and a.txt has text"), "{said}");
}

/// Returns the loss of each update.
fn losses(events: &[Value]) -> Vec<f64> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps.map(|step| step["loss"].as_f64().unwrap()).collect()
}

/// Flags after [`TINY`] that train on the built-in conversations.
const CHATS: [&str; 3] = ["--data=builtin:chats", "--block_size=96", "--dropout=0"];

#[test]
fn the_loss_is_the_mean_of_the_global_batch_however_it_is_split() {
    let folder = temporary();
    let runs = [1, 2, 4].map(|micro_batch: u32| {
        let split = format!("--micro_batch={micro_batch}");
        let flags = [&CHATS[..], &["--max_iters=5", &split]].concat();
        losses(&train(folder.path(), &format!("m{micro_batch}"), &flags))
    });
    let [first, others @ ..] = &runs;
    assert!(first.len() >= 5, "{first:?}");
    // A new model predicts each of the 101 tokens alike, and the mean is over the tokens that count.
    assert!((first[0] - 101_f64.ln()).abs() < 0.2, "{first:?}");
    for losses in others {
        for (index, (a, b)) in first.iter().zip(losses).enumerate() {
            // The mean of the means of the micro-batches would be off by more in the first update.
            let tolerance = if index == 0 { 1e-5 } else { 2e-3 };
            assert!((a - b).abs() < tolerance * a, "{index}: {a} and {b}");
        }
    }
}

#[test]
fn a_run_on_conversations_resumes_and_is_exported_with_its_template() {
    let folder = temporary();
    let whole = train(folder.path(), "whole", &CHATS);
    let sample = whole.iter().rfind(|event| event["event"] == "sample").unwrap();
    assert!(!sample["text"].as_str().unwrap().contains("<|"), "{sample}");
    let warned = whole.iter().any(|event| {
        event["event"] == "warning" && event["text"].as_str().unwrap().contains("longer than")
    });
    assert!(warned, "conversations are longer than 96 tokens");
    train(folder.path(), "part", &[&CHATS[..], &["--max_iters=20"]].concat());
    let args = ["train", "--json", "--resume", "--run=part", "--max_iters=40", "--device=cpu"];
    let resumed = ok(folder.path(), &args);
    let resumed: Vec<Value> =
        resumed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let resumed = losses(&resumed);
    let whole = losses(&whole);
    assert_eq!(whole[whole.len() - resumed.len()..], resumed);

    ok(folder.path(), &["export", "whole", "-o", "hf"]);
    let hf = |name: &str| read_json(folder.path().join("hf").join(name));
    let settings = hf("tokenizer_config.json");
    assert!(settings["chat_template"].as_str().unwrap().contains("<|assistant|>"), "{settings}");
    let tokens = hf("tokenizer.json");
    let ids = tokens["added_tokens"].as_array().unwrap().iter().map(|token| &token["id"]);
    assert_eq!(ids.collect::<Vec<_>>(), [96, 97, 98, 99, 100]);
    let (config, generation) = (hf("config.json"), hf("generation_config.json"));
    for file in [config, generation] {
        assert_eq!((&file["bos_token_id"], &file["eos_token_id"]), (&96.into(), &100.into()));
    }
    // The folder has a model with the chat template.
    let flags = ["--data=builtin:chats", "--windows=4", "--json", "--device=cpu"];
    ok(folder.path(), &[&["eval", "hf"], &flags[..]].concat());
}

#[test]
fn a_model_of_text_learns_conversations() {
    let folder = temporary();
    let text = "how much is 2 plus 2? it is 4.\n".repeat(100);
    fs::write(folder.path().join("text.txt"), text).unwrap();
    ok(folder.path(), &["prepare", "text.txt", "-o", "text", "--tokenizer=byte"]);
    let base = ["--data=text", "--block_size=64", "--max_iters=10"];
    train(folder.path(), "base", &base);
    ok(folder.path(), &["export", "base", "-o", "model"]);
    let chats: String = (0..40).map(|n| line(&format!("how much is {n}?"), "it is 4.")).collect();
    fs::write(folder.path().join("chats.jsonl"), chats).unwrap();
    ok(folder.path(), &["prepare", "chats.jsonl", "-o", "chats", "--tokenizer=model"]);
    let tune = |data: &str, run: &str, model: &str| {
        let (data, run) = (format!("--data={data}"), format!("--run={run}"));
        let model = format!("--init_from={model}");
        let flags = ["--max_iters=4", "--eval_iters=1", "--sample_tokens=5", "--device=cpu"];
        let batch = ["--batch_size=4", "--gradient_accumulation_steps=1"];
        let args = [&["train", "--json", &data, &run, &model], &flags[..], &batch].concat();
        super::run(folder.path(), &args)
    };
    for (model, run) in [("base", "tuned"), ("model", "tuned-2"), ("tuned", "tuned-3")] {
        let tuned = tune("chats", run, model);
        assert!(tuned.status.success(), "{}", super::text(&tuned.stderr));
    }
    let config = fs::read_to_string(folder.path().join("tuned/config.toml")).unwrap();
    assert!(config.contains("vocab_size = 261"), "{config}");
    let resume = ["train", "--resume", "--run=tuned", "--max_iters=6", "--device=cpu"];
    ok(folder.path(), &resume);

    ok(folder.path(), &["prepare", "chats.jsonl", "-o", "other", "--tokenizer=char"]);
    let refused = tune("other", "wrong", "base");
    let said = super::text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
}

/// ChatML. It refuses a message that says so.
const CHAT_ML: &str = "{%- for message in messages %}
    {%- if message.content == 'refuse' %}
        {{- raise_exception('not this') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
";

/// Writes the tokenizer of a model folder with a chat template, and returns the template's end token.
fn write_chat_ml(folder: &Path, template: &str) -> u64 {
    let text = "the owl and the hen ate and the eel had the hat\n".repeat(200);
    fs::write(folder.join("text.txt"), text).unwrap();
    ok(folder, &["prepare", "text.txt", "-o", "text", "--tokenizer=bpe:270"]);
    let mut tokens = read_json(folder.join("text/tokenizer.json"));
    let added = tokens["added_tokens"].as_array_mut().unwrap();
    let end = added[0]["id"].as_u64().unwrap() + 2;
    for (content, id) in [("<|im_start|>", end - 1), ("<|im_end|>", end)] {
        added.push(serde_json::json!({ "id": id, "content": content, "special": true }));
    }
    let model = folder.join("model");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("tokenizer.json"), tokens.to_string()).unwrap();
    // The template of a file of its own is the newer one.
    let settings =
        r#"{"eos_token":{"content":"<|im_end|>"},"pad_token":null,"chat_template":"old"}"#;
    fs::write(model.join("tokenizer_config.json"), settings).unwrap();
    fs::write(model.join("chat_template.jinja"), template).unwrap();
    end
}

/// Answers of two lines, by `wgpt chat`.
fn answers(folder: &Path, model: &str) -> String {
    let mut command = wgpt(folder);
    command.args(["chat", model, "--max-new-tokens=12", "--device=cpu", "--temperature=0"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"the owl\nrefuse\nthe hen\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("refuses it: line 3: not this"), "{said}");
    text(&output.stdout)
}

#[test]
fn the_template_of_a_model_folder_is_used_from_data_to_export() {
    let folder = temporary();
    let end = write_chat_ml(folder.path(), CHAT_ML);
    let chats: String =
        (0..60).map(|n| line(&format!("the owl {n}?"), "the hen had it.")).collect();
    let file = folder.path().join("chats.jsonl");
    fs::write(&file, chats.clone() + &line("refuse", "the hen")).unwrap();
    let prepare = ["prepare", "chats.jsonl", "-o", "chats", "--tokenizer=model"];
    let refused = run(folder.path(), &prepare);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(7), "{said}");
    assert!(
        said.contains("chats.jsonl:61: the chat template refuses it: line 3: not this"),
        "{said}"
    );
    ok(folder.path(), &[&prepare[..], &["--skip-bad-lines"]].concat());
    let meta = read_json(folder.path().join("chats/meta.json"));
    assert_eq!(meta["tokenizer"]["template"]["text"], CHAT_ML);
    assert_eq!((&meta["documents"], &meta["vocab_size"]), (&60.into(), &(end + 1).into()));
    // A data folder has the tokenizer for other data.
    fs::write(&file, chats).unwrap();
    ok(folder.path(), &["prepare", "chats.jsonl", "-o", "again", "--tokenizer=chats"]);
    let again = read_json(folder.path().join("again/meta.json"));
    assert_eq!(again["train_blake3"], meta["train_blake3"]);

    let flags = [
        "--data=chats",
        "--block_size=48",
        "--dropout=0",
        "--max_iters=200",
        "--lr_decay_iters=200",
    ];
    let whole = train(folder.path(), "whole", &flags);
    let sample = named(&whole, "sample").last().unwrap();
    assert!(sample["prompt"].as_str().unwrap().starts_with("the owl "), "{sample}");
    assert!(!sample["text"].as_str().unwrap().contains("<|"), "{sample}");
    train(folder.path(), "part", &[&flags[..], &["--max_iters=160"]].concat());
    let args = ["train", "--json", "--resume", "--run=part", "--max_iters=200", "--device=cpu"];
    let (resumed, whole) = (losses(&events(&ok(folder.path(), &args))), losses(&whole));
    assert!(resumed.len() >= 15, "{resumed:?}");
    assert_eq!(whole[whole.len() - resumed.len()..], resumed);

    ok(folder.path(), &["export", "whole", "-o", "hf"]);
    let [own, exported] = ["whole", "hf"].map(|model| answers(folder.path(), model));
    assert_eq!(own, exported);
    assert_eq!(own, "the hen had it.\nthe hen had it.\n");
    let template = fs::read_to_string(folder.path().join("hf/chat_template.jinja")).unwrap();
    assert_eq!(template, CHAT_ML);
    let settings = read_json(folder.path().join("hf/tokenizer_config.json"));
    assert_eq!(settings["eos_token"], "<|im_end|>");
    assert_eq!(settings["bos_token"], Value::Null);
    let generation = read_json(folder.path().join("hf/generation_config.json"));
    assert_eq!(generation["eos_token_id"], end);
    let mut tokens = read_json(folder.path().join("hf/tokenizer.json"));
    assert_eq!(tokens["added_tokens"].as_array().unwrap().len(), 3);
    let eval = |data: &str| {
        let data = format!("--data={data}");
        ok(folder.path(), &["eval", "hf", &data, "--windows=4", "--device=cpu", "--json"])
    };
    let losses = eval("chats");
    let tune = ["train", "--init_from=hf", "--data=chats", "--run=tuned", "--max_iters=2"];
    ok(folder.path(), &[&tune[..], &["--batch_size=2", "--device=cpu"]].concat());

    // A token for padding that somebody has added has no row, and nothing becomes it.
    let pad = serde_json::json!({ "id": end + 1, "content": "<|pad|>", "special": true });
    tokens["added_tokens"].as_array_mut().unwrap().push(pad);
    fs::write(folder.path().join("hf/tokenizer.json"), tokens.to_string()).unwrap();
    ok(folder.path(), &["prepare", "chats.jsonl", "-o", "padded", "--tokenizer=hf"]);
    let meta = read_json(folder.path().join("padded/meta.json"));
    assert_eq!(meta["vocab_size"], end + 2);
    assert_eq!(eval("padded"), losses);
    let tune = ["train", "--init_from=hf", "--data=padded", "--run=padded-run", "--max_iters=2"];
    ok(folder.path(), &[&tune[..], &["--batch_size=2", "--device=cpu"]].concat());
    assert_eq!(answers(folder.path(), "hf"), own);

    ok(folder.path(), &["export", "whole", "-o", "model.gguf"]);
    let gguf = fs::read(folder.path().join("model.gguf")).unwrap();
    let has = |part: &str| gguf.windows(part.len()).any(|window| window == part.as_bytes());
    assert!(has("tokenizer.chat_template") && has("not this") && has("gpt-2"));

    ok(folder.path(), &["export", "whole", "--format=ollama", "-o", "owl"]);
    let modelfile = fs::read_to_string(folder.path().join("owl/Modelfile")).unwrap();
    let [before, template, after] = modelfile.split("\"\"\"").collect::<Vec<_>>()[..] else {
        panic!("{modelfile}");
    };
    assert!(before.ends_with("FROM ./owl.gguf\nTEMPLATE "), "{before}");
    let user = r#"{{- else if eq .Role "user" }}{{ "<|im_start|>user\n" }}{{ .Content }}{{ "<|im_end|>\n" }}"#;
    assert!(template.lines().any(|line| line == user), "{template}");
    assert_eq!(after, "\nPARAMETER stop \"<|im_end|>\"\nPARAMETER num_ctx 48\n");
    // Ollama's language cannot express every template.
    let adamant = CHAT_ML.replace("message.content == 'refuse'", "message.role == 'system'");
    fs::write(folder.path().join("hf/chat_template.jinja"), adamant).unwrap();
    let refused = run(folder.path(), &["export", "hf", "--format=ollama", "-o", "refused"]);
    let said = super::text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    let reason = "cannot be written for Ollama: it fails for a system message: line 3: not this";
    assert!(said.contains(reason) && said.contains("--format=gguf"), "{said}");
    assert!(!folder.path().join("refused").exists());
}

#[test]
fn a_template_that_hides_the_answers_is_refused_for_conversations_alone() {
    let folder = temporary();
    write_chat_ml(folder.path(), &CHAT_ML.replace("add_generation_prompt", "false"));
    fs::write(folder.path().join("chats.jsonl"), line("the owl?", "the hen").repeat(20)).unwrap();
    let refused = run(folder.path(), &["prepare", "chats.jsonl", "-o", "d", "--tokenizer=model"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(7), "{said}");
    let reason =
        "cannot use the chat template of model: it opens an answer without a special token";
    assert!(
        said.contains(reason) && said.contains("give the path of its tokenizer.json"),
        "{said}"
    );
    assert!(!folder.path().join("d").exists());
    ok(folder.path(), &["prepare", "text.txt", "-o", "t", "--tokenizer=model"]);
    let tokens = "--tokenizer=model/tokenizer.json";
    ok(folder.path(), &["prepare", "chats.jsonl", "-o", "d", tokens]);
    let meta = read_json(folder.path().join("d/meta.json"));
    assert_eq!(meta["tokenizer"]["template"], Value::Null);
}

/// nanoGPT's models have no tokenizer. The size of the vocabulary tells whether one fits the data: with the
/// tokens of conversations, or without them.
#[test]
fn a_model_without_a_tokenizer_fits_by_its_vocabulary() {
    let folder = temporary();
    for (vocab, fits) in [(96, true), (98, false), (101, true)] {
        let (run_name, model) = (format!("r{vocab}"), format!("m{vocab}"));
        train(folder.path(), &run_name, &[&format!("--vocab_size={vocab}"), "--max_iters=1"]);
        ok(folder.path(), &["export", &run_name, "-o", &model]);
        fs::remove_file(folder.path().join(&model).join("tokenizer.json")).unwrap();
        let (model, tuned) = (format!("--init_from={model}"), format!("--run=t{vocab}"));
        let args =
            ["train", "--data=builtin:chats", "--max_iters=1", "--device=cpu", &model, &tuned];
        let output = run(folder.path(), &args);
        let said = text(&output.stderr);
        assert_eq!(output.status.success(), fits, "{vocab}: {said}");
        assert!(fits || said.contains("different tokenizers"), "{said}");
    }
}
