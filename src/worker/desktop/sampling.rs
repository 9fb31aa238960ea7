//! A text that a child process generates: the command line's `sample` or `chat`, over its pipes.
//!
//! A process of its own keeps the device out of the window: whatever the driver does to it, the
//! window stays, and the end of the process gives all memory back.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::json;

use super::process::without_settings;
use crate::protocol::{Job, Reply, SampleInput, SampleRequest};
use crate::worker::{answer::Failure, detach};

/// A text that is being generated. Dropping it ends the process.
pub(super) struct Sampling {
    child: Arc<Mutex<Child>>,
    is_stopped: Arc<AtomicBool>,
}

/// A line of the process's output.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The next piece of the text.
    Text(String),
    /// The end of the text.
    Done(Done),
    /// Why a conversation cannot be answered.
    Error { text: String, hint: String },
}

#[derive(Deserialize)]
struct Done {
    #[serde(default)]
    forgotten: usize,
}

impl Sampling {
    /// Starts `wgpt sample` or `wgpt chat`. `reply` takes [`Reply::Sampled`] or [`Reply::Answered`]
    /// as the text grows, and at its end.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(
        request: SampleRequest,
        reply: impl Fn(Reply) + Send + 'static,
    ) -> io::Result<Self> {
        let mut process = Process::new(std::env::current_exe()?);
        process.args(arguments(&request));
        without_settings(&mut process);
        detach(&mut process);
        Self::run(process, request.input, reply)
    }

    fn run(
        mut process: Process,
        input: SampleInput,
        reply: impl Fn(Reply) + Send + 'static,
    ) -> io::Result<Self> {
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process.spawn()?;
        let (pipe, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let sampling = Self { child: child.clone(), is_stopped: is_stopped.clone() };
        // On a thread of its own: a process that nobody reads stops at a full pipe.
        let errors = std::thread::spawn(move || read_to_end(errors));
        std::thread::spawn(move || {
            let send = |text: &str, end: Option<&Done>| {
                let (text, done) = (text.to_string(), end.is_some());
                reply(match &input {
                    SampleInput::Prompt(prompt) => {
                        Reply::Sampled { prompt: prompt.clone(), text, done }
                    }
                    SampleInput::Conversation(_) => {
                        let forgotten = end.map_or(0, |end| end.forgotten);
                        Reply::Answered { text, forgotten, done }
                    }
                });
            };
            if let Some(mut pipe) = pipe {
                // A process that does not read it says why.
                let _ = writeln!(pipe, "{}", line_of(&input));
            }
            let mut text = String::new();
            let mut end = None;
            let mut failure = None;
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { break };
                match serde_json::from_str(&line) {
                    Ok(Line::Text(piece)) => {
                        text += &piece;
                        send(&text, None);
                    }
                    Ok(Line::Done(done)) => end = Some(done),
                    Ok(Line::Error { text, hint }) => failure = Some(Failure { text, hint }),
                    Err(_) => {}
                }
            }
            // Its end is certain once its output is closed; waiting removes it from the system's
            // table.
            let _ = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
            let errors = errors.join().unwrap_or_default();
            if end.is_none() && failure.is_none() && is_stopped.load(Ordering::SeqCst) {
                end = Some(Done { forgotten: 0 });
            }
            if end.is_some() {
                return send(&text, end.as_ref());
            }
            let Failure { text, hint } =
                failure.unwrap_or_else(|| Failure::of_command(command(&input), &errors));
            reply(Reply::Failed { job: Job::Sample, text, hint });
        });
        Ok(sampling)
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // A process that has ended by itself needs no end.
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
}

/// The command that generates a text after this.
fn command(input: &SampleInput) -> &'static str {
    match input {
        SampleInput::Prompt(_) => "wgpt sample",
        SampleInput::Conversation(_) => "wgpt chat",
    }
}

/// The line that the command reads. On stdin, a prompt may be any text, as `FILE:x`, and no other user
/// of the system reads it.
fn line_of(input: &SampleInput) -> String {
    match input {
        SampleInput::Prompt(prompt) => prompt.clone(),
        SampleInput::Conversation(messages) => json!({ "messages": messages }).to_string(),
    }
}

fn arguments(request: &SampleRequest) -> Vec<OsString> {
    let SampleRequest { path, input, tokens, temperature, top_k, seed, device } = request;
    let (command, start) = match input {
        SampleInput::Prompt(_) => ("sample", Some("--start=-".to_string())),
        SampleInput::Conversation(_) => ("chat", None),
    };
    let flags = [
        "--json".to_string(),
        // stderr has errors only.
        "--quiet".to_string(),
        format!("--max_new_tokens={tokens}"),
        format!("--temperature={temperature}"),
        format!("--top_k={top_k}"),
        format!("--seed={seed}"),
        format!("--device={device}"),
    ];
    let command = [command.into(), path.clone().into_os_string()];
    command.into_iter().chain(flags.into_iter().chain(start).map(OsString::from)).collect()
}

fn read_to_end(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // The part before an error is all that can be known.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::data::{Message, Role};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    fn shell(script: &str) -> (Sampling, Receiver<Reply>) {
        with_input(script, SampleInput::Prompt("Once".into()))
    }

    fn with_input(script: &str, input: SampleInput) -> (Sampling, Receiver<Reply>) {
        let (sender, receiver) = channel();
        let mut process = Process::new("sh");
        process.arg("-c").arg(script);
        let reply = move |reply| drop(sender.send(reply));
        (Sampling::run(process, input, reply).unwrap(), receiver)
    }

    fn hello() -> SampleInput {
        SampleInput::Conversation(vec![Message::new(Role::User, "Hello\n\"you\"")])
    }

    fn next(replies: &Receiver<Reply>) -> Reply {
        replies.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn the_text_grows_until_it_is_done() {
        let script = r#"read start; echo "checkpoint: x" >&2; echo '{"text":" upon"}'
            printf '{"text":" %s\\n"}\n' "$start"; echo '{"done":{"tokens":2}}'"#;
        let (_sampling, replies) = shell(script);
        for (expected, is_done) in
            [(" upon", false), (" upon Once\n", false), (" upon Once\n", true)]
        {
            let Reply::Sampled { prompt, text, done } = next(&replies) else { panic!("no text") };
            assert_eq!((prompt.as_str(), text.as_str(), done), ("Once", expected, is_done));
        }
    }

    /// The conversation is one line of JSON, which `chat --json` reads.
    #[test]
    fn an_answer_grows_until_it_is_done() {
        let script = r#"grep -qF '"content":"Hello\n\"you\""' && echo '{"text":"Hi"}'
            echo '{"done":{"tokens":2,"forgotten":4,"cut":false}}'"#;
        let (_sampling, replies) = with_input(script, hello());
        for (expected, is_done) in [(0, false), (4, true)] {
            let Reply::Answered { text, forgotten, done } = next(&replies) else {
                panic!("no text")
            };
            assert_eq!((text.as_str(), forgotten, done), ("Hi", expected, is_done));
        }
    }

    #[test]
    fn a_conversation_that_cannot_be_answered_says_why() {
        let script = r#"echo '{"error":{"text":"too long","hint":"shorten it"}}'"#;
        let (_sampling, replies) = with_input(script, hello());
        let Reply::Failed { job, text, hint } = next(&replies) else { panic!("no failure") };
        assert_eq!((job, text.as_str(), hint.as_str()), (Job::Sample, "too long", "shorten it"));
    }

    #[test]
    fn a_process_that_fails_says_why() {
        let script = r#"echo '{"text":" upon"}'; echo 'device: CPU' >&2
            echo 'error: the disk is on fire' >&2; echo '  hint: run' >&2; exit 1"#;
        let (_sampling, replies) = shell(script);
        next(&replies);
        let Reply::Failed { job, text, hint } = next(&replies) else { panic!("no failure") };
        assert_eq!(
            (job, text.as_str(), hint.as_str()),
            (Job::Sample, "the disk is on fire", "run")
        );
    }

    #[test]
    fn a_text_that_is_stopped_stays_as_it_is() {
        let (sampling, replies) = shell(r#"echo '{"text":" upon"}'; exec sleep 60"#);
        next(&replies);
        drop(sampling);
        let Reply::Sampled { text, done, .. } = next(&replies) else { panic!("no text") };
        assert_eq!((text.as_str(), done), (" upon", true));
    }

    #[test]
    fn options_are_passed_on() {
        let request = SampleRequest {
            path: "out/a b".into(),
            input: SampleInput::Prompt("FILE:x".into()),
            tokens: 5,
            temperature: 0.8,
            top_k: 0,
            seed: 7,
            device: "cpu".into(),
        };
        let expected = [
            "sample",
            "out/a b",
            "--json",
            "--quiet",
            "--max_new_tokens=5",
            "--temperature=0.8",
            "--top_k=0",
            "--seed=7",
            "--device=cpu",
            "--start=-",
        ];
        assert_eq!(arguments(&request), expected);
        let request = SampleRequest { input: hello(), ..request };
        let mut chat = expected[..expected.len() - 1].to_vec();
        chat[0] = "chat";
        assert_eq!(arguments(&request), chat);
    }
}
