//! Tests exported models with their model cards, comparisons, reports, and benchmark rows of devices.

use super::*;

/// Trains a run on bytes in `name`, below `folder`.
fn train_on_bytes(folder: &Path, name: &str, more: &[&str]) {
    if !folder.join("data").exists() {
        let story = "The fox looked at the moon. The moon looked back.\n".repeat(200);
        fs::write(folder.join("story.txt"), story).unwrap();
        ok(folder, &["prepare", "story.txt", "-o", "data", "--tokenizer=byte"]);
    }
    train(folder, name, &[&["--data=data", "--max_iters=20"], more].concat());
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// tests/reference/check_gguf.py reads such files with llama.cpp's package.
#[test]
fn a_model_is_exported_as_gguf() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, "r", &["--n_embd=32"]);
    let sizes = ["f32", "f16", "q8_0"].map(|kind| {
        let (file, kind) = (format!("models/{kind}.gguf"), format!("--type={kind}"));
        ok(path, &["export", "r", "-o", &file, &kind]);
        let bytes = fs::read(path.join(&file)).unwrap();
        assert_eq!(bytes[..8], *b"GGUF\x03\0\0\0");
        bytes.len()
    });
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2], "{sizes:?}");
    assert_eq!(fs::read_dir(path.join("models")).unwrap().count(), 3);
    // A file is a model like a folder.
    ok(path, &["export", "r", "-o", "whole"]);
    ok(path, &["export", "models/f32.gguf", "-o", "back"]);
    let weights = |folder: &str| fs::read(path.join(folder).join("model.safetensors")).unwrap();
    assert!(weights("whole") == weights("back"));
    let sampled = |model: &str| {
        ok(path, &["sample", model, "--start=The", "--seed=3", "--max-new-tokens=20"])
    };
    assert_eq!(sampled("whole"), sampled("models/f32.gguf"));
    let from =
        ["train", "--init_from=models/q8_0.gguf", "--data=data", "--max_iters=2", "--run=tuned"];
    let said =
        ok(path, &[&from[..], &["--device=cpu", "--lora_rank=2", "--sample_tokens=0"]].concat());
    assert!(path.join("tuned/checkpoints/00000002/adapter_model.safetensors").exists(), "{said}");
    // One of characters is no tokenizer of byte pairs.
    ok(path, &["prepare", "story.txt", "-o", "letters", "--tokenizer=char"]);
    train(path, "c", &["--data=letters", "--max_iters=1", "--sample_tokens=0"]);
    ok(path, &["export", "c", "-o", "c.gguf"]);
    let said = text(&run(path, &["eval", "c.gguf", "--data=letters", "--device=cpu"]).stderr);
    assert!(said.contains("cannot use the tokenizer of c.gguf: it has no token for"), "{said}");
    train_on_bytes(path, "erf", &["--gelu=erf"]);
    for (model, is_told) in [("r", false), ("erf", true)] {
        let exported = run(path, &["export", model, "-o", &format!("{model}.gguf")]);
        assert!(exported.status.success());
        let said = text(&exported.stderr);
        assert_eq!(said.contains("llama.cpp computes GELU in its tanh form"), is_told, "{said}");
    }
    let again = run(path, &["export", "r", "-o", "models/f32.gguf"]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("exists already"));
    // This is a model without a tokenizer, and a folder with the name of a file.
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/hf_tiny");
    let tiny = tiny.display().to_string();
    let unknown = run(path, &["export", &tiny, "-o", "tiny.gguf"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("tokenizer"), "{}", text(&unknown.stderr));
    ok(path, &["export", &tiny, "-o", "folder.gguf", "--format=hf"]);
    assert!(path.join("folder.gguf/model.safetensors").exists());
}

#[test]
fn a_model_is_exported_for_ollama() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, "r", &["--n_embd=32"]);
    let export = ["export", "r", "--format=ollama", "-o", "my models/my fox"];
    let said = ok(path, &export);
    let quote = if cfg!(windows) { '"' } else { '\'' };
    let out = Path::new("my models/my fox");
    let file = |name: &str| format!("{quote}{}{quote}", out.join(name).display());
    for next in [
        format!("ollama create my-fox -f {}\n", file("Modelfile")),
        "ollama run my-fox\n".to_owned(),
        format!("lms import {}\n", file("my-fox.gguf")),
        format!("llama-server -m {}\n", file("my-fox.gguf")),
    ] {
        assert!(said.contains(&next), "no {next:?} in\n{said}");
    }
    let modelfile = "# In this folder: ollama create my-fox -f Modelfile\nFROM ./my-fox.gguf\n\
                     TEMPLATE \"\"\"{{ .Prompt }}\"\"\"\nPARAMETER num_ctx 16\n";
    assert_eq!(read(&path.join(out), "Modelfile"), modelfile);
    let gguf = fs::read(path.join(out).join("my-fox.gguf")).unwrap();
    assert_eq!(gguf[..8], *b"GGUF\x03\0\0\0");
    assert_eq!(fs::read_dir(path.join(out)).unwrap().count(), 2);

    // Nothing is replaced.
    let again = run(path, &[&export[..], &["--type=f32"]].concat());
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("already has a file"), "{}", text(&again.stderr));
    assert!(again.stdout.is_empty());
    assert_eq!(fs::read(path.join(out).join("my-fox.gguf")).unwrap(), gguf);
    fs::create_dir(path.join("other")).unwrap();
    fs::write(path.join("other/Modelfile"), "mine").unwrap();
    let refused = run(path, &["export", "r", "--format=ollama", "-o", "other"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(read(&path.join("other"), "Modelfile"), "mine");
    assert_eq!(fs::read_dir(path.join("other")).unwrap().count(), 1);
    // The type is that of a GGUF file.
    ok(path, &["export", "r", "--format=ollama", "-o", "wide", "--type=f32"]);
    assert!(fs::metadata(path.join("wide/wide.gguf")).unwrap().len() > gguf.len() as u64);
}

#[test]
fn a_model_is_exported_with_the_page() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, "r", &[]);
    let refused = run(path, &["export", "r", "-o", "site", "--format=page"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("-page.zip"), "{}", text(&refused.stderr));
    fs::create_dir_all(path.join("web/dist")).unwrap();
    fs::write(path.join("web/dist/index.html"), "<head>\n</head>\n<body>\n").unwrap();
    fs::write(path.join("web/dist/page-1.js"), "js").unwrap();
    ok(path, &["export", "r", "-o", "my site", "--format=page"]);
    let index = read(path, "my site/index.html");
    assert!(
        index.starts_with("<head>\n<meta name=\"wgpt-model\" content=\"my-site.zip\""),
        "{index}"
    );
    assert_eq!(read(path, "my site/page-1.js"), "js");
    // The program reads what the page imports.
    let sampled = |model: &str| {
        let args =
            ["sample", model, "--start=The", "--max-new-tokens=9", "--seed=1", "--device=cpu"];
        ok(path, &args)
    };
    assert_eq!(sampled("my site/my-site.zip"), sampled("r"));
    let again = run(path, &["export", "r", "-o", "my site", "--format=page"]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
}

/// The window has a worker export into a folder that a person has chosen.
#[test]
fn a_worker_exports_for_the_window() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, "r", &["--n_embd=32"]);
    // A folder there is not of the page.
    fs::create_dir_all(path.join("web/dist/folder")).unwrap();
    fs::write(path.join("web/dist/index.html"), "<head>\n</head>\n<body>\n").unwrap();
    fs::write(path.join("web/dist/page.js"), "1").unwrap();
    let mine = path.join("mine");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("notes.txt"), "mine").unwrap();
    let export = |format: &str| {
        let request = serde_json::json!({
            "message": "request", "request": "export", "checkpoint": path.join("r"), "format": format,
            "folder": mine,
        });
        let replies = ask_worker(wgpt(path), &request);
        let last = replies.last().unwrap();
        assert_eq!(last["reply"], "exported", "{last}");
        PathBuf::from(last["to"].as_str().unwrap())
    };
    // Each in a place of its own, also the second time.
    for (to, name) in [("gguf", "model-r.gguf"), ("gguf", "model-r-2.gguf")] {
        assert_eq!(export(to), mine.join(name));
        assert_eq!(fs::read(mine.join(name)).unwrap()[..8], *b"GGUF\x03\0\0\0");
    }
    for (to, name, file) in [
        ("page", "page-r", "index.html"),
        ("page", "page-r-2", "page.js"),
        ("hugging_face", "model-r", "model.safetensors"),
        ("hugging_face", "model-r-2", "model.safetensors"),
        ("ollama", "model-r-3", "Modelfile"),
    ] {
        assert_eq!(export(to), mine.join(name));
        assert!(mine.join(name).join(file).exists(), "{name}");
    }
    let sampled = |model: &str| {
        ok(
            path,
            &["sample", model, "--start=The", "--max-new-tokens=9", "--seed=1", "--device=cpu"],
        )
    };
    assert_eq!(sampled("mine/model-r"), sampled("r"));
    assert_eq!(fs::read_dir(&mine).unwrap().count(), 8);

    let request =
        serde_json::json!({"message": "request", "request": "report", "run": path.join("r")});
    let replies = ask_worker(wgpt(path), &request);
    let page = replies.last().unwrap()["page"].as_str().unwrap();
    assert!(fs::read_to_string(page).unwrap().contains("</html>"), "{page}");
}

#[test]
fn an_exported_folder_has_a_card() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, "r", &[]);
    let data = format!("--data={}", path.join("data").display());
    train_on_bytes(path, "absolute", &[&data]);
    for name in ["r", "absolute"] {
        let out = format!("{name}-hf");
        ok(path, &["export", name, "-o", &out]);
        let card = read(&path.join(&out), "README.md");
        for part in ["library_name: transformers", "best val loss", "![loss", "| seed | 1337 |"] {
            assert!(card.contains(part), "no {part} in\n{card}");
        }
        // A card must not reveal the names of folders.
        assert!(!card.contains(&path.display().to_string()), "{card}");
        assert!(read(&path.join(&out), "loss.svg").contains("<polyline"));
        let generation: Value =
            serde_json::from_str(&read(&path.join(&out), "generation_config.json")).unwrap();
        assert_eq!(
            (&generation["eos_token_id"], &generation["max_length"]),
            (&256.into(), &16.into())
        );
    }
    // A model that was not trained here has a model card too, and an existing card stays.
    fs::create_dir(path.join("second")).unwrap();
    fs::write(path.join("second/README.md"), "mine").unwrap();
    ok(path, &["export", "r-hf", "-o", "first"]);
    ok(path, &["export", "r-hf", "-o", "second"]);
    assert!(!read(&path.join("first"), "README.md").contains("## Training"));
    assert_eq!(read(&path.join("second"), "README.md"), "mine");
}

#[test]
fn runs_are_compared() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, "a", &[]);
    train_on_bytes(path, "b", &["--seed=7", "--n_layer=1"]);
    let table = ok(path, &["compare", "a", "b"]);
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec!["seed", "1337", "7"]), "{table}");
    assert!(rows.contains(&vec!["n_layer", "2", "1"]), "{table}");
    assert!(rows.iter().any(|row| row.starts_with(&["bits", "per", "byte"])), "{table}");
    let object: Value = serde_json::from_str(&ok(path, &["compare", "a", "b", "--json"])).unwrap();
    let run = &object["runs"][1];
    assert_eq!((&run["run"], &run["iterations"]), (&"b".into(), &20.into()));
    // 2 * 4 sequences of 16 tokens in each of 20 updates.
    assert_eq!(run["tokens"], 2560.0);
    let (loss, bits) = (run["best_val_loss"].as_f64(), run["bits_per_byte"].as_f64());
    // A token is one byte, except at the ends of documents.
    let ratio = loss.unwrap() / std::f64::consts::LN_2 / bits.unwrap();
    assert!((0.95..=1.0).contains(&ratio), "{ratio}");
    assert_eq!(object["settings"]["seed"], serde_json::json!(["1337", "7"]));

    ok(path, &["compare", "a", "b", "-o", "new/ab.html"]);
    let page = read(path, "new/ab.html");
    assert_eq!(page.matches("<svg").count(), 3, "over tokens, time and compute");

    fs::write(path.join("mine.html"), "mine").unwrap();
    for (args, word) in [
        (&["a", "nowhere"][..], "nowhere: not a run"),
        (&["a", "b", "-o", "ab.txt"][..], "*.html"),
        (&["a", "b", "-o", "mine.html"][..], "not made by wgpt"),
        (&["a"][..], "nothing to compare it with"),
    ] {
        let output = self::run(path, &[&["compare"], args].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(read(path, "mine.html"), "mine");
}

#[test]
fn a_card_has_a_row_for_each_dtype() {
    let folder = temporary();
    let path = folder.path();
    let args = ["bench", "--card", "card.json", "--preset=demo", "--device=cpu"];
    let said = ok(path, &args);
    assert!(said.starts_with("float32: ") && said.contains("hours to 10 billion tokens"), "{said}");
    let card: Value = serde_json::from_str(&read(path, "card.json")).unwrap();
    assert_eq!(
        (&card["is_software"], &card["rows"][0]["dtype"]),
        (&true.into(), &"float32".into())
    );
    assert!(card["rows"][0]["tokens_per_s"].as_f64().unwrap() > 0.0, "{card}");
    assert_eq!(card["rows"].as_array().unwrap().len(), 1);
    // With the vocabulary of its data.
    assert!((200_000..300_000).contains(&card["parameters"].as_u64().unwrap()), "{card}");
    fs::write(path.join("card.json"), "{}").unwrap();
    let refused = run(path, &args);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

/// The host time is that of all launches; the CPU has none.
#[test]
fn a_measured_step_has_the_time_of_the_host() {
    let folder = temporary();
    let step = |device: &str| {
        let device = format!("--device={device}");
        let model = ["--preset=demo", "--vocab_size=64", "--n_layer=1", "--n_embd=32"];
        let more = ["--n_head=2", "--block_size=16", "--batch_size=2", "--no-self-test"];
        let plain = ["bench", "--only=steps", "--no-compare", &device];
        let plain = [&plain[..], &model, &more].concat();
        let table = ok(folder.path(), &plain);
        assert!(table.contains(" launches  host us us each "), "{table}");
        let report: Value =
            serde_json::from_str(&ok(folder.path(), &[&plain[..], &["--json"]].concat())).unwrap();
        report["steps"][0].clone()
    };
    let cpu = step("cpu");
    assert_eq!((&cpu["launches"], &cpu["host_us"]), (&0.into(), &Value::Null), "{cpu}");
    if cfg!(feature = "wgpu") {
        let gpu = step("vulkan:0");
        let number = |key: &str| gpu[key].as_f64().unwrap_or_else(|| panic!("{key} in {gpu}"));
        let each = number("host_us") / number("launches");
        assert!(each > 0.0 && (each / number("host_us_per_launch") - 1.0).abs() < 1e-9, "{gpu}");
    }
}

#[test]
fn a_report_is_one_page() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, "out/r", &[]);
    let said = run(path, &["report", "-o", "r.html"]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(text(&said.stderr).contains("the newest run"));
    let page = read(path, "r.html");
    for part in ["Loss over tokens", "Samples", "Learning rate", "Settings", "<polyline"] {
        assert!(page.contains(part), "no {part}");
    }
    // The page loads nothing from elsewhere, and nothing reveals where the run was.
    let addresses = page.matches("://").count();
    assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count());
    assert!(!page.contains("<script") && !page.contains(&path.display().to_string()));
    // This writes once more, over its own page.
    ok(path, &["report", "out/r", "-o", "r.html"]);
    let refused = run(path, &["report", "out/r", "-o", "r.pdf"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// A result is what the rule's model reaches in a time. It repeats here, and an edited one is found.
#[test]
fn a_result_can_be_verified() {
    let folder = temporary();
    let card = folder.path().join("card.json");
    let bench = ["bench", "--device=cpu", "--result=4s", "--card=card.json", "--sample_tokens=0"];
    let said = ok(folder.path(), &bench);
    assert!(said.contains(" bits per byte in 4s: "), "{said}");
    let written: Value = serde_json::from_slice(&fs::read(&card).unwrap()).unwrap();
    let result = &written["results"][0];
    assert!((0.1..8.0).contains(&result["bits_per_byte"].as_f64().unwrap()), "{result}");
    assert!(
        !result["losses"].as_array().unwrap().is_empty() && result["tokens"].as_u64() > Some(0)
    );
    assert_eq!(result["data"], "builtin:stories");
    let verify = ["bench", "--device=cpu", "--verify=card.json"];
    let said = ok(folder.path(), &verify);
    assert!(said.contains("the result of 4s on builtin:stories repeats"), "{said}");
    let mut edited = written.clone();
    edited["results"][0]["bits_per_byte"] = 0.1.into();
    fs::write(&card, edited.to_string()).unwrap();
    let output = run(folder.path(), &verify);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("the result of 4s on builtin:stories was edited"), "{said}");
    fs::write(&card, "{}").unwrap();
    assert!(text(&run(folder.path(), &verify).stderr).contains("no results to verify"));
    // A file of somebody else is not replaced.
    assert_eq!(run(folder.path(), &bench).status.code(), Some(2));
    assert_eq!(fs::read_to_string(&card).unwrap(), "{}");
}
