//! Runs the trainer as a child process, and starts it again when its device fails.
//!
//! After out-of-memory or a lost device only the end of a process surely gives the memory back. So
//! the process that people talk to holds no device: it passes commands in and events out, and when
//! the trainer ends by a failure of the device, it starts another from the last checkpoint, after
//! out-of-memory with less on the device at a time.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::protocol::{Command, Event};
use crate::recovery::{Decision, Failed, Heard, Recovery};
use crate::train::{EVENTS_FILE, has_checkpoint, record};

/// How often commands are looked for while the trainer says nothing.
const TURN: Duration = Duration::from_millis(50);

/// How long a trainer may take to end after it said that its device failed.
const LAST: Duration = Duration::from_secs(30);

/// Events that wait while nobody reads what this process says; then the trainer waits.
const EVENTS: usize = 1024;

/// The exit code of a run whose recovery gave up.
pub const GAVE_UP: u8 = 5;

/// A trainer that is kept going.
pub struct Supervisor<'a> {
    /// The program, which is this one.
    pub program: PathBuf,
    /// What was typed after `train`, without what says where and how to run.
    pub args: Vec<OsString>,
    /// The run folder.
    pub run: PathBuf,
    /// Whether to continue from its newest checkpoint.
    pub resume: bool,
    /// The process that is running.
    pub trainer: Trainer,
    /// Takes the trainer's events.
    pub emit: &'a mut dyn FnMut(&Event),
}

/// A trainer's process, to be ended from another thread.
#[derive(Clone, Debug, Default)]
pub struct Trainer(Arc<Mutex<Option<Child>>>);

impl Trainer {
    /// Ends it at once, if there is one.
    pub fn kill(&self) {
        if let Some(child) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let _ = child.kill();
        }
    }

    fn set(&self, child: Option<Child>) -> Option<Child> {
        std::mem::replace(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), child)
    }
}

/// How a trainer ended.
struct Ended {
    /// Its exit code; `None` if a signal ended it.
    code: Option<u8>,
    /// Whether it said why.
    error: bool,
    /// What it said.
    told: Failed,
}

impl Supervisor<'_> {
    /// Runs the trainer until it has ended for good; gives its exit code.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn run(mut self, commands: &Receiver<Command>) -> io::Result<u8> {
        let mut less: Vec<OsString> = Vec::new();
        let mut recovery = Recovery::default();
        let mut resume = self.resume;
        let mut heard = Heard::default();
        let began = Instant::now();
        loop {
            let mut extra = less.clone();
            extra.push(format!("--elapsed={}", began.elapsed().as_secs()).into());
            let ended = self.once(&extra, resume, commands, &mut heard)?;
            if !ended.failed() {
                if ended.error {
                    (self.emit)(&ended.told.event());
                }
                return Ok(ended.code.unwrap_or(1));
            }
            let failed = ended.told();
            if heard.stopping {
                // Who asked for an end does not want another beginning.
                self.tell(&failed.event());
                return Ok(GAVE_UP);
            }
            match recovery.after(failed) {
                Decision::GiveUp { event } => {
                    self.tell(&event);
                    return Ok(GAVE_UP);
                }
                Decision::Again { event, less: plan } => {
                    if let Some(plan) = plan {
                        less = options(&plan);
                    }
                    self.tell(&event);
                }
            }
            // Not before: a folder that holds another run is the first trainer's to refuse.
            resume = self.resume || has_checkpoint(&self.run);
        }
    }

    /// Tells what the trainer could not, and keeps it with what that told.
    fn tell(&mut self, event: &Event) {
        if self.run.join(EVENTS_FILE).exists() {
            // A full disk must not end a run for want of a log line.
            let _ = record(&self.run, event);
        }
        (self.emit)(event);
    }

    /// One process from start to end.
    fn once(
        &mut self,
        extra: &[OsString],
        resume: bool,
        commands: &Receiver<Command>,
        heard: &mut Heard,
    ) -> io::Result<Ended> {
        let mut process = Process::new(&self.program);
        process.args(["train", "--json", "--supervised"]).args(&self.args).args(extra);
        process.arg("--run").arg(&self.run);
        if resume {
            process.arg("--resume");
        }
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A Ctrl-C in the terminal is for this process, which passes it on as a command.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut process, 0);
        let mut child = process.spawn()?;
        let events = read(&mut child);
        let mut input = child.stdin.take();
        self.trainer.set(Some(child));
        heard.again().for_each(|command| send(&mut input, &command));
        let mut ended = Ended { code: None, error: false, told: Failed::default() };
        let mut failed = None;
        loop {
            while let Ok(command) = commands.try_recv() {
                heard.take(&command);
                send(&mut input, &command);
            }
            match events.recv_timeout(TURN) {
                Ok(event) => ended.take(event, self.emit),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if ended.told.cause.is_some()
                && failed.get_or_insert_with(Instant::now).elapsed() > LAST
            {
                // Its driver waits for a device that does not answer.
                self.trainer.kill();
            }
        }
        let child = self.trainer.set(None);
        let status = child.expect("the process that was just started").wait()?;
        // Windows ends a process from outside with a code like any other, or with a larger one.
        ended.code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(ended)
    }
}

impl Ended {
    fn take(&mut self, event: Event, emit: &mut dyn FnMut(&Event)) {
        match event {
            // Told when it is clear whether that was the end.
            Event::Error { text, hint, cause } => {
                self.error = true;
                self.told = Failed { text, hint, cause, ..std::mem::take(&mut self.told) };
            }
            event => {
                self.told.take(&event);
                emit(&event);
            }
        }
    }

    /// Whether a fresh process may do better: the device failed, or the process was ended from
    /// outside, or by a fault of its own.
    fn failed(&self) -> bool {
        match self.code {
            None | Some(GAVE_UP | 101) => true,
            // What fails by itself says why.
            Some(1) => cfg!(windows) && !self.error,
            Some(_) => false,
        }
    }

    fn told(self) -> Failed {
        if self.error {
            return self.told;
        }
        let text = match self.code {
            None => "the trainer was ended from outside".to_string(),
            Some(code) => format!("the trainer ended by a fault of its own (code {code})"),
        };
        let hint = "the lines above may say more; -v shows the driver's words".into();
        Failed { text, hint, ..self.told }
    }
}

fn options(plan: &Plan) -> Vec<OsString> {
    let mut options = vec![format!("--micro_batch={}", plan.micro_batch)];
    if plan.micro_batch == 1 {
        options.push(format!("--loss_chunk={}", plan.loss_chunk));
    }
    if plan.grad_checkpoint {
        options.push("--grad_checkpoint=true".into());
    }
    options.into_iter().map(OsString::from).collect()
}

fn send(input: &mut Option<ChildStdin>, command: &Command) {
    let Ok(line) = serde_json::to_string(command) else { return };
    let sent = input.as_mut().is_some_and(|input| writeln!(input, "{line}").is_ok());
    if !sent {
        *input = None;
    }
}

/// The trainer's events, on a channel that closes when it ends.
fn read(child: &mut Child) -> Receiver<Event> {
    let (sender, receiver) = sync_channel(EVENTS);
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // What is no event is none of ours.
                let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}
