//! Requests that a worker of their own answers.
//!
//! A process of its own keeps the device out of the window: whatever the driver does to it, the
//! window stays, and the end of the process gives all memory back.

use std::io;
use std::process::{Child, Command as Process, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::pipe::{Pipe, spawn, without_settings, worker};
use crate::protocol::{Failure, FromWorker, Reply, Request, SampleInput, ToWorker};

/// A request that a worker answers. Dropping it ends the worker.
pub(super) struct RequestProcess {
    child: Arc<Mutex<Child>>,
    is_stopped: Arc<AtomicBool>,
}

/// Has a worker of its own answer a request, with the variables of this process; returns the last reply.
pub(crate) fn ask(request: Request) -> Result<Reply, Failure> {
    let (mut child, pipe) = send(worker(), &request)?;
    let last = pipe.messages.iter().filter_map(reply_of).last();
    // Its messages have ended, so it is about to exit.
    let status = child.wait();
    last.ok_or_else(|| killed(status.ok()))
}

fn send(process: io::Result<Process>, request: &Request) -> Result<(Child, Pipe), Failure> {
    let spawned = process.and_then(spawn).and_then(|(child, mut pipe)| {
        pipe.send_first(&ToWorker::Request(request.clone()))?;
        Ok((child, pipe))
    });
    spawned.map_err(|error| Failure::new(format!("a process of wgpt did not start: {error}"), ""))
}

fn reply_of(message: FromWorker) -> Option<Reply> {
    match message {
        FromWorker::Reply(reply) => Some(reply),
        _ => None,
    }
}

fn killed(status: Option<ExitStatus>) -> Failure {
    match status.and_then(|status| status.code()) {
        // A process that was killed on Windows has code 1.
        None | Some(1) => Failure::new("the process that worked on it was killed", ""),
        Some(code) => {
            Failure::new(format!("the process that worked on it crashed (exit code {code})"), "")
        }
    }
}

impl RequestProcess {
    /// Has a worker answer a request without the variables of this process. `reply` takes the replies.
    pub fn start(
        request: Request,
        reply: impl Fn(Reply) + Send + 'static,
    ) -> Result<Self, Failure> {
        let process = worker().map(|mut process| {
            without_settings(&mut process);
            process
        });
        Self::run(process, request, reply)
    }

    fn run(
        process: io::Result<Process>,
        request: Request,
        reply: impl Fn(Reply) + Send + 'static,
    ) -> Result<Self, Failure> {
        let (child, pipe) = send(process, &request)?;
        let child = Arc::new(Mutex::new(child));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let this = Self { child: child.clone(), is_stopped: is_stopped.clone() };
        std::thread::spawn(move || {
            let mut last = None;
            for given in pipe.messages.iter().filter_map(reply_of) {
                last = Some(given.clone());
                reply(given);
            }
            // Its end is certain once its output is closed; waiting removes it from the system's
            // table.
            let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
            if last.as_ref().is_some_and(is_final) {
                return;
            }
            if is_stopped.load(Ordering::SeqCst) {
                reply(stopped(&request, last));
            } else {
                let Failure { text, hint, .. } = killed(status.ok());
                reply(Reply::Failed { job: request.job(), text, hint });
            }
        });
        Ok(this)
    }
}

impl Drop for RequestProcess {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // A process that has ended by itself needs no end.
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
}

/// Returns true for the last reply to a request.
fn is_final(reply: &Reply) -> bool {
    !matches!(reply, Reply::Sampled { done: false, .. } | Reply::Answered { done: false, .. })
}

/// Returns the last reply to a request that was stopped: the text stays as it is.
fn stopped(request: &Request, last: Option<Reply>) -> Reply {
    match (last, request) {
        (Some(Reply::Sampled { prompt, text, .. }), _) => {
            Reply::Sampled { prompt, text, done: true }
        }
        (Some(Reply::Answered { text, .. }), _) => {
            Reply::Answered { text, forgotten: 0, done: true }
        }
        (_, Request::Sample(request)) => match &request.input {
            SampleInput::Prompt(prompt) => {
                Reply::Sampled { prompt: prompt.clone(), text: String::new(), done: true }
            }
            SampleInput::Conversation(_) => {
                Reply::Answered { text: String::new(), forgotten: 0, done: true }
            }
        },
        (_, request) => {
            let Failure { text, hint, .. } = killed(None);
            Reply::Failed { job: request.job(), text, hint }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::data::{Message, Role};
    use crate::protocol::{Job, SampleRequest};

    fn sample(input: SampleInput) -> Request {
        Request::Sample(SampleRequest {
            path: "out/a b".into(),
            input,
            tokens: 5,
            temperature: 0.8,
            top_k: 0,
            seed: 7,
            device: "cpu".into(),
        })
    }

    /// Runs a shell in the place of a worker, which answers a request for a text.
    fn shell(script: &str) -> (RequestProcess, Receiver<Reply>) {
        let (sender, receiver) = channel();
        let mut process = Process::new("sh");
        process.arg("-c").arg(script);
        let request = sample(SampleInput::Prompt("Once".into()));
        let reply = move |reply| drop(sender.send(reply));
        (RequestProcess::run(Ok(process), request, reply).unwrap(), receiver)
    }

    fn next(replies: &Receiver<Reply>) -> Reply {
        replies.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    const GROWING: &str = r#"echo '{"message":"reply","reply":"sampled","prompt":"Once","text":" upon","done":false}'"#;

    #[test]
    fn a_worker_gets_the_request_and_its_replies_are_passed_on() {
        let script = format!(
            r#"grep -q '"request":"sample".*"prompt":"Once"' && {GROWING}
            echo '{{"message":"reply","reply":"sampled","prompt":"Once","text":" upon a","done":true}}'"#
        );
        let (_process, replies) = shell(&script.replace("grep -q", "head -n 1 | grep -q"));
        for (expected, is_done) in [(" upon", false), (" upon a", true)] {
            let Reply::Sampled { text, done, .. } = next(&replies) else { panic!("no text") };
            assert_eq!((text.as_str(), done), (expected, is_done));
        }
        assert!(replies.recv_timeout(Duration::from_secs(20)).is_err(), "no more replies");
    }

    #[test]
    fn a_worker_that_is_killed_is_a_failure() {
        let (_process, replies) = shell(&format!("{GROWING}; kill -9 $$"));
        next(&replies);
        let Reply::Failed { job, text, .. } = next(&replies) else { panic!("no failure") };
        assert_eq!(job, Job::Sample);
        assert!(text.ends_with("was killed"), "{text}");
    }

    #[test]
    fn a_text_that_is_stopped_stays_as_it_is() {
        let (process, replies) = shell(&format!("{GROWING}; exec sleep 60"));
        next(&replies);
        drop(process);
        let Reply::Sampled { text, done, .. } = next(&replies) else { panic!("no text") };
        assert_eq!((text.as_str(), done), (" upon", true));
        let hello = SampleInput::Conversation(vec![Message::new(Role::User, "Hello")]);
        let end = stopped(&sample(hello), None);
        assert!(matches!(end, Reply::Answered { done: true, .. }), "{end:?}");
    }
}
