//! Requests that a separate worker process answers.
//!
//! A separate process keeps the device out of the window: whatever the driver does to it, the
//! window stays, and the end of the process gives all memory back.

use std::io;
use std::process::{Child, ChildStdin, Command as Process, ExitStatus};
use std::sync::Arc;

use super::pipe::{spawn, worker};
use crate::config::Config;
use crate::ops::OpsMode;
use crate::protocol::{
    BenchmarkRow, DeviceInfo, Failure, FromWorker, Reply, Request, RequestKind, SampleInput,
    SampleRequest, ToWorker,
};
use crate::worker::supervisor::ProcessEnd;

/// Has a separate worker answer a request, with the variables of this process; returns the last reply.
pub(crate) fn ask(request: Request) -> Result<Reply, Failure> {
    let (mut child, _input, replies) = start(worker(), request)?;
    let last = replies.last();
    // Its messages have ended, so it is about to exit.
    let status = child.wait();
    match last {
        Some(Reply::Failed { text, hint, .. }) => Err(Failure::new(text, hint)),
        last => last.ok_or_else(|| killed(status)),
    }
}

/// Has another process measure training steps of `config` on a device. That process also keeps their speed.
pub(crate) fn measure(
    config: &Config,
    device: &DeviceInfo,
    mode: OpsMode,
) -> Result<BenchmarkRow, Failure> {
    let config = Box::new(config.clone());
    let device = device.id.to_string();
    let implementation = mode.implementation;
    match ask(Request::Measure { config, device, implementation })? {
        Reply::Measured { row } => Ok(*row),
        _ => Err(Failure::new("no measurement", "")),
    }
}

/// Has a worker answer a request. The worker ends when its stdin, which is returned, closes.
pub(super) fn start(
    process: io::Result<Process>,
    request: Request,
) -> Result<(Child, ChildStdin, impl Iterator<Item = Reply> + Send), Failure> {
    let spawned = process.and_then(|process| spawn(process, Some(&ToWorker::Request(request))));
    let (child, input, messages) = spawned
        .map_err(|error| Failure::new(format!("could not start a wgpt process: {error}"), ""))?;
    let replies = messages.filter_map(|message| match message {
        FromWorker::Reply(reply) => Some(reply),
        _ => None,
    });
    Ok((child, input, replies))
}

fn killed(status: io::Result<ExitStatus>) -> Failure {
    let end = status.map_or(ProcessEnd::Killed, ProcessEnd::from);
    Failure::new(format!("the process that worked on it {end}"), "")
}

/// Has a worker answer a request with several replies, until the returned value is dropped: then the stdin of the
/// worker closes. `reply` takes the replies. The last one is marked.
pub(super) fn converse(
    process: io::Result<Process>,
    request: Request,
    reply: impl Fn(Reply) + Send + 'static,
) -> Result<Arc<ChildStdin>, Failure> {
    let job = request.job();
    let mut last = before_the_first(&request);
    let (mut child, input, replies) = start(process, request)?;
    let input = Arc::new(input);
    let owner = Arc::downgrade(&input);
    std::thread::spawn(move || {
        for given in replies {
            last = given.clone();
            reply(given);
        }
        // Its end is certain once its output is closed; waiting removes it from the system's table.
        let status = child.wait();
        if is_last(&last) {
            return;
        }
        let is_stopped = owner.strong_count() == 0;
        reply(if is_stopped { after_a_stop(last) } else { Reply::failed(job, killed(status)) });
    });
    Ok(input)
}

/// Returns the reply to a request before any work is done.
fn before_the_first(request: &Request) -> Reply {
    let text = String::new();
    let tokens = Vec::new();
    let done = false;
    match request {
        Request::Sample(SampleRequest { input, .. }) => match input {
            SampleInput::Prompt(prompt) => {
                Reply::Sampled { prompt: prompt.clone(), text, done, tokens }
            }
            SampleInput::Text(_) => Reply::Scored { tokens, done },
            SampleInput::Conversation(_) => Reply::Answered { text, forgotten: 0, done },
        },
        _ => Reply::Fetching { name: text, done: 0, all: None },
    }
}

fn is_last(reply: &Reply) -> bool {
    match reply {
        Reply::Sampled { done, .. } | Reply::Answered { done, .. } | Reply::Scored { done, .. } => {
            *done
        }
        reply => !matches!(reply, Reply::Fetching { .. } | Reply::Preparing { .. }),
    }
}

/// Returns the last reply if the worker was stopped after `last`. The text stays; its last tokens were
/// passed on already.
fn after_a_stop(mut last: Reply) -> Reply {
    match &mut last {
        Reply::Sampled { done, tokens, .. } | Reply::Scored { done, tokens } => {
            tokens.clear();
            *done = true;
        }
        Reply::Answered { done, .. } => *done = true,
        _ => {
            let failure = Failure::new("the download was stopped", "Download continues it");
            return Reply::failed(RequestKind::Get, failure);
        }
    }
    last
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::data::{Message, Role};

    /// Runs a shell in the place of a worker, which answers a request for a text.
    fn shell(input: SampleInput, script: &str) -> (Arc<ChildStdin>, Receiver<Reply>) {
        let (sender, receiver) = channel();
        let mut process = Process::new("sh");
        process.arg("-c").arg(script);
        let request = SampleRequest {
            path: "out/a b".into(),
            input,
            tokens: 5,
            temperature: 0.8,
            top_k: 0,
            seed: 7,
            device: "cpu".into(),
            probabilities: false,
        };
        let reply = move |reply| drop(sender.send(reply));
        (converse(Ok(process), Request::Sample(request), reply).unwrap(), receiver)
    }

    fn prompt() -> SampleInput {
        SampleInput::Prompt("Once".into())
    }

    fn next(replies: &Receiver<Reply>) -> Reply {
        replies.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    const SCORED: &str = r#"echo '{"message":"reply","reply":"scored","tokens":[{"text":"O","probability":null,"likeliest":[]}],"done":false}'"#;

    const GROWING: &str = r#"echo '{"message":"reply","reply":"sampled","prompt":"Once","text":" upon","done":false}'"#;

    #[test]
    fn a_worker_gets_the_request_and_its_replies_are_passed_on() {
        let script = format!(
            r#"head -n 1 | grep -q '"request":"sample".*"prompt":"Once"' && {GROWING}
            echo '{{"message":"reply","reply":"sampled","prompt":"Once","text":" upon a","done":true}}'"#
        );
        let (_input, replies) = shell(prompt(), &script);
        for (expected, is_done) in [(" upon", false), (" upon a", true)] {
            let Reply::Sampled { text, done, .. } = next(&replies) else { panic!("no text") };
            assert_eq!((text.as_str(), done), (expected, is_done));
        }
        assert!(replies.recv_timeout(Duration::from_secs(20)).is_err(), "no more replies");
    }

    #[test]
    fn a_download_ends_with_one_last_reply() {
        const FETCHING: &str =
            r#"echo '{"message":"reply","reply":"fetching","name":"hf:a/b","done":1,"all":2}'"#;
        const FETCHED: &str =
            r#"echo '{"message":"reply","reply":"fetched","name":"hf:a/b","folder":"c"}'"#;
        for (script, is_stopped, last) in [
            (format!("{FETCHING}; {FETCHED}"), false, None),
            (format!("{FETCHING}; kill -9 $$"), false, Some("killed")),
            (format!("{FETCHING}; cat >/dev/null"), true, Some("stopped")),
        ] {
            let (sender, receiver) = channel();
            let mut process = Process::new("sh");
            process.arg("-c").arg(&script);
            let request = Request::Get { name: "hf:a/b".into(), folder: "data".into() };
            let input =
                converse(Ok(process), request, move |reply| drop(sender.send(reply))).unwrap();
            assert!(matches!(next(&receiver), Reply::Fetching { done: 1, .. }), "{script}");
            if is_stopped {
                drop(input);
            }
            match (next(&receiver), last) {
                (Reply::Fetched { .. }, None) => {}
                (Reply::Failed { job: RequestKind::Get, text, .. }, Some(word)) => {
                    assert!(text.contains(word), "{text}");
                }
                (reply, _) => panic!("{reply:?} from {script}"),
            }
            assert!(receiver.recv_timeout(Duration::from_secs(20)).is_err(), "no more replies");
        }
    }

    #[test]
    fn a_worker_that_is_killed_is_a_failure() {
        let (_input, replies) = shell(prompt(), &format!("{GROWING}; kill -9 $$"));
        next(&replies);
        let Reply::Failed { job, text, .. } = next(&replies) else { panic!("no failure") };
        assert_eq!(job, RequestKind::Sample);
        assert!(text.ends_with("was killed"), "{text}");
    }

    #[test]
    fn a_text_that_is_stopped_stays_as_it_is() {
        let (input, replies) = shell(prompt(), &format!("{GROWING}; exec cat"));
        next(&replies);
        drop(input);
        let Reply::Sampled { text, done, .. } = next(&replies) else { panic!("no text") };
        assert_eq!((text.as_str(), done), (" upon", true));
        let hello = SampleInput::Conversation(vec![Message::new(Role::User, "Hello")]);
        let (input, replies) = shell(hello, "exec cat");
        drop(input);
        let end = next(&replies);
        assert!(matches!(end, Reply::Answered { done: true, .. }), "{end:?}");
        let text = SampleInput::Text("Once".into());
        let (input, replies) = shell(text, &format!("{SCORED}; exec cat"));
        let Reply::Scored { tokens, done: false } = next(&replies) else { panic!("no token") };
        assert_eq!(tokens.len(), 1);
        drop(input);
        let end = next(&replies);
        let Reply::Scored { tokens, done: true } = end else { panic!("{end:?}") };
        assert!(tokens.is_empty(), "tokens come twice");
    }
}
