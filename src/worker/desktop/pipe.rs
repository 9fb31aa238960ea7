//! Workers as child processes: messages as JSON lines over their pipes.

#![allow(clippy::disallowed_methods, reason = "workers are this program")]

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command as Process, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anstream::ColorChoice;
use anstream::adapter::strip_str;

use crate::config::VARIABLE_PREFIX;
use crate::protocol::{Failure, FromWorker, MESSAGES_VERSION, RunEnd, StartRun, ToWorker};
use crate::runs::has_checkpoint;
use crate::worker::supervisor::ProcessEnd;

/// A handle of a worker's process that another thread can kill.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerProcess(Arc<Mutex<Option<Child>>>);

impl WorkerProcess {
    pub fn set(&self, child: Child) {
        *self.lock() = Some(child);
    }

    pub fn kill(&self) {
        if let Some(child) = self.lock().as_mut() {
            let _ = child.kill();
        }
    }

    pub fn wait(&self) -> ProcessEnd {
        let child = self.lock().take();
        let status = child.and_then(|mut child| child.wait().ok());
        status.map_or(ProcessEnd::Killed, ProcessEnd::from)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(unix)]
impl From<ExitStatus> for ProcessEnd {
    fn from(status: ExitStatus) -> Self {
        use signal_hook::consts::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
        const ERRORS: [i32; 7] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP];
        match std::os::unix::process::ExitStatusExt::signal(&status) {
            Some(signal) if ERRORS.contains(&signal) => Self::Crashed(format!("signal {signal}")),
            Some(_) => Self::Killed,
            None => {
                status.code().and_then(|code| code.try_into().ok()).map_or(Self::Killed, Self::Code)
            }
        }
    }
}

#[cfg(windows)]
impl From<ExitStatus> for ProcessEnd {
    fn from(status: ExitStatus) -> Self {
        // Exceptions, like an access violation, 0xC0000005. Ctrl-C is one, too.
        const CTRL_C: u32 = 0xC000_013A;
        match status.code().map(|code| code as u32) {
            Some(code) if code <= u32::from(u8::MAX) => Self::Code(code as u8),
            Some(code) if code >= 0xC000_0000 && code != CTRL_C => {
                Self::Crashed(format!("exit code {code:#010X}"))
            }
            _ => Self::Killed,
        }
    }
}

/// Returns the process of a worker of this program.
pub(super) fn worker() -> io::Result<Process> {
    let mut process = Process::new(std::env::current_exe()?);
    process.arg("worker");
    process.envs(color().map(|color| ("WGPT_COLOR", color)));
    Ok(process)
}

/// Returns the colours of messages that `--color` asks for.
fn color() -> Option<&'static str> {
    match ColorChoice::global() {
        ColorChoice::Always | ColorChoice::AlwaysAnsi => Some("always"),
        ColorChoice::Never => Some("never"),
        ColorChoice::Auto => None,
    }
}

/// The variable that lets Open MPI send a message over TCP at once, up to a size above every message between
/// ranks. Otherwise both directions of a connection wait for each other: on a network of 1 Gbit/s a sum
/// takes 1.7 times as long.
const WHOLE_MESSAGES: (&str, &str) = ("OMPI_MCA_btl_tcp_eager_limit", "1114112");

/// The variables that make the ranks of one machine open no port: they leave out all of Open MPI's transports
/// but shared memory. Its TCP transport listens on every address of the machine, even if it may only use the
/// loopback. The name of shared memory is not the same in all versions.
const SHARED_MEMORY_ONLY: [(&str, &str); 2] =
    [("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "^tcp,ofi,uct,openib,usnic,portals4,ugni")];

/// Variables of job schedulers that give a launcher its machines.
const ALLOCATIONS: [&str; 5] =
    ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "FLUX_JOB_ID"];

/// Returns true if one of the arguments of a launcher names machines, as Open MPI and MPICH write them.
fn names_machines(arguments: &[OsString]) -> bool {
    let names = |argument: &OsString| {
        let text = argument.to_string_lossy();
        text == "-H" || text == "-f" || text.contains("host") || text.contains("machinefile")
    };
    arguments.iter().any(names)
}

/// Returns the process of a launcher, which starts a worker for each rank. Workers get the start of the run as
/// an argument, because only rank 0 has a stdin.
pub(super) fn launched(launcher: &[OsString], start: &StartRun) -> io::Result<Process> {
    // Only rank 0 may have the run folder, so the ranks do not look for its checkpoints as restarted workers.
    let resume = start.resume || (start.is_restart && has_checkpoint(&start.run));
    // A run that restarts has recorded its decay.
    let decay = start.decay.filter(|_| !start.is_restart);
    let start = StartRun { resume, decay, is_restart: false, ..start.clone() };
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let may_be_elsewhere = names_machines(&launcher[1..]) || ALLOCATIONS.into_iter().any(is_set);
    let local = SHARED_MEMORY_ONLY.into_iter().filter(|_| !may_be_elsewhere);
    let variables = local.chain([WHOLE_MESSAGES]).filter(|(name, _)| !is_set(name));
    let mut process = Process::new(&launcher[0]);
    process
        .envs(variables)
        .args(&launcher[1..])
        .arg(std::env::current_exe()?)
        .args(["worker", "--rank", &serde_json::to_string(&start)?])
        // Another machine does not get the variables of this one.
        .args(color().map(|color| format!("--color={color}")));
    Ok(process)
}

/// Returns the process of a worker of a window. The window has put the `WGPT_*` variables into its form, where
/// they may have changed.
pub(super) fn worker_of_window() -> io::Result<Process> {
    let mut process = worker()?;
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with(VARIABLE_PREFIX)) {
            process.env_remove(name);
        }
    }
    Ok(process)
}

/// Starts a worker and sends it its first message. Returns its stdin, and its messages, which end when it
/// exits, even if it has exited already. A message that cannot be written as text, for example with a path
/// that is not UTF-8, is an error: the worker would wait forever.
pub(super) fn spawn(
    mut process: Process,
    first: Option<&ToWorker>,
) -> io::Result<(Child, ChildStdin, impl Iterator<Item = FromWorker> + Send + use<>)> {
    let first = first.map(serde_json::to_string).transpose()?;
    process.stdin(Stdio::piped()).stdout(Stdio::piped());
    detach(&mut process);
    let mut child = process.spawn()?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (mut input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
    if let Some(first) = first {
        let _ = writeln!(input, "{first}");
    }
    Ok((child, input, read_messages(output)))
}

pub(super) fn send(input: &mut ChildStdin, message: &ToWorker) -> io::Result<()> {
    writeln!(input, "{}", serde_json::to_string(message)?)
}

/// Sends a message of this worker to its owner, on stdout. If nobody reads it, it is lost.
pub(super) fn send_to_owner(message: &FromWorker) {
    // Text, numbers and maps with text keys always serialize.
    let line = serde_json::to_string(message).unwrap_or_default();
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn read_messages(pipe: impl Read) -> impl Iterator<Item = FromWorker> {
    let lines = BufReader::new(pipe).lines().map_while(Result::ok);
    // A library may print to stdout, too.
    lines.filter_map(|line| match serde_json::from_str(&line).ok()? {
        FromWorker::Ready { version } if version != MESSAGES_VERSION => {
            let text = "the program has been replaced by another version";
            let failure = Failure::new(text, "close wgpt and open it again");
            Some(FromWorker::Ended(RunEnd::Failed(failure)))
        }
        message => Some(message),
    })
}

/// Passes on the lines of a pipe until it closes, without their colours, which the reader adds again.
pub(super) fn read_lines(pipe: impl Read, mut say: impl FnMut(&str)) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        say(&strip_str(line.trim_end_matches('\r')).to_string());
    }
}

/// Detaches a process from the terminal's Ctrl-C and its end, which are for this process. On Windows the
/// process gets a console without a window, so none appears if this process has none.
pub(crate) fn detach(process: &mut Process) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(process, 0);
    #[cfg(windows)]
    {
        const CREATE_NO_WINDOW: u32 = 0x0800_0000;
        std::os::windows::process::CommandExt::creation_flags(process, CREATE_NO_WINDOW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_crash_is_told_from_a_kill_and_from_an_exit() {
        for (script, expected, said) in [
            ("exit 5", ProcessEnd::Code(5), "crashed (exit code 5)"),
            ("kill -SEGV $$", ProcessEnd::Crashed("signal 11".into()), "crashed (signal 11)"),
            ("kill -KILL $$", ProcessEnd::Killed, "was killed"),
            ("kill -TERM $$", ProcessEnd::Killed, "was killed"),
        ] {
            let end = ProcessEnd::from(Process::new("sh").arg("-c").arg(script).status().unwrap());
            assert_eq!((end.to_string().as_str(), end), (said, expected), "{script}");
        }
    }

    #[test]
    fn ranks_on_one_machine_get_no_network() {
        for (arguments, named) in [
            (&["-np", "2", "--oversubscribe"][..], false),
            (&["-np", "2", "--hostfile", "hosts"], true),
            (&["-np", "2", "--host", "a,b"], true),
            (&["-H", "a,b"], true),
            (&["-machinefile", "m"], true),
        ] {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert_eq!(names_machines(&arguments), named, "{arguments:?}");
        }
    }

    #[test]
    fn lines_are_passed_on_without_their_ends() {
        let mut said = Vec::new();
        read_lines(&b"\x1b[31merror:\x1b[0m a\r\n  hint: \xff\nlast"[..], |line| {
            said.push(line.to_string())
        });
        assert_eq!(said, ["error: a", "  hint: \u{fffd}", "last"]);
    }

    #[test]
    fn a_worker_of_another_version_is_an_error_and_other_lines_are_ignored() {
        let read = |lines: &'static str| read_messages(lines.as_bytes()).collect::<Vec<_>>();
        let ready = format!("{{\"message\":\"ready\",\"version\":{MESSAGES_VERSION}}}");
        let lines = format!("noise\n{ready}\n{{\"message\":\"heartbeat\"}}\n");
        let messages = read(lines.leak());
        assert!(
            matches!(&messages[..], [FromWorker::Ready { .. }, FromWorker::Heartbeat]),
            "{messages:?}"
        );
        let messages = read("{\"message\":\"ready\",\"version\":0}\n");
        assert!(matches!(&messages[..], [FromWorker::Ended(RunEnd::Failed(_))]), "{messages:?}");
    }
}
