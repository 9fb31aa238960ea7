//! `wgpt train`.

use std::ffi::OsString;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::CliError;
use super::args::{Global, TrainArgs};
use super::report::Report;
use super::watch::watch;
use crate::catalogue::Tail;
use crate::config::{Config, InitFrom};
use crate::gpu::{self, Backend, DeviceChoice, OpenDevice};
use crate::protocol::{Command, Event, StopReason};
use crate::supervisor::{Supervisor, Trainer};
use crate::train::{
    COMMANDS_FILE, CONFIG_FILE, NANOGPT_FILE, Request, Session, Setup, TrainError, has_checkpoint,
};

/// Where runs go that were given no folder.
const RUNS: &str = "out";

pub(super) fn run(args: TrainArgs, global: &Global) -> Result<ExitCode, CliError> {
    let json = args.json;
    let mut report = Report::new(json, global.quiet);
    let (sender, commands) = channel();
    let trainer = Trainer::default();
    let signal = listen(&sender, &trainer, json, args.stop_on_eof || args.supervised)?;
    let result = train(args, global, &mut report, trainer, sender, &commands);
    if let (true, Err(error)) = (json, &result) {
        let (text, hint) = (error.to_string(), error.hint().to_string());
        report.show(&Event::Error { text, hint, cause: None });
    }
    // As a shell reports a process that a signal ended: 130 or 143.
    let stopped = || match signal.load(Ordering::SeqCst) {
        0 => ExitCode::SUCCESS,
        signal => ExitCode::from(128 + signal as u8),
    };
    Ok(match result? {
        Outcome::Stopped(StopReason::Stopped) | Outcome::Code(0) => stopped(),
        Outcome::Stopped(_) => ExitCode::SUCCESS,
        Outcome::Code(code) => ExitCode::from(code),
    })
}

/// A setting of this side of stdin, not of the run: `--stop-on-eof`, to be changed later.
const STOP_ON_EOF: &str = "stop_on_eof";

/// How often the run folder is looked into for commands.
const FOLLOW: Duration = Duration::from_millis(250);

/// How a run ended.
enum Outcome {
    /// In this process.
    Stopped(StopReason),
    /// In the trainer's process, with this code.
    Code(u8),
}

/// Whether the device that was asked for can fail in ways that only the end of a process clears.
fn uses_graphics(choice: DeviceChoice) -> bool {
    match choice {
        DeviceChoice::Named(id) => id.backend != Backend::Cpu,
        DeviceChoice::Auto => {
            gpu::select(choice).is_ok_and(|found| found.info.id.backend != Backend::Cpu)
        }
    }
}

/// The arguments of this process for the trainer's, without those that the supervisor gives.
fn passed_on(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut passed = Vec::new();
    let mut command = false;
    let mut args = super::headless_as_train(args).into_iter().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            // The next one is a value of that name.
            Some("train") if !command => command = true,
            Some("--json" | "--resume" | "--stop-on-eof") => {}
            // Its value is the next one.
            Some("--run") => drop(args.next()),
            Some(arg) if arg.starts_with("--run=") => {}
            _ => passed.push(arg),
        }
    }
    passed
}

fn train(
    args: TrainArgs,
    global: &Global,
    report: &mut Report,
    trainer: Trainer,
    sender: Sender<Command>,
    commands: &Receiver<Command>,
) -> Result<Outcome, CliError> {
    let (choice, mode) = (global.device()?, global.ops()?);
    let name = args.source.name();
    let run = args.run.or_else(|| args.source.typed("out_dir").map(PathBuf::from));
    let resume = args.resume || args.source.typed("init_from").as_deref() == Some("resume");
    let saved = run.as_ref().filter(|_| resume).map(|run| run.join(CONFIG_FILE));
    if let Some(missing) = saved.as_ref().filter(|path| !path.exists()) {
        let run = missing.parent().unwrap_or(missing);
        let hint = match run.join(NANOGPT_FILE).exists() {
            true => "train on from nanoGPT's weights with --init_from=DIR/ckpt.pt and a new --run",
            false => "give the folder of a run with --run, or leave out --resume",
        };
        let what = format!("{}: there is no run of wgpt to continue", run.display());
        return Err(CliError::Usage { what, hint });
    }
    let resolved = args.source.resolve(saved.as_deref())?;
    let config = resolved.config;
    let resume = resume || config.init_from == InitFrom::Resume;
    let run = run_folder(run, &config, resume, &name)?;
    if !args.supervised {
        follow(run.join(COMMANDS_FILE), sender);
    }
    if !args.no_supervise && !args.supervised && uses_graphics(choice) {
        let supervisor = Supervisor {
            program: std::env::current_exe().map_err(CliError::Process)?,
            args: passed_on(std::env::args_os()),
            run,
            resume,
            trainer,
            emit: &mut |event| {
                // What is no failure of the device the trainer has said on stderr by itself.
                let said = matches!(event, Event::Error { cause: None, .. });
                if args.json || !said {
                    report.show(event);
                }
            },
        };
        return Ok(Outcome::Code(supervisor.run(commands).map_err(CliError::Process)?));
    }
    for text in resolved.warnings {
        report.show(&Event::Warning { text });
    }
    let config = Config { out_dir: run.display().to_string(), ..config };
    let elapsed = Duration::from_secs(args.elapsed);
    let request = Request { config, run: run.clone(), resume, mode, elapsed };
    let (setup, device) = set_up(&request, choice)?;
    watch(&device, args.json);
    if !global.quiet {
        tell!("device: {} ({}), {}", device.info.name, device.info.id, device.reason);
    }
    let mut emit = |event: &Event| report.show(event);
    let mut session = Session::open(setup, device, &mut emit)?;
    let reason = pollster::block_on(session.run(&mut { commands }))?;
    drop(session);
    if !global.quiet && has_checkpoint(&run) {
        tell!("the run lies in {0}; continue it with --resume --run {0}", run.display());
    }
    Ok(Outcome::Stopped(reason))
}

/// Everything is known, and a run that does not fit is refused, before the device is opened.
fn set_up(request: &Request, choice: DeviceChoice) -> Result<(Setup, OpenDevice), CliError> {
    let mut found = gpu::select(choice).map_err(TrainError::from)?;
    loop {
        let setup = Setup::new(request.clone(), &found.info)?;
        match found.open() {
            Ok(device) => return Ok((setup, device)),
            Err(error) => found = found.fallback(error).map_err(TrainError::from)?,
        }
    }
}

/// The folder that was asked for, else a fresh one.
fn run_folder(
    typed: Option<PathBuf>,
    config: &Config,
    resume: bool,
    name: &str,
) -> Result<PathBuf, CliError> {
    if let Some(run) = typed {
        return Ok(run);
    }
    if !config.out_dir.is_empty() {
        return Ok(PathBuf::from(&config.out_dir));
    }
    if resume {
        return Err(CliError::Usage {
            what: "--resume does not say which run".into(),
            hint: "give its folder with --run",
        });
    }
    let free = (1u32..).map(|number| Path::new(RUNS).join(format!("{name}-{number}")));
    Ok(free.into_iter().find(|path| !path.exists()).unwrap_or_else(|| PathBuf::from(RUNS)))
}

/// Turns signals, and with `stdin` JSON lines on stdin, into commands. The first signal stops the
/// run with a checkpoint, the second ends the process at once. Gives the signal that came, 0 for
/// none.
fn listen(
    sender: &Sender<Command>,
    trainer: &Trainer,
    stdin: bool,
    stop_at_end: bool,
) -> Result<Arc<AtomicUsize>, CliError> {
    let came = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        flag::register_usize(signal, came.clone(), signal as usize).map_err(CliError::Signals)?;
    }
    let seen = Arc::new(AtomicUsize::new(0));
    let (stop, first, trainer) = (sender.clone(), seen.clone(), trainer.clone());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(50));
            match (came.swap(0, Ordering::SeqCst), first.load(Ordering::SeqCst)) {
                (0, _) => {}
                (signal, 0) => {
                    first.store(signal, Ordering::SeqCst);
                    let _ = stop.send(Command::Stop);
                    tell!("stopping with a checkpoint after this step; once more stops at once");
                }
                (signal, _) => {
                    trainer.kill();
                    signal_hook::low_level::exit(128 + signal as i32);
                }
            }
        }
    });
    if stdin {
        let sender = sender.clone();
        std::thread::spawn(move || read_commands(&sender, stop_at_end));
    }
    Ok(seen)
}

/// Commands that others write into the run folder while the run goes on, such as a window that was
/// opened later.
fn follow(file: PathBuf, sender: Sender<Command>) {
    let mut tail = Tail::<Command>::of(file, false);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(FOLLOW);
            for command in tail.read() {
                if sender.send(command).is_err() {
                    return;
                }
            }
        }
    });
}

fn read_commands(sender: &Sender<Command>, mut stop_at_end: bool) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(&line) {
            Ok(Command::Set { key, value }) if key == STOP_ON_EOF => stop_at_end = value != 0.0,
            Ok(command) => {
                if sender.send(command).is_err() {
                    return;
                }
            }
            Err(error) => tell!("warning: no command: {error}"),
        }
    }
    // Whoever paused the run can no longer resume it. A supervisor that is gone was ended: nobody
    // would start this run again, or stop it.
    let _ = sender.send(if stop_at_end { Command::Stop } else { Command::Resume });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_gets_what_was_typed() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        for (line, passed) in [
            ("wgpt train a.py --json --run out/x", "a.py"),
            (
                "wgpt --device cpu train --resume --run=out/x --data train",
                "--device cpu --data train",
            ),
            ("wgpt --headless --data train --stop-on-eof", "--data train"),
        ] {
            assert_eq!(passed_on(words(line).into_iter()), words(passed), "{line}");
        }
    }
}
