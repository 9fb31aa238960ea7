//! `wgpt train`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::args::{ConfigSource, Global, TrainArgs};
use super::config_source::Saved;
use super::event_printer::EventPrinter;
use super::input::{Sent, follow_file, handle_signals, read_stdin};
use super::rank_process::{Place, Start};
use super::run_list::{RUNS, newest_to_resume};
use super::watch::{FailureOutput, Watched, watch};
use super::{CliError, terminal};
use crate::config::{Config, InitFrom, Provenance, run_name};
use crate::gpu::{self, Backend, DeviceChoice, DeviceError, OpenDevice, SelectedDevice};
use crate::protocol::{Command, Event, StopReason};
use crate::ranks::Group;
use crate::runs;
use crate::runs::{COMMANDS_FILE, CONFIG_FILE, NANOGPT_FILE};
use crate::train::{Request, Session, Setup, TrainError};
use crate::worker::{Supervisor, TrainerProcess};

/// The end of a run.
enum Outcome {
    /// It trained in this process.
    Stopped(StopReason),
    /// It trained in a child process, which exited with this code.
    Code(u8),
}

/// Trains, in this process or in one that this process supervises, or with `launcher` in several;
/// returns the exit code.
pub(super) fn run(
    args: TrainArgs,
    global: &Global,
    launcher: Vec<OsString>,
) -> Result<ExitCode, CliError> {
    let (json, supervised) = (args.json, args.supervised);
    let mut place = Place::of_this_process();
    let is_first = place.as_ref().is_none_or(Place::is_first);
    let mut report = match is_first {
        true => EventPrinter::new(json, global.quiet),
        false => EventPrinter::silent(),
    };
    let (sender, commands) = channel();
    let trainer = TrainerProcess::default();
    // A launcher ends all ranks with a signal when one has failed.
    let silent = !is_first || (place.is_some() && supervised);
    let sent = if place.is_some() { Sent::ByLauncher } else { Sent::Directly };
    let signal = handle_signals(sender.clone(), trainer.clone(), sent, silent)?;
    if json && is_first {
        // If the supervisor is killed, nothing is left to restart this run, or to stop it.
        read_stdin(sender.clone(), args.stop_on_close || supervised);
    }
    let process = Trainer { place: place.as_mut(), launcher, trainer };
    let result = train(args, global, &mut report, process, sender, &commands);
    if let (Some(place), Err(error)) = (&place, &result) {
        return Ok(place.fail(error, json, supervised));
    }
    if let (true, Err(error)) = (json, &result) {
        let (text, cause) = (error.to_string(), error.cause());
        let hint = error.hint().unwrap_or_default();
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

/// The processes that train.
struct Trainer<'a> {
    /// The place of this process among the ranks of a run, if it is one.
    place: Option<&'a mut Place>,
    /// The program that starts several processes, and its arguments; empty for one process.
    launcher: Vec<OsString>,
    /// The process that this one supervises, if it does.
    trainer: TrainerProcess,
}

fn train(
    args: TrainArgs,
    global: &Global,
    report: &mut EventPrinter,
    process: Trainer<'_>,
    sender: Sender<Command>,
    commands: &Receiver<Command>,
) -> Result<Outcome, CliError> {
    let Trainer { mut place, launcher, trainer } = process;
    let mut group = match &mut place {
        Some(place) => place.connect(args.rank_limit)?,
        None => Group::alone(),
    };
    let choice = match &place {
        Some(place) => global.device_of_rank(place.local_rank())?,
        None => global.device()?,
    };
    let mode = global.ops()?;
    let (json, supervised) = (args.json, args.supervised);
    let (start, warnings) = resolve(args.source, args.run, args.resume, global, &mut group)?;
    if !supervised && group.is_first() {
        follow_file(start.run.join(COMMANDS_FILE), sender, json);
    }
    let can_supervise = !args.no_supervise && !supervised && place.is_none();
    if !launcher.is_empty() || (can_supervise && uses_gpu(choice)) {
        let device = match choice {
            // Each rank has the device of its own number.
            _ if !launcher.is_empty() => global.typed_device(),
            DeviceChoice::Auto => "auto".into(),
            DeviceChoice::Named(id) => id.to_string(),
        };
        return supervise(start, device, launcher, trainer, report, json, commands);
    }
    for text in warnings {
        report.show(&Event::Warning { text });
    }
    let Start { run, resume, plans_schedule, config } = start;
    let elapsed = Duration::from_secs(args.elapsed);
    let (shares, wire) = (args.share, args.allreduce_dtype);
    let request = Request { config, run, resume, mode, plans_schedule, elapsed, shares, wire };
    let setting_up = report.set_up();
    let selected = match &place {
        Some(place) => gpu::select_for_rank(choice, place.local_rank()),
        None => gpu::select(choice),
    };
    let selected = selected.map_err(TrainError::from)?;
    check_name(&selected, args.device_name.as_deref())?;
    let (setup, device) = set_up(&request, selected, group, report)?;
    let watched = match &place {
        Some(place) => Watched::Rank { label: place.label(), limit: setup.plan_limit() },
        None => Watched::Run,
    };
    watch(&device, FailureOutput::new(json, supervised), watched);
    if !global.quiet {
        let OpenDevice { info, reason, .. } = &device;
        report.say(&format!("device: {} ({}), {reason}", info.name, info.id));
        let precision = request.mode.abilities(info).explain(request.config.dtype);
        report.say(&format!("precision: {precision}"));
    }
    let mut emit = |event: &Event| report.show(event);
    let mut session = Session::open(setup, device, &mut emit)?;
    drop(setting_up);
    let reason = pollster::block_on(session.run(&mut { commands }))?;
    session.finish()?;
    Ok(Outcome::Stopped(reason))
}

/// Resolves the run folder and the configuration, on several ranks from what rank 0 has on its disk.
/// Returns the warnings too.
fn resolve(
    source: ConfigSource,
    run: Option<PathBuf>,
    resume: bool,
    global: &Global,
    group: &mut Group,
) -> Result<(Start, Vec<String>), CliError> {
    let is_first = group.is_first();
    let name = source.name();
    let run = run.or_else(|| source.typed("out_dir").map(PathBuf::from));
    let resume = resume || source.typed("init_from").as_deref() == Some("resume");
    // A named configuration may have a run folder of its own.
    let run = match run {
        None if resume && is_first && !source.is_named() => Some(newest_to_resume(global.quiet)?),
        run => run,
    };
    let saved = run.as_ref().filter(|_| resume && is_first).map(|run| run.join(CONFIG_FILE));
    if let Some(config) = &saved {
        check_is_run(config)?;
    }
    let saved = group.share(saved.as_deref().map(Saved::read).transpose()?)?;
    let resolved = source.resolve(saved.as_ref())?;
    let plans_schedule = !resolved.sets_length();
    let mut config = resolved.config.clone();
    let resume = resume || config.init_from == InitFrom::Resume;
    let run = match is_first {
        true => run_folder(run, &config, resume, &run_name(&name, &config))?,
        false => PathBuf::new(),
    };
    // Unless another dtype is asked for, a run keeps the one that `auto` has become.
    let sets_dtype = !matches!(resolved.provenance.get("dtype"), Some(Provenance::Default));
    if let (true, false, Some(before)) = (resume && is_first, sets_dtype, runs::config(&run)) {
        config.dtype = before.dtype;
    }
    let start = Start { run, resume, plans_schedule, config }.shared(group, &resolved)?;
    Ok((start, resolved.warnings))
}

/// Trains in a process that this one supervises, or in several that `launcher` starts.
fn supervise(
    start: Start,
    device: String,
    launcher: Vec<OsString>,
    trainer: TrainerProcess,
    report: &mut EventPrinter,
    json: bool,
    commands: &Receiver<Command>,
) -> Result<Outcome, CliError> {
    let starts = launcher.first().map(|program| program.to_string_lossy().into_owned());
    let supervisor = Supervisor {
        program: std::env::current_exe().map_err(CliError::Process)?,
        launcher,
        args: passed_on(std::env::args_os()),
        device,
        run: start.run,
        resume: start.resume,
        trainer,
        emit: &mut |event| show_supervised(event, report, json),
        say: terminal::message,
    };
    let ended = supervisor.run(commands).map_err(|error| match starts {
        Some(program) => CliError::Launcher { program, error },
        None => CliError::Process(error),
    });
    Ok(Outcome::Code(ended?))
}

/// Shows an event of a supervised run. The trainer has printed errors to stderr, except for
/// failures of the device.
fn show_supervised(event: &Event, report: &mut EventPrinter, json: bool) {
    match event {
        Event::Error { cause: None, .. } if !json => {}
        Event::Error { cause: Some(_), .. } if json => {
            report.show(event);
            message!("{}", event.labelled());
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

/// The flags with a value that the supervisor sets itself, and those of the launcher.
const SET_BY_SUPERVISOR: [&str; 7] =
    ["--run", "--device", "-n", "--ranks", "--hostfile", "--mpirun", "--mpi"];

/// Returns true for `--flag=value`, and for `-n4`.
fn is_assignment(arg: &str, flag: &str) -> bool {
    arg.strip_prefix(flag).is_some_and(|rest| match flag.starts_with("--") {
        true => rest.starts_with('='),
        false => !rest.is_empty(),
    })
}

/// Returns the arguments of this process for its trainer, without those that the supervisor sets.
fn passed_on(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut passed = Vec::new();
    let mut command = false;
    let mut args = super::headless_as_train(args).into_iter().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            // A second `train` is a value.
            Some("train" | "launch") if !command => command = true,
            Some("--json" | "--resume" | "--stop-on-close") => {}
            // Their values are the next arguments.
            Some(flag) if SET_BY_SUPERVISOR.contains(&flag) => drop(args.next()),
            Some(arg) if SET_BY_SUPERVISOR.iter().any(|flag| is_assignment(arg, flag)) => {}
            _ => passed.push(arg),
        }
    }
    passed
}

/// Sets the run up, then opens its device: a run that does not fit is refused before that.
fn set_up(
    request: &Request,
    mut found: SelectedDevice,
    group: Group,
    report: &mut EventPrinter,
) -> Result<(Setup, OpenDevice), CliError> {
    // Ranks have no other device to try, and agree once.
    let mut group = Some(group);
    loop {
        if let Some(text) = request.mode.confirm(request.config.dtype, &mut found) {
            report.show(&Event::Warning { text });
        }
        let group = group.take().unwrap_or_else(Group::alone);
        let setup = Setup::new(request.clone(), &found.info, group)?;
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
            ("wgpt launch -np 4 --mpi=-x --hostfile h --share=2,1 --run r", "--share=2,1"),
            ("wgpt launch -n4 --ranks=4 -q", "-q"),
        ] {
            assert_eq!(passed_on(words(line).into_iter()), words(passed), "{line}");
        }
    }
}
