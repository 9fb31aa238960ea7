//! Tests conversations: messages from stdin, commands, and lines for other programs.

use std::io::{BufRead, BufReader, Write};

use super::*;

/// Trains a run `r` on the built-in conversations.
fn train_on_chats(folder: &Path, block_size: u32) {
    let block_size = format!("--block_size={block_size}");
    train(folder, "r", &["--data=builtin:chats", "--max_iters=10", &block_size]);
}

fn chat(folder: &Path, args: &[&str], stdin: &[u8]) -> Output {
    chat_with(folder, "r", args, stdin)
}

fn chat_with(folder: &Path, model: &str, args: &[&str], stdin: &[u8]) -> Output {
    let mut command = wgpt(folder);
    command.args(["chat", model, "--max-new-tokens=12", "--device=cpu"]);
    if !args.iter().any(|arg| arg.starts_with("--temperature")) {
        command.arg("--temperature=0");
    }
    command.args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that is refused may have exited.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

/// A conversation that begins again has the same answer, and a message that cannot be answered does not
/// end it.
#[test]
fn each_line_is_answered() {
    let folder = temporary();
    train_on_chats(folder.path(), 64);
    let lines = "Hello\n/reset\n\n\u{1f600}\n/foo\n/system Answer with one word.\n/system\nHello\n";
    let output = chat(folder.path(), &[], lines.as_bytes());
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let answers = text(&output.stdout);
    let (first, second) = answers.split_at(answers.len() / 2);
    assert!(first.len() > 1 && first == second && first.ends_with('\n'), "{answers:?}");
    assert_eq!(said.matches("error:").count(), 2, "{said}");
    assert!(said.contains("unknown command `/foo`"), "{said}");
    assert!(!answers.contains("<|"), "{answers}");

    let output = chat(folder.path(), &["--quiet"], b"Hello\n/exit\nHello\n");
    assert_eq!(text(&output.stdout), first);
}

#[test]
fn the_oldest_messages_are_forgotten_and_that_is_told_once() {
    let folder = temporary();
    train_on_chats(folder.path(), 32);
    let output = chat(folder.path(), &[], "What is a cow?\n".repeat(6).as_bytes());
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("oldest messages are forgotten").count(), 1, "{said}");

    let long = "x".repeat(40);
    let output = chat(folder.path(), &[], format!("{long}\n").as_bytes());
    let said = text(&output.stderr);
    assert!(said.contains("the user message has 40 tokens"), "{said}");
    let output = chat(folder.path(), &[&format!("--system={long}")], b"");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("error: the system message has 40 tokens"), "{said}");
}

/// The contract with the window: pieces of the answer, its end, and errors.
#[test]
fn json_lines_have_conversations_and_answers() {
    let folder = temporary();
    train_on_chats(folder.path(), 32);
    let user = |content: &str| serde_json::json!({ "role": "user", "content": content });
    let assistant = serde_json::json!({ "role": "assistant", "content": "A bird." });
    let tool = serde_json::json!({ "role": "tool", "content": "x" });
    let conversations = [
        vec![user("Hello")],
        vec![user("Hello"), tool],
        vec![user("Hello"), assistant.clone()],
        vec![user(&"x".repeat(40))],
        vec![user("What is a crow?"), assistant, user("Hello")],
    ];
    let lines = conversations.map(|messages| {
        let line = serde_json::json!({ "messages": messages });
        format!("{line}\n")
    });
    let output = chat(folder.path(), &["--json"], lines.concat().as_bytes());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut ends = lines.iter().filter(|line| line.get("text").is_none());
    let pieces = lines.iter().take_while(|line| line.get("text").is_some());
    let answer: String = pieces.map(|line| line["text"].as_str().unwrap()).collect();
    let first = ends.next().unwrap();
    // A token per character.
    assert_eq!(first["done"]["tokens"], answer.chars().count());
    assert_eq!(first["done"]["forgotten"], 0);
    for reason in ["unknown variant `tool`", "must end with a user message", "has 40 tokens"] {
        let error = &ends.next().unwrap()["error"];
        assert!(error["text"].as_str().unwrap().contains(reason), "{error}");
        assert!(!error["hint"].as_str().unwrap().is_empty(), "{error}");
    }
    let last = ends.next().unwrap();
    assert_eq!(last["done"]["forgotten"], 2, "{last}");
    assert_eq!(ends.next(), None);
}

#[test]
fn an_exported_model_answers_if_it_has_the_tokens() {
    let folder = temporary();
    train_on_chats(folder.path(), 32);
    ok(folder.path(), &["export", "r", "-o", "model"]);
    let [run, exported] =
        ["r", "model"].map(|model| chat_with(folder.path(), model, &[], b"Hello\n"));
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    assert_eq!(text(&exported.stdout), text(&run.stdout));

    let config = folder.path().join("model/config.json");
    let fewer = fs::read_to_string(&config).unwrap();
    fs::write(&config, fewer.replace(r#""vocab_size": 101"#, r#""vocab_size": 96"#)).unwrap();
    let refused = chat_with(folder.path(), "model", &[], b"Hello\n");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    let reason = "the tokenizer needs a model with 101 tokens, but the model has 96";
    assert!(said.contains(reason), "{said}");
}

#[test]
fn a_model_without_conversations_is_refused_in_one_line() {
    let folder = temporary();
    train(folder.path(), "r", &["--max_iters=1"]);
    let output = chat(folder.path(), &["--quiet"], b"Hello\n");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()));
    let said = text(&output.stderr);
    assert!(said.contains("this model was not trained on conversations\n  hint: "), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}

/// Answers the default model of `chat`, which is in `out/`.
fn chat_with_newest(folder: &Path) -> Output {
    let mut command = wgpt(folder);
    command.args(["chat", "--max-new-tokens=4", "--device=cpu"]);
    command.output().unwrap()
}

#[test]
fn the_newest_run_with_conversations_introduces_itself() {
    let folder = temporary();
    let refused = chat_with_newest(folder.path());
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("no run in out/ was trained on conversations"), "{said}");
    assert!(said.contains("hint: `wgpt train --preset=chat`"), "{said}");

    train(folder.path(), "out/chat", &["--data=builtin:chats", "--max_iters=4", "--block_size=64"]);
    train(folder.path(), "out/text", &["--max_iters=4"]);
    let chat = chat_with_newest(folder.path());
    let said = text(&chat.stderr);
    assert!(chat.status.success(), "{said}");
    let run = Path::new("out").join("chat");
    let used = format!("using {}, the newest run that was trained on conversations", run.display());
    assert!(said.contains(&used), "{said}");
    assert!(said.contains("It greets you and remembers your name."), "{said}");
    let examples = said.split_once("Try: ").unwrap().1;
    assert!(examples.lines().count() == 3 && examples.contains('?'), "{said}");
    let introduction = said.lines().filter(|line| line.starts_with("It ")).collect::<Vec<_>>();
    assert_eq!(introduction.len(), 2, "{said}");
    assert!(introduction.iter().all(|line| line.len() <= 80), "{said}");
}

/// The examples of a person's data are messages of the validation split. Once the data has changed, or
/// from an exported folder, nothing is claimed.
#[test]
fn a_model_of_own_data_has_examples_of_its_validation_split() {
    let folder = temporary();
    let line = |number: usize| {
        let message = |role, content: String| serde_json::json!({"role": role, "content": content});
        let messages =
            [message("user", format!("Question {number}?")), message("assistant", "Yes.".into())];
        format!("{}\n", serde_json::json!({ "messages": messages }))
    };
    let write = |from: usize| {
        let lines: String = (from..from + 40).map(line).collect();
        fs::write(folder.path().join("chats.jsonl"), lines).unwrap();
        let prepare = ["prepare", "chats.jsonl", "-o", "mine", "--tokenizer=byte", "--force"];
        ok(folder.path(), &prepare);
    };
    write(10);
    train(folder.path(), "r", &["--data=mine", "--max_iters=2", "--block_size=64"]);
    let said = text(&chat(folder.path(), &[], b"").stderr);
    assert!(said.contains("trained on the conversations in mine."), "{said}");
    assert_eq!(said.matches("Question ").count(), 3, "{said}");

    ok(folder.path(), &["export", "r", "-o", "hf", "--device=cpu"]);
    let card = fs::read_to_string(folder.path().join("hf/README.md")).unwrap();
    assert!(card.contains("tokenizer.apply_chat_template("), "{card}");
    write(50);
    for model in ["hf", "r"] {
        let said = text(&chat_with(folder.path(), model, &[], b"").stderr);
        assert!(said.contains("do not say what they are about"), "{said}");
        assert!(!said.contains("Try: "), "{said}");
    }
}

/// The window has a worker answer, as `wgpt chat` does.
#[test]
fn a_worker_answers_for_the_window() {
    let folder = temporary();
    train_on_chats(folder.path(), 64);
    let mut answers = String::new();
    for question in ["Hello", "Who are you?", "The fox", "a"] {
        let typed = format!("{question}\n");
        // At temperature 0, this model ends each answer at once.
        let options = ["--quiet", "--temperature=1", "--seed=1"];
        let expected = text(&chat(folder.path(), &options, typed.as_bytes()).stdout);
        let request = serde_json::json!({
            "message": "request", "request": "sample", "path": "r",
            "input": {"conversation": [{"role": "user", "content": question}]},
            "tokens": 12, "temperature": 1.0, "top_k": 200, "seed": 1, "device": "cpu",
        });
        let replies = ask_worker(wgpt(folder.path()), &request);
        let last = replies.last().unwrap();
        assert_eq!((&last["reply"], &last["done"]), (&"answered".into(), &true.into()), "{last}");
        assert_eq!(last["text"].as_str().unwrap().trim_end(), expected.trim_end());
        answers += expected.trim();
    }
    assert!(!answers.is_empty(), "the model only ends its answers");
}

/// Ctrl-C stops an answer, and ends a chat that waits for a message.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_chat_that_waits() {
    let folder = temporary();
    train_on_chats(folder.path(), 64);
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut command = wgpt(folder.path());
        command.args(["chat", "r", "--max-new-tokens=12", "--device=cpu"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"Hello\n").unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        answers.read_line(&mut String::new()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            // The first one may still stop the answer.
            let id = child.id().to_string();
            Command::new("kill").args([signal, &id]).status().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "{signal} does not end a chat");
        };
        assert_eq!(status.code(), Some(code), "{signal}");
        drop(stdin);
    }
}
