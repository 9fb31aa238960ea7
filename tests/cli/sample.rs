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
    assert!(child.wait().unwrap().success());

    let refused = run(folder.path(), &["sample", "r", "--json", "--start=", "--device=cpu"]);
    assert_eq!((refused.status.code(), super::text(&refused.stdout)), (Some(2), String::new()));
    assert!(super::text(&refused.stderr).contains("error: empty prompt\n  hint: "));
}
