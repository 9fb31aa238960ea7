//! The process that trains, as the window sees it: events out, commands in.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use eframe::egui;

use super::Work;
use crate::config::VARIABLE_PREFIX;
use crate::gui::trainer::{Begin, Ended};
use crate::protocol::{Command, Event};
use crate::run_index;
pub(in crate::gui) use crate::run_index::{Tail, is_training};
use crate::train::has_checkpoint;

/// A run that is going on, in a process that this window has started or in another.
pub(in crate::gui) struct Trainer {
    /// The run folder.
    pub run: PathBuf,
    /// Whether it is set up.
    pub started: bool,
    link: Link,
}

/// How long the process of a run may be gone before the run is: a supervisor takes a moment to say
/// that it starts again.
const GONE: Duration = Duration::from_secs(3);

/// How often it is looked whether another process still trains.
const LOOK: Duration = Duration::from_millis(500);

/// How often the window draws while events come in.
const FRAME: Duration = Duration::from_millis(50);

enum Link {
    /// A process of this window's: the command line's `train`, over its pipes.
    Pipes {
        child: Child,
        input: Option<ChildStdin>,
        events: Receiver<Event>,
        /// Whether its end of `events` is closed, all of them having been read.
        silent: bool,
        talk: Receiver<String>,
    },
    /// A process of somebody else's: what it writes into the run folder, and what it reads there.
    Files {
        tail: Tail,
        looked: Instant,
        /// Since when nobody has trained.
        gone: Option<Instant>,
    },
}

impl Trainer {
    /// Starts `wgpt train`; the window is woken for each event.
    pub fn start(run: &Path, begin: &Begin, work: &Work) -> io::Result<Self> {
        let ctx = work.ctx();
        let mut process = Process::new(std::env::current_exe()?);
        process.arg("train").arg("--json").arg("--run").arg(run).args(arguments(begin));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // They are in `args` by way of the form, where they may have been changed.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with(VARIABLE_PREFIX)) {
                process.env_remove(name);
            }
        }
        apart(&mut process);
        let mut child = process.spawn()?;
        let events = lines(child.stdout.take(), ctx, |line| serde_json::from_str(&line).ok());
        let talk = lines(child.stderr.take(), ctx, Some);
        let input = child.stdin.take();
        let link = Link::Pipes { child, input, events, silent: false, talk };
        Ok(Self { run: run.to_path_buf(), started: false, link })
    }

    /// Follows a run that another process trains, from where `tail` stands.
    pub fn attach(run: &Path, tail: Tail, _: &Work) -> Self {
        let link = Link::Files { tail, looked: Instant::now(), gone: None };
        Self { run: run.to_path_buf(), started: true, link }
    }

    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let found = match &mut self.link {
            Link::Pipes { events, silent, .. } => {
                let mut found = Vec::new();
                loop {
                    match events.try_recv() {
                        Ok(event) => found.push(event),
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => {
                            *silent = true;
                            break;
                        }
                    }
                }
                found
            }
            Link::Files { tail, .. } => tail.read(),
        };
        self.started |= found.iter().any(|event| matches!(event, Event::Start { .. }));
        found
    }

    /// Passes a command on.
    ///
    /// # Errors
    /// When the trainer does not listen any more.
    pub fn tell(&mut self, command: &Command) -> io::Result<()> {
        match &mut self.link {
            Link::Pipes { input: Some(input), .. } => {
                serde_json::to_writer(&mut *input, command)?;
                writeln!(input)
            }
            Link::Pipes { .. } => Err(io::ErrorKind::BrokenPipe.into()),
            Link::Files { .. } => run_index::command(&self.run, command),
        }
    }

    /// How it ended, if it has, and all that it said was read.
    pub fn ended(&mut self) -> Option<Ended> {
        match &mut self.link {
            Link::Pipes { silent: false, .. } => None,
            Link::Pipes { child, talk, .. } => {
                let status = child.try_wait().ok()??;
                let lines: Vec<String> = talk.try_iter().collect();
                let last = lines.len().saturating_sub(20);
                // What ends a process from outside gives no code that wgpt has.
                let code = status.code().filter(|code| (0..256).contains(code));
                let talk = lines[last..].join("\n");
                Some(Ended { code, talk, resumable: has_checkpoint(&self.run) })
            }
            Link::Files { looked, .. } if looked.elapsed() < LOOK => None,
            Link::Files { looked, gone, .. } => {
                *looked = Instant::now();
                if run_index::is_training(&self.run) {
                    *gone = None;
                    return None;
                }
                let talk = "its process is gone and has not said why".to_string();
                let since = gone.get_or_insert_with(Instant::now).elapsed();
                (since > GONE).then_some(Ended { code: Some(0), talk, resumable: false })
            }
        }
    }

    /// Whether this window has started it.
    pub fn is_own(&self) -> bool {
        matches!(self.link, Link::Pipes { .. })
    }
}

/// What begins the run on the command line.
fn arguments(begin: &Begin) -> Vec<OsString> {
    let settings = match begin.form.as_ref() {
        Some(form) => form.flags(),
        None => vec!["--resume".into()],
    };
    // Whatever ends the window ends its pipes.
    let leash = begin.ends_with_window.then(|| "--stop-on-close".to_string());
    let device = format!("--device={}", begin.device);
    settings.into_iter().chain([device]).chain(leash).map(OsString::from).collect()
}

/// Lines of a pipe, read on a thread of their own.
fn lines<T: Send + 'static>(
    pipe: Option<impl Read + Send + 'static>,
    ctx: &egui::Context,
    read: impl Fn(String) -> Option<T> + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = channel();
    let ctx = ctx.clone();
    std::thread::spawn(move || {
        for line in pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
            let Ok(line) = line else { break };
            if read(line).is_some_and(|value| sender.send(value).is_err()) {
                break;
            }
            ctx.request_repaint_after(FRAME);
        }
        // Its end is news as well.
        ctx.request_repaint();
    });
    receiver
}

/// A Ctrl-C in the window's terminal, or the end of the window, is not for the trainer.
fn apart(process: &mut Process) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(process, 0);
    #[cfg(windows)]
    {
        const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
        const CREATE_NO_WINDOW: u32 = 0x0800_0000;
        let flags = CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW;
        std::os::windows::process::CommandExt::creation_flags(process, flags);
    }
}
