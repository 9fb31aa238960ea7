//! `wgpt train`, and `wgpt launch` with its ranks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::de::Error;

use super::args::{Global, LaunchArgs, TrainArgs, device_of_rank};
use super::event_printer::{EventPrinter, print_event};
use super::run_list::{RUNS, newest_to_resume};
use super::{on_finish, recipe, terminal};
use crate::config::{Config, ConfigSource, InitFrom, Source, run_name};
use crate::disk;
use crate::protocol::{Command, Event, Failure, RunSettings, StartRun};
use crate::ranks::Group;
use crate::runs::{self, CONFIG_FILE, ModelSource, NANOGPT_FILE, has_checkpoint};
use crate::worker::{
    Control, RankProcess, RunOutput, WorkerOutput, flag_or_variable, host, notify, read_command,
    read_text, supervise, train,
};

/// Nobody needs to be told of the end of a shorter run.
const NOTICED: Duration = Duration::from_secs(10);

/// Trains in this process, in one that it supervises, or in the `ranks` that `launcher` starts. Returns the exit
/// code.
pub(super) fn run(
    mut args: TrainArgs,
    global: &Global,
    launcher: Vec<OsString>,
    ranks: u32,
) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let json = args.json;
    let mut expected = None;
    let prints_each = args.source.typed("log_interval").is_some();
    if !args.resume {
        (args.source, expected) = recipe::with_choice(args.source, global, ranks)?;
    }
    let mut rank = RankProcess::of_this_process();
    let is_first = rank.as_ref().is_none_or(RankProcess::is_first);
    let printer = EventPrinter::new(json, global.quiet, is_first, prints_each);
    let mut output = printer.expecting(expected);
    let say: fn(&str) = if is_first { terminal::message } else { |_| {} };
    let control = Control::listen(rank.is_some(), say)?;
    let warn: fn(&Event) =
        if json { print_event } else { |event| message!("{}", event.labelled()) };
    if json && is_first {
        control.read_stdin(args.stop_on_close, typed_command, warn);
    }
    let follow = |start: &StartRun| {
        if is_first {
            control.follow_file(&start.run, warn);
        }
    };
    let supervised = !args.no_supervise;
    let on_finish = flag_or_variable(args.on_finish.as_deref(), "WGPT_ON_FINISH");
    let code = start_of(args, global).and_then(|start| {
        if rank.is_some() {
            if may_stand_by(&start) {
                let text =
                    "hours and priority=background need a process that starts the ranks again";
                return Err(Failure::usage(text, "use `wgpt launch`, or leave them out"));
            }
            return train_rank(start, &mut rank, &control, follow, &mut output);
        }
        let (resolved, warnings) = resolve(start.clone(), &mut Group::alone())?;
        let config = resolved.config().unwrap_or_default();
        if !supervised && config.may_stand_by() {
            let text =
                "hours and priority=background need the process that --no-supervise leaves out";
            return Err(Failure::usage(text, "leave out --no-supervise, or these settings"));
        }
        follow(&resolved);
        if launcher.is_empty() {
            warnings.into_iter().for_each(|text| output.warn(text));
            return host(resolved, supervised, &control, say, &mut output);
        }
        // Each rank resolves the settings with the files and variables of its machine.
        let start = StartRun { run: resolved.run, resume: resolved.resume, ..start };
        let emit = &mut |event: &Event| output.emit(event);
        supervise(start, Some(&launcher), &config, &control, say, emit).map_err(|error| {
            let text = format!("cannot start {}: {error}", launcher[0].to_string_lossy());
            let hint = "install Open MPI (on Debian and Ubuntu: openmpi-bin) or MPICH, or name \
                        its launcher with --mpirun";
            Failure::usage(text, hint)
        })
    });
    let code = ended(code, rank.as_ref(), &output);
    if let Some(run) = output.ended_by_itself()
        && is_first
        // A signal of a person, whatever the run has made of it.
        && control.exit_code() == 0
    {
        if began.elapsed() > NOTICED && runs::config(run).is_none_or(|config| config.notify) {
            let [title, text] = output.result(run);
            notify(&title, &text).wait();
        }
        if let Some(command) = on_finish {
            on_finish::run(&command, run);
        }
    }
    Ok(code)
}

/// Returns true if the typed settings of a run let it stand by. Those of a resumed run may be valid only with its record.
fn may_stand_by(start: &StartRun) -> bool {
    let RunSettings::Typed(source) = &start.settings else { return false };
    source.clone().resolve(Vec::new(), None).is_ok_and(|resolved| resolved.config.may_stand_by())
}

/// Reads a command of a line of stdin.
fn typed_command(line: &str) -> serde_json::Result<Command> {
    match serde_json::from_str(line)? {
        Command::StandBy => {
            Err(serde_json::Error::custom("stand_by: a run itself decides when it stands by"))
        }
        command => Ok(command),
    }
}

fn start_of(args: TrainArgs, global: &Global) -> Result<StartRun, Failure> {
    Ok(StartRun {
        run: args.run.unwrap_or_default(),
        resume: args.resume,
        decay: args.decay,
        shares: args.share,
        rank_limit: args.rank_limit,
        ..start_with(args.source, global)?
    })
}

/// Returns the start of a run with typed settings, on the device of the command.
pub(super) fn start_with(source: ConfigSource, global: &Global) -> Result<StartRun, Failure> {
    Ok(StartRun {
        device: global.typed_device(),
        implementation: global.ops()?.implementation,
        self_test: global.self_test(),
        verbose: global.verbose,
        quiet: global.quiet,
        ..StartRun::new(PathBuf::new(), RunSettings::Typed(source))
    })
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
fn ended(
    code: Result<u8, Failure>,
    rank: Option<&RankProcess>,
    output: &impl RunOutput,
) -> ExitCode {
    ExitCode::from(code.unwrap_or_else(|failure| {
        let code = failure.exit as u8;
        match rank {
            Some(rank) => rank.fail(failure, output.on_failure()),
            None => output.on_failure()(&failure),
        }
        code
    }))
}

/// Trains as one of the ranks that `wgpt launch` has started; returns the exit code.
pub(super) fn rank(start: &str) -> Result<ExitCode, Failure> {
    let start: StartRun = serde_json::from_str(start).map_err(|error| {
        let text = format!("the launcher has changed the arguments of a rank: {error}");
        Failure::usage(text, "give the launcher's program with --mpirun, not a script")
    })?;
    super::start_logging(start.verbose);
    let mut rank = RankProcess::of_this_process();
    let is_first = rank.as_ref().is_none_or(RankProcess::is_first);
    let mut output = WorkerOutput::ready(terminal::message, is_first);
    // A launcher ends all ranks with a signal when one has failed.
    let control = Control::listen(true, |_| {})?;
    if is_first {
        // If the supervisor is killed, nothing is left to restart this run, or to stop it.
        control.read_stdin(true, read_command, |event| message!("{}", event.labelled()));
    }
    let code = train_rank(start, &mut rank, &control, |_| {}, &mut output);
    // A signal also reaches the supervisor, which decides on the exit code.
    Ok(ended(code.map(|_| 0), rank.as_ref(), &output))
}

/// Trains as one of several ranks, or alone if the launcher has started no other; returns the exit code.
/// `follow` gets the start of the run.
fn train_rank(
    start: StartRun,
    rank: &mut Option<RankProcess>,
    control: &Control,
    follow: impl FnOnce(&StartRun),
    output: &mut dyn RunOutput,
) -> Result<u8, Failure> {
    let mut group = match rank {
        Some(rank) => rank.connect(start.rank_limit, terminal::message)?,
        None => Group::alone(),
    };
    let launch = rank.as_ref().map(|rank| &rank.launch);
    let device = device_of_rank(&start.device, launch.map_or(0, |launch| launch.local_rank))?;
    let (start, warnings) = resolve(start, &mut group)?;
    follow(&start);
    warnings.into_iter().for_each(|text| output.warn(text));
    train(StartRun { device, ..start }, None, launch, group, control, output)
}

/// Resolves the run folder and the settings of a start. Several ranks use the files of rank 0. Also returns the
/// warnings.
pub(super) fn resolve(
    start: StartRun,
    group: &mut Group,
) -> Result<(StartRun, Vec<String>), Failure> {
    let RunSettings::Typed(source) = start.settings else { return Ok((start, Vec::new())) };
    let is_first = group.is_first();
    let name = source.name();
    let run = Some(start.run).filter(|run| *run != Path::new(""));
    let run = run.or_else(|| source.typed("out_dir").map(PathBuf::from));
    let resume = start.resume || source.typed("init_from").as_deref() == Some("resume");
    // A named configuration may name the run folder.
    let run = match run {
        None if resume && is_first && !source.is_named() => Some(newest_to_resume(start.quiet)?),
        run => run,
    };
    let saved = match &run {
        Some(run) if resume && is_first => Some(saved_config(run)?),
        _ => None,
    };
    let saved = group.share(saved)?;
    let resolved = source.resolve_as(Vec::new(), saved.as_ref(), resume || !is_first)?;
    if let (InitFrom::Path(model), true, false) = (&resolved.config.init_from, is_first, resume) {
        ModelSource::open(model.as_ref())?;
    }
    let plans_schedule = !resolved.sets_length();
    let mut config = resolved.config.clone();
    let resume = resume || config.init_from == InitFrom::Resume;
    let run = if is_first { run_folder(run, &config, resume, &name)? } else { PathBuf::new() };
    // Unless another dtype is set, a run keeps the one that `auto` has become.
    let sets_dtype = resolved.provenance.get("dtype").is_none_or(|at| at.source != Source::Default);
    if let (true, false, Some(before)) = (resume && is_first, sets_dtype, runs::config(&run)) {
        config.dtype = before.dtype;
    }
    let settings = RunSettings::Resolved { config: Box::new(config), plans_schedule };
    let shared = StartRun { resume, ..StartRun::new(run, settings) }.shared(group, &resolved)?;
    let StartRun { run, settings, resume, .. } = shared;
    Ok((StartRun { run, settings, resume, ..start }, resolved.warnings))
}

/// Reads the configuration of a run to resume. Returns its file, for messages, and its text.
fn saved_config(run: &Path) -> Result<(String, String), Failure> {
    let config = run.join(CONFIG_FILE);
    if disk::try_exists(&config).map_err(Failure::file(&config))? {
        disk::check_own(&config).map_err(Failure::file(&config))?;
        return read_text(&config);
    }
    let hint = if run.join(NANOGPT_FILE).exists() {
        "continue from nanoGPT's weights with --init_from=DIR/ckpt.pt and a new --run".to_owned()
    } else if has_checkpoint(run) {
        format!(
            "start a new run from its weights, with --init_from={} and a new --run",
            run.display()
        )
    } else {
        "`wgpt runs` lists the runs in out/; give one with --run, or leave out --resume".to_owned()
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
