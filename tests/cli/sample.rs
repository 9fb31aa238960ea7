//! Tests generated text: prompts from stdin, a prompt loop, and lines for other programs.

use std::io::{BufRead, BufReader, Write};

use super::*;

const SHORT: [&str; 3] = ["--max-new-tokens=20", "--device=cpu", "--temperature=0"];

/// Trains a run `r` and returns the text that it continues `prompt` with.
fn continuation(folder: &Path, prompt: &str) -> String {
    train(folder, "r", &["--max_iters=10"]);
    let start = format!("--start={prompt}");
    let written = ok(folder, &[&["sample", "r", &start], &SHORT[..]].concat());
    let text = written.strip_prefix(prompt).and_then(|text| text.strip_suffix('\n'));
    text.expect("the prompt and its continuation").to_string()
}

fn sample_with_stdin(folder: &Path, args: &[&str], stdin: &str) -> Output {
    let mut command = wgpt(folder);
    command.args([&["sample", "r"], args, &SHORT[..]].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that is refused may have exited.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_prompt_comes_from_stdin() {
    let folder = temporary();
    let text = continuation(folder.path(), "The ");
    let output = sample_with_stdin(folder.path(), &["--start", "-"], "The \n");
    assert!(output.status.success(), "{}", super::text(&output.stderr));
    assert_eq!(super::text(&output.stdout), format!("The {text}\n"));
    assert_eq!(
        super::text(&output.stderr),
        format!("checkpoint: {}\n", Path::new("r").join("checkpoints").join("00000010").display())
    );
    let both = sample_with_stdin(folder.path(), &["--start", "-", "-i"], "The \n");
    assert_eq!(both.status.code(), Some(2));
}

/// Each line gets a text. An empty line repeats the prompt, and a line that cannot be tokenized does
/// not end the loop.
#[test]
fn a_prompt_loop_reads_lines_until_they_end() {
    let folder = temporary();
    let text = continuation(folder.path(), "The ");
    let output = sample_with_stdin(folder.path(), &["-i"], "The \n\n\u{1f600}\nThe \n");
    assert!(output.status.success(), "{}", super::text(&output.stderr));
    assert_eq!(super::text(&output.stdout), format!("The {text}\n\n").repeat(3));
    let said = super::text(&output.stderr);
    assert_eq!(said.matches("error:").count(), 1, "{said}");
}

/// The contract with the window: pieces of the text as they are generated, then the number of tokens.
#[test]
fn json_lines_stream_the_text() {
    let folder = temporary();
    let text = continuation(folder.path(), "The ");
    let mut child = wgpt(folder.path())
        .args([&["sample", "r", "--json", "--start=The "], &SHORT[..]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let mut read = line["text"].as_str().unwrap().to_string();
    let rest: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let (last, pieces) = rest.split_last().unwrap();
    assert_eq!(*last, serde_json::json!({"done": {"tokens": 20}}));
    read.extend(pieces.iter().map(|piece| piece["text"].as_str().unwrap()));
    assert_eq!(read, text);
    assert_eq!(pieces.len() + 1, 20, "a piece for each character");
    for piece in [&line].into_iter().chain(pieces) {
        let token = &piece["tokens"][0];
        assert_eq!(token["text"], piece["text"]);
        // At temperature 0 the likeliest token is taken.
        assert_eq!(token["probability"], token["likeliest"][0]["probability"], "{token}");
        let shares = token["likeliest"].as_array().unwrap().iter();
        let shares: Vec<_> = shares.map(|other| other["probability"].as_f64().unwrap()).collect();
        assert!(shares.len() == 5 && shares.is_sorted_by(|a, b| a >= b), "{token}");
        assert!(shares.iter().sum::<f64>() < 1.0 && shares[4] > 0.0, "{token}");
    }
    assert!(child.wait().unwrap().success());

    let refused = run(folder.path(), &["sample", "r", "--json", "--start=", "--device=cpu"]);
    assert_eq!((refused.status.code(), super::text(&refused.stdout)), (Some(2), String::new()));
    assert!(super::text(&refused.stderr).contains("error: empty prompt\n  hint: "));
}

/// The window asks a worker. Its text is the same with and without probabilities.
#[test]
fn a_worker_generates_for_the_window() {
    let folder = temporary();
    let text = continuation(folder.path(), "The ");
    for probabilities in [false, true] {
        let request = serde_json::json!({
            "message": "request", "request": "sample", "path": "r", "input": {"prompt": "The "},
            "tokens": 20, "temperature": 0.0, "top_k": 200, "seed": 1, "device": "cpu",
            "probabilities": probabilities,
        });
        let replies = ask_worker(wgpt(folder.path()), &request);
        let last = replies.last().unwrap();
        assert_eq!((&last["reply"], &last["text"]), (&"sampled".into(), &text.as_str().into()));
        assert_eq!(last["done"], true);
        let tokens =
            replies.iter().flat_map(|reply| reply["tokens"].as_array().into_iter().flatten());
        let texts: String = tokens.map(|token| token["text"].as_str().unwrap()).collect();
        assert_eq!(texts, if probabilities { text.as_str() } else { "" });
    }
    let request = serde_json::json!({
        "message": "request", "request": "sample", "path": "nowhere", "input": {"prompt": "The "},
        "tokens": 20, "temperature": 0.0, "top_k": 200, "seed": 1, "device": "cpu",
    });
    let failed = ask_worker(wgpt(folder.path()), &request).pop().unwrap();
    assert_eq!((&failed["reply"], &failed["job"]), (&"failed".into(), &"sample".into()));
    assert!(failed["text"].to_string().contains("nowhere"), "{failed}");
    let request = serde_json::json!({
        "message": "request", "request": "sample", "path": "r", "input": {"text": "The fox"},
        "tokens": 0, "temperature": 0.0, "top_k": 0, "seed": 1, "device": "cpu",
    });
    let messages = ask_worker(wgpt(folder.path()), &request);
    let replies: Vec<_> = messages.iter().filter(|message| message["reply"] == "scored").collect();
    let tokens: usize = replies.iter().map(|reply| reply["tokens"].as_array().unwrap().len()).sum();
    assert_eq!((tokens, &replies.last().unwrap()["done"]), (7, &true.into()));
}

/// A text gets a probability for each token but the first, in the same way as when it is generated.
#[test]
fn the_tokens_of_a_text_have_probabilities() {
    let folder = temporary();
    let text = format!("The {}", continuation(folder.path(), "The "));
    let eval = |text: &str, more: &[&str]| {
        let text = format!("--text={text}");
        ok(folder.path(), &[&["eval", "r", &text, "--device=cpu"], more].concat())
    };
    let scored: Value = serde_json::from_str(&eval(&text, &["--json"])).unwrap();
    let tokens = scored["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), text.len(), "a token for each character");
    assert_eq!(tokens[0]["probability"], Value::Null);
    for token in &tokens[4..] {
        // The text was generated with the likeliest tokens.
        assert_eq!(token["probability"], token["likeliest"][0]["probability"], "{token}");
    }
    let nats = tokens[1..].iter().map(|token| -token["probability"].as_f64().unwrap().ln());
    let mean = nats.sum::<f64>() / (text.len() - 1) as f64;
    assert!((scored["loss"].as_f64().unwrap() - mean).abs() < 1e-5, "{scored}");

    let table = eval("The fox", &[]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("token") && lines.len() == 10, "{table}");
    assert!(lines[1].starts_with("\"T\"") && lines[9].starts_with("loss "), "{table}");
    let colored = eval("The fox", &["--color=always"]);
    assert!(colored.contains("\u{1b}[") && colored.contains("below 1%"), "{colored}");
    for (text, complaint) in [("", "too few"), ("T", "too few"), ("\u{1f600}", "character")] {
        let refused = run(folder.path(), &["eval", "r", &format!("--text={text}"), "--device=cpu"]);
        let said = super::text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(complaint) && said.contains("hint: "), "{said}");
    }
}
