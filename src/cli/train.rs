//! `wgpt train`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::args::{Global, TrainArgs};
use super::input::{follow_file, handle_signals, read_stdin};
use super::report::Report;
use super::runs::{RUNS, newest_to_resume};
use super::watch::{FailureOutput, watch};
use super::{CliError, terminal};
use crate::config::{Config, InitFrom, Provenance, run_name};
use crate::gpu::{self, Backend, DeviceChoice, DeviceError, OpenDevice, SelectedDevice};
use crate::protocol::{Command, Event, StopReason};
use crate::run_index;
use crate::supervisor::{Supervisor, TrainerProcess};
use crate::train::{COMMANDS_FILE, CONFIG_FILE, NANOGPT_FILE, Request, Session, Setup, TrainError};

/// The end of a run.
enum Outcome {
    /// It trained in this process.
    Stopped(StopReason),
    /// It trained in a child process, which exited with this code.
    Code(u8),
}

/// Trains, in this process or in one that this process supervises; returns the exit code.
pub(super) fn run(args: TrainArgs, global: &Global) -> Result<ExitCode, CliError> {
    let (json, supervised) = (args.json, args.supervised);
    let mut report = Report::new(json, global.quiet);
    let (sender, commands) = channel();
    let trainer = TrainerProcess::default();
    let signal = handle_signals(sender.clone(), trainer.clone())?;
    if json {
        // If the supervisor is killed, nothing is left to restart this run, or to stop it.
        read_stdin(sender.clone(), args.stop_on_close || supervised);
    }
    let result = train(args, global, &mut report, trainer, sender, &commands);
    if let (true, Err(error)) = (json, &result) {
        let (text, hint, cause) = (error.to_string(), error.hint().to_string(), error.cause());
        report.show(&Event::Error { text, hint, cause });
        if supervised && cause.is_some() {
            // The supervisor reports it if it ends the run.
            return Ok(ExitCode::from(error.exit_code()));
        }
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

fn train(
    args: TrainArgs,
    global: &Global,
    report: &mut Report,
    trainer: TrainerProcess,
    sender: Sender<Command>,
    commands: &Receiver<Command>,
) -> Result<Outcome, CliError> {
    let (choice, mode) = (global.device()?, global.ops()?);
    let name = args.source.name();
    let run = args.run.or_else(|| args.source.typed("out_dir").map(PathBuf::from));
    let resume = args.resume || args.source.typed("init_from").as_deref() == Some("resume");
    // A named configuration may have a run folder of its own.
    let run = match run {
        None if resume && !args.source.is_named() => Some(newest_to_resume(global.quiet)?),
        run => run,
    };
    let saved = run.as_ref().filter(|_| resume).map(|run| run.join(CONFIG_FILE));
    if let Some(config) = &saved {
        check_is_run(config)?;
    }
    let resolved = args.source.resolve(saved.as_deref())?;
    let plans_schedule = !resolved.sets_length();
    let mut config = resolved.config;
    let resume = resume || config.init_from == InitFrom::Resume;
    let run = run_folder(run, &config, resume, &run_name(&name, &config))?;
    // Unless another dtype is asked for, a run keeps the one that `auto` has become.
    let sets_dtype = !matches!(resolved.provenance.get("dtype"), Some(Provenance::Default));
    if let (true, false, Some(before)) = (resume, sets_dtype, run_index::config(&run)) {
        config.dtype = before.dtype;
    }
    if !args.supervised {
        follow_file(run.join(COMMANDS_FILE), sender, args.json);
    }
    if !args.no_supervise && !args.supervised && uses_gpu(choice) {
        let supervisor = Supervisor {
            program: std::env::current_exe().map_err(CliError::Process)?,
            args: passed_on(std::env::args_os()),
            device: match choice {
                DeviceChoice::Auto => "auto".into(),
                DeviceChoice::Named(id) => id.to_string(),
            },
            run,
            resume,
            trainer,
            emit: &mut |event| show_supervised(event, report, args.json),
            say: terminal::message,
        };
        return Ok(Outcome::Code(supervisor.run(commands).map_err(CliError::Process)?));
    }
    for text in resolved.warnings {
        report.show(&Event::Warning { text });
    }
    let elapsed = Duration::from_secs(args.elapsed);
    let request = Request { config, run, resume, mode, plans_schedule, elapsed };
    let setting_up = report.set_up();
    let (setup, device) = set_up(&request, choice, args.device_name.as_deref(), report)?;
    watch(&device, FailureOutput::new(args.json, args.supervised), true);
    if !global.quiet {
        let OpenDevice { info, reason, .. } = &device;
        report.say(&format!("device: {} ({}), {reason}", info.name, info.id));
        let precision = request.mode.abilities(info).explain(request.config.dtype);
        report.say(&format!("precision: {precision}"));
    }
    let mut emit = |event: &Event| report.show(event);
    let mut session = Session::open(setup, device, &mut emit)?;
    drop(setting_up);
    Ok(Outcome::Stopped(pollster::block_on(session.run(&mut { commands }))?))
}

/// Shows an event of a supervised run. The trainer has printed errors to stderr, except for
/// failures of the device.
fn show_supervised(event: &Event, report: &mut Report, json: bool) {
    match event {
        Event::Error { cause: None, .. } if !json => {}
        Event::Error { cause: Some(_), .. } if json => {
            report.show(event);
            message!("{event}");
        }
        event => report.show(event),
    }
}

/// Checks that a run to resume exists.
fn check_is_run(config: &Path) -> Result<(), CliError> {
    if config.exists() {
        return Ok(());
    }
    let run = config.parent().unwrap_or(config);
    let hint = match run.join(NANOGPT_FILE).exists() {
        true => "continue from nanoGPT's weights with --init_from=DIR/ckpt.pt and a new --run",
        false => "`wgpt runs` lists the runs in out/; give one with --run, or leave out --resume",
    };
    let what = format!("{}: no run of wgpt to resume (no {CONFIG_FILE})", run.display());
    Err(CliError::Usage { what, hint })
}

/// Returns true if the device can fail in ways that only the end of its process clears.
fn uses_gpu(choice: DeviceChoice) -> bool {
    match choice {
        DeviceChoice::Named(id) => id.backend != Backend::Cpu,
        DeviceChoice::Auto => {
            gpu::select(choice).is_ok_and(|found| found.info.id.backend != Backend::Cpu)
        }
    }
}

/// Returns the arguments of this process for its trainer, without those that the supervisor sets.
fn passed_on(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut passed = Vec::new();
    let mut command = false;
    let mut args = super::headless_as_train(args).into_iter().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            // A second `train` is a value.
            Some("train") if !command => command = true,
            Some("--json" | "--resume" | "--stop-on-close") => {}
            // Their values are the next arguments.
            Some("--run" | "--device") => drop(args.next()),
            Some(arg) if arg.starts_with("--run=") || arg.starts_with("--device=") => {}
            _ => passed.push(arg),
        }
    }
    passed
}

/// Sets the run up, then opens its device: a run that does not fit is refused before that. `name`
/// is the name of the device that the run has used so far.
fn set_up(
    request: &Request,
    choice: DeviceChoice,
    name: Option<&str>,
    report: &mut Report,
) -> Result<(Setup, OpenDevice), CliError> {
    let mut found = gpu::select(choice).map_err(TrainError::from)?;
    check_name(&found, name)?;
    loop {
        if let Some(text) = request.mode.confirm(request.config.dtype, &mut found) {
            report.show(&Event::Warning { text });
        }
        let setup = Setup::new(request.clone(), &found.info)?;
        match found.open(setup.precision()) {
            Ok(device) => return Ok((setup, device)),
            Err(error) => found = found.fallback(error).map_err(TrainError::from)?,
        }
    }
}

/// Refuses another device in the place of a lost one: with a GPU gone, `vulkan:0` may be a software
/// renderer.
fn check_name(found: &SelectedDevice, name: Option<&str>) -> Result<(), DeviceError> {
    match name {
        Some(name) if name != found.info.name => Err(DeviceError::Open {
            id: found.info.id,
            name: name.to_string(),
            reason: format!("{} has taken its place", found.info.name),
        }),
        _ => Ok(()),
    }
}

/// Returns the given run folder, else that of the configuration, else a new one.
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
            what: "--resume with a configuration needs the run that it is for".into(),
            hint: "give its folder with --run, or leave the configuration out to resume the newest",
        });
    }
    let free = (1u32..).map(|number| Path::new(RUNS).join(format!("{name}-{number}")));
    Ok(free.into_iter().find(|path| !path.exists()).unwrap_or_else(|| PathBuf::from(RUNS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_is_passed_what_the_supervisor_does_not_set() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        for (line, passed) in [
            ("wgpt train a.py --json --run out/x", "a.py"),
            ("wgpt --device cpu train --resume --run=out/x --data train", "--data train"),
            ("wgpt --headless --data train --stop-on-close", "--data train"),
        ] {
            assert_eq!(passed_on(words(line).into_iter()), words(passed), "{line}");
        }
    }
}
