//! The process that trains, as the window sees it: events out, commands in.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, channel};

use eframe::egui;

use crate::catalogue::{self, Tail};
use crate::config::VARIABLE_PREFIX;
use crate::protocol::{Command, Event};

/// A run that is going on, in a process that this window has started or in another.
pub(super) struct Trainer {
    /// The run folder.
    pub run: PathBuf,
    link: Link,
}

enum Link {
    /// A process of this window's: the command line's `train`, over its pipes.
    Pipes {
        child: Child,
        input: Option<ChildStdin>,
        events: Receiver<Event>,
        talk: Receiver<String>,
    },
    /// A process of somebody else's: what it writes into the run folder, and what it reads there.
    Files(Tail),
}

/// How a process of this window's ended.
pub(super) struct Ended {
    /// Its exit code; `None` if it was ended from outside.
    pub code: Option<i32>,
    /// What it said on stderr last.
    pub talk: String,
}

impl Trainer {
    /// Starts `wgpt train` with `args`; `ctx` is woken for each event.
    pub fn start(run: &Path, args: &[OsString], ctx: &egui::Context) -> io::Result<Self> {
        let mut process = Process::new(std::env::current_exe()?);
        process.arg("train").arg("--json").arg("--run").arg(run).args(args);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // They are in `args` by way of the form, where they may have been changed.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with(VARIABLE_PREFIX)) {
            process.env_remove(name);
        }
        apart(&mut process);
        let mut child = process.spawn()?;
        let events = lines(child.stdout.take(), ctx, |line| serde_json::from_str(&line).ok());
        let talk = lines(child.stderr.take(), ctx, Some);
        let input = child.stdin.take();
        Ok(Self { run: run.to_path_buf(), link: Link::Pipes { child, input, events, talk } })
    }

    /// Follows a run that another process trains, from where `tail` stands.
    pub fn attach(run: &Path, tail: Tail) -> Self {
        Self { run: run.to_path_buf(), link: Link::Files(tail) }
    }

    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        match &mut self.link {
            Link::Pipes { events, .. } => events.try_iter().collect(),
            Link::Files(tail) => tail.read(),
        }
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
            Link::Files(_) => catalogue::command(&self.run, command),
        }
    }

    /// How it ended, if it has; events that came before may still have to be read.
    pub fn ended(&mut self) -> Option<Ended> {
        match &mut self.link {
            Link::Pipes { child, talk, .. } => {
                let status = child.try_wait().ok()??;
                let lines: Vec<String> = talk.try_iter().collect();
                let last = lines.len().saturating_sub(20);
                Some(Ended { code: status.code(), talk: lines[last..].join("\n") })
            }
            Link::Files(_) if catalogue::is_training(&self.run) => None,
            Link::Files(_) => Some(Ended { code: Some(0), talk: String::new() }),
        }
    }

    /// Whether this window has started it.
    pub fn is_own(&self) -> bool {
        matches!(self.link, Link::Pipes { .. })
    }
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
            ctx.request_repaint();
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
