//! `wgpt train`, and `wgpt launch` with its ranks.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::args::{Global, LaunchArgs, TrainArgs};
use super::config_source::read_text;
use super::event_printer::{EventPrinter, print_event};
use super::run_list::{RUNS, newest_to_resume};
use super::{recipe, terminal};
use crate::config::{Config, InitFrom, Source, run_name};
use crate::disk;
use crate::protocol::{Event, Failure, RunSettings, StartRun};
use crate::ranks::Group;
use crate::runs::{self, CONFIG_FILE, NANOGPT_FILE, has_checkpoint};
use crate::worker::{
    Control, Messages, Place, RunOutput, host, launched, read_command, supervise, train,
};

/// The arguments of a rank that a launcher starts, as a value: each rank resolves them with the files and
/// the variables of its own machine.
#[derive(Serialize, Deserialize)]
struct RankArguments {
    train: TrainArgs,
    global: Global,
    /// Time that the run has taken in former processes.
    elapsed: Duration,
}

/// Trains, in this process or in one that this process supervises, or with `launcher` in `ranks`; returns
/// the exit code.
pub(super) fn run(
    args: TrainArgs,
    global: &Global,
    launcher: Vec<OsString>,
    ranks: u32,
) -> Result<ExitCode, Failure> {
    let json = args.json;
    let args = recipe::with_choice(args, global, ranks)?;
    let mut place = Place::of_this_process();
    let is_first = place.as_ref().is_none_or(Place::is_first);
    let mut output = EventPrinter::new(json, global.quiet, is_first);
    let say: fn(&str) = if is_first { terminal::message } else { |_| {} };
    let control = Control::listen(place.is_some(), say)?;
    let warn: fn(&Event) =
        if json { print_event } else { |event| message!("{}", event.labelled()) };
    if json && is_first {
        control.read_stdin(args.stop_on_close, |line| serde_json::from_str(line), warn);
    }
    let follow = |start: &StartRun| {
        if is_first {
            control.follow_file(&start.run, warn);
        }
    };
    let code = if place.is_some() {
        let elapsed = Duration::ZERO;
        train_rank(args, global, elapsed, &mut place, &control, follow, &mut output)
    } else {
        resolve(&args, global, &mut Group::alone()).and_then(|(start, warnings)| {
            follow(&start);
            if launcher.is_empty() {
                for text in warnings {
                    output.emit(&Event::Warning { text });
                }
                return host(start, !args.no_supervise, &control, say, &mut output);
            }
            let launch = |start: &StartRun| ranks_of(&launcher, &args, global, start);
            let emit = &mut |event: &Event| output.emit(event);
            supervise(start, Some(&launch), &control, say, emit).map_err(|error| {
                let text = format!("cannot start {}: {error}", launcher[0].to_string_lossy());
                let hint = "install Open MPI (on Debian and Ubuntu: openmpi-bin) or MPICH, or name \
                            its launcher with --mpirun";
                Failure::usage(text, hint)
            })
        })
    };
    Ok(ended(code, place.as_ref(), &output))
}

/// Runs `wgpt launch`: starts the ranks of a run with mpirun, and again after a failure.
pub(super) fn launch(args: LaunchArgs, global: &Global) -> Result<ExitCode, Failure> {
    let LaunchArgs { ranks, hostfile, mpirun, mpi, train: arguments } = args;
    if let Some(file) = hostfile.as_ref().filter(|file| !file.is_file()) {
        return Err(Failure::usage(
            format!("{}: no such hostfile", file.display()),
            "give a file with one machine per line, like `box1 slots=1`",
        ));
    }
    if refuses_root(&mpirun) && !mpi.iter().any(|argument| argument == AS_ROOT) {
        return Err(Failure::usage(
            "Open MPI refuses to run as root",
            format!("run as another user; in a container, add --mpi={AS_ROOT}"),
        ));
    }
    let mut launcher: Vec<OsString> = vec![mpirun.into(), "-np".into(), ranks.to_string().into()];
    if let Some(file) = hostfile {
        launcher.extend(["--hostfile".into(), file.into_os_string()]);
    }
    launcher.extend(mpi.into_iter().map(OsString::from));
    run(arguments, global, launcher, ranks)
}

/// The argument and the variables that make Open MPI start processes for root.
const AS_ROOT: &str = "--allow-run-as-root";
const ROOT_ALLOWED: [&str; 2] = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];

/// Returns true if this launcher is Open MPI's and refuses to run for the present user.
fn refuses_root(launcher: &str) -> bool {
    #[cfg(unix)]
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0);
    #[cfg(not(unix))]
    let is_root = false;
    if !is_root || ROOT_ALLOWED.iter().all(|name| std::env::var_os(name).is_some()) {
        return false;
    }
    let version = std::process::Command::new(launcher).arg("--version").output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"))
}

/// Returns the exit code of a run that has ended. Reports the error that ends this process, if any, and ends
/// the other ranks.
fn ended(code: Result<u8, Failure>, place: Option<&Place>, output: &impl RunOutput) -> ExitCode {
    ExitCode::from(code.unwrap_or_else(|failure| {
        let code = failure.exit as u8;
        match place {
            Some(place) => place.fail(failure, output.on_failure()),
            None => output.on_failure()(&failure),
        }
        code
    }))
}

/// Returns the command with which `launcher` starts the ranks of a run.
fn ranks_of(
    launcher: &[OsString],
    args: &TrainArgs,
    global: &Global,
    start: &StartRun,
) -> io::Result<Process> {
    let resume = start.resume || (start.is_restart && has_checkpoint(&start.run));
    // A run that restarts has recorded its decay.
    let decay = args.decay.filter(|_| !start.is_restart);
    let train = TrainArgs { run: Some(start.run.clone()), resume, decay, ..args.clone() };
    // The variables of another machine may differ.
    let global = global.with_device(&global.typed_device());
    let arguments = RankArguments { train, global, elapsed: start.elapsed };
    launched(launcher, &serde_json::to_string(&arguments)?)
}

/// Trains as one of the ranks that `wgpt launch` has started; returns the exit code.
pub(super) fn rank(arguments: &str) -> Result<ExitCode, Failure> {
    let RankArguments { train: args, global, elapsed } =
        serde_json::from_str(arguments).map_err(|error| {
            let text = format!("the launcher has changed the arguments of a rank: {error}");
            Failure::usage(text, "give the launcher's program with --mpirun, not a script")
        })?;
    super::start_logging(global.verbose);
    let mut place = Place::of_this_process();
    let is_first = place.as_ref().is_none_or(Place::is_first);
    let mut output = Messages::ready(terminal::message, is_first);
    // A launcher ends all ranks with a signal when one has failed.
    let control = Control::listen(true, |_| {})?;
    if is_first {
        // If the supervisor is killed, nothing is left to restart this run, or to stop it.
        control.read_stdin(true, read_command, |event| message!("{}", event.labelled()));
    }
    let code = train_rank(args, &global, elapsed, &mut place, &control, |_| {}, &mut output);
    // The exit code after a signal is the supervisor's business: the signal reaches it, too.
    Ok(ended(code.map(|_| 0), place.as_ref(), &output))
}

/// Trains as one of several ranks, or alone if the launcher has started no other; returns the exit code.
/// `follow` gets the start of the run.
fn train_rank(
    args: TrainArgs,
    global: &Global,
    elapsed: Duration,
    place: &mut Option<Place>,
    control: &Control,
    follow: impl FnOnce(&StartRun),
    output: &mut dyn RunOutput,
) -> Result<u8, Failure> {
    let (mut group, device) = match place {
        Some(place) => {
            let group = place.connect(args.rank_limit, terminal::message)?;
            (group, global.device_of_rank(place.launch.local_rank)?)
        }
        None => (Group::alone(), global.device_of_rank(0)?),
    };
    let (start, warnings) = resolve(&args, global, &mut group)?;
    follow(&start);
    for text in warnings {
        output.emit(&Event::Warning { text });
    }
    let start = StartRun { elapsed, device, ..start };
    train(start, None, place.as_ref(), group, control, output)
}

/// Resolves the run folder and the configuration, on several ranks from what rank 0 has on its disk.
/// Returns the warnings too.
fn resolve(
    args: &TrainArgs,
    global: &Global,
    group: &mut Group,
) -> Result<(StartRun, Vec<String>), Failure> {
    let TrainArgs { source, run, resume, decay, share, .. } = args.clone();
    let is_first = group.is_first();
    let name = source.name();
    let run = run.or_else(|| source.typed("out_dir").map(PathBuf::from));
    let resume = resume || source.typed("init_from").as_deref() == Some("resume");
    // A named configuration may have a run folder of its own.
    let run = match run {
        None if resume && is_first && !source.is_named() => Some(newest_to_resume(global.quiet)?),
        run => run,
    };
    let saved = match &run {
        Some(run) if resume && is_first => Some(saved_config(run)?),
        _ => None,
    };
    let resolved = source.resolve(Vec::new(), group.share(saved)?.as_ref())?;
    let plans_schedule = !resolved.sets_length();
    let mut config = resolved.config.clone();
    let resume = resume || config.init_from == InitFrom::Resume;
    let run = if is_first { run_folder(run, &config, resume, &name)? } else { PathBuf::new() };
    // Unless another dtype is asked for, a run keeps the one that `auto` has become.
    let sets_dtype = resolved.provenance.get("dtype").is_none_or(|at| at.source != Source::Default);
    if let (true, false, Some(before)) = (resume && is_first, sets_dtype, runs::config(&run)) {
        config.dtype = before.dtype;
    }
    let settings = RunSettings::Resolved { config: Box::new(config), plans_schedule };
    let shared = StartRun { resume, ..StartRun::new(run, settings) }.shared(group, &resolved)?;
    let start = StartRun {
        decay,
        device: global.typed_device(),
        implementation: global.ops()?.implementation,
        self_test: global.self_test(),
        shares: share,
        verbose: global.verbose,
        quiet: global.quiet,
        ..shared
    };
    Ok((start, resolved.warnings))
}

/// Reads the configuration of a run to resume. Returns its file, for messages, and its text.
fn saved_config(run: &Path) -> Result<(String, String), Failure> {
    let config = run.join(CONFIG_FILE);
    if disk::try_exists(&config).map_err(Failure::file(&config))? {
        disk::check_own(&config).map_err(Failure::file(&config))?;
        return read_text(&config);
    }
    let hint = if run.join(NANOGPT_FILE).exists() {
        "continue from nanoGPT's weights with --init_from=DIR/ckpt.pt and a new --run"
    } else {
        "`wgpt runs` lists the runs in out/; give one with --run, or leave out --resume"
    };
    let text = format!("{}: no run of wgpt to resume (no {CONFIG_FILE})", run.display());
    Err(Failure::usage(text, hint))
}

/// Returns the given run folder, else the folder of the configuration, else a new one.
fn run_folder(
    typed: Option<PathBuf>,
    config: &Config,
    resume: bool,
    name: &str,
) -> Result<PathBuf, Failure> {
    let configured = || (!config.out_dir.is_empty()).then(|| PathBuf::from(&config.out_dir));
    if let Some(run) = typed.or_else(configured) {
        return Ok(run);
    }
    if resume {
        return Err(Failure::usage(
            "--resume with a configuration does not say which run to resume",
            "give its folder with --run, or leave the configuration out to resume the newest",
        ));
    }
    let name = run_name(name, config);
    let mut new = (1u32..).map(|number| Path::new(RUNS).join(format!("{name}-{number}")));
    Ok(new.find(|path| !path.exists()).unwrap_or_else(|| PathBuf::from(RUNS)))
}
