//! Requests that a worker of their own answers.
//!
//! A process of its own keeps the device out of the window: whatever the driver does to it, the
//! window stays, and the end of the process gives all memory back.

use std::io;
use std::process::{Child, ChildStdin, Command as Process, ExitStatus};
use std::sync::Arc;

use super::pipe::{spawn, worker};
use crate::protocol::{
    Failure, FromWorker, Job, Reply, Request, SampleInput, SampleRequest, ToWorker,
};
use crate::worker::supervisor::ProcessEnd;

/// Has a worker of its own answer a request, with the variables of this process; returns the last reply.
pub(crate) fn ask(request: Request) -> Result<Reply, Failure> {
    let (mut child, _input, replies) = start(worker(), request)?;
    let last = replies.last();
    // Its messages have ended, so it is about to exit.
    let status = child.wait();
    last.ok_or_else(|| killed(status))
}

/// Has a worker answer a request. The worker ends when its stdin, which is returned, closes.
pub(super) fn start(
    process: io::Result<Process>,
    request: Request,
) -> Result<(Child, ChildStdin, impl Iterator<Item = Reply> + Send), Failure> {
    let spawned = process.and_then(|process| spawn(process, Some(&ToWorker::Request(request))));
    let (child, input, messages) = spawned
        .map_err(|error| Failure::new(format!("a process of wgpt did not start: {error}"), ""))?;
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

/// Has a worker generate a text, until the returned value is dropped: then the stdin of the worker closes.
/// `reply` takes the replies.
pub(super) fn sample(
    process: io::Result<Process>,
    request: SampleRequest,
    reply: impl Fn(Reply) + Send + 'static,
) -> Result<Arc<ChildStdin>, Failure> {
    let (text, done) = (String::new(), false);
    let mut last = match &request.input {
        SampleInput::Prompt(prompt) => {
            Reply::Sampled { prompt: prompt.clone(), text, done, tokens: Vec::new() }
        }
        SampleInput::Text(_) => Reply::Scored { tokens: Vec::new(), done },
        SampleInput::Conversation(_) => Reply::Answered { text, forgotten: 0, done },
    };
    let (mut child, input, replies) = start(process, Request::Sample(request))?;
    let input = Arc::new(input);
    let owner = Arc::downgrade(&input);
    std::thread::spawn(move || {
        for given in replies {
            last = given.clone();
            reply(given);
        }
        // Its end is certain once its output is closed; waiting removes it from the system's table.
        let status = child.wait();
        // The last tokens were passed on already.
        if let Reply::Sampled { tokens, .. } | Reply::Scored { tokens, .. } = &mut last {
            tokens.clear();
        }
        match &mut last {
            Reply::Sampled { done, .. }
            | Reply::Answered { done, .. }
            | Reply::Scored { done, .. }
                if !*done =>
            {
                if owner.strong_count() == 0 {
                    // The text stays as it is.
                    *done = true;
                    reply(last);
                } else {
                    reply(Reply::failed(Job::Sample, killed(status)));
                }
            }
            _ => {}
        }
    });
    Ok(input)
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
        (sample(Ok(process), request, reply).unwrap(), receiver)
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
    fn a_worker_that_is_killed_is_a_failure() {
        let (_input, replies) = shell(prompt(), &format!("{GROWING}; kill -9 $$"));
        next(&replies);
        let Reply::Failed { job, text, .. } = next(&replies) else { panic!("no failure") };
        assert_eq!(job, Job::Sample);
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
