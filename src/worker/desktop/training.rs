//! Trains a run in this process.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::pipe::WorkerProcess;
use super::place::Place;
use super::supervise::supervise;
use super::watch::{Watched, watch};
use crate::gpu::{self, Backend, DeviceChoice, DeviceError, OpenDevice, SelectedDevice};
use crate::protocol::{Command, Event, Failure, RunEnd, StartRun, StopReason, Task, Working};
use crate::ranks::Group;
use crate::train::{Request, Session, Setup, TrainError};

/// The time that the setup of a run must have lasted before it is reported as an event.
const MOMENT: Duration = Duration::from_millis(250);

/// The receiver of what happens in a run.
pub(crate) trait RunOutput {
    /// Takes an event.
    fn emit(&mut self, event: &Event);

    /// Takes a message for people.
    fn say(&self, text: &str);

    /// Reports that the run is being set up, until the returned value is dropped.
    fn set_up(&mut self) -> Option<Sender<()>>;

    /// Returns the function that reports a failure of the device, after which the process exits.
    fn on_failure(&self) -> fn(&Failure);
}

/// The event of a run that is being set up.
pub(crate) const SETTING_UP: Event =
    Event::Working(Working { task: Task::Data, done: 0, total: 0 });

/// Prints [`SETTING_UP`] if it lasts a moment: until the returned value is dropped.
pub(crate) fn print_set_up(print: fn(&Event)) -> Sender<()> {
    let (guard, ended) = channel();
    std::thread::spawn(move || {
        // A dropped guard is another error.
        if ended.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
            print(&SETTING_UP);
        }
    });
    guard
}

/// The place of a run in this process.
pub(crate) struct Here<'a> {
    /// The place of this process among the ranks of the run, if it is one.
    pub place: Option<&'a Place>,
    pub group: Group,
    pub device: DeviceChoice,
    /// The name of the device that former workers have opened.
    pub device_name: Option<String>,
    pub quiet: bool,
}

/// Trains a run that `start` describes, in this process or, if its device can fail and `supervised` is
/// set, in a worker that this process supervises. Returns the end, and the exit code of that worker.
pub(crate) fn host(
    mut start: StartRun,
    supervised: bool,
    process: WorkerProcess,
    commands: &Receiver<Command>,
    say: fn(&str),
    output: &mut dyn RunOutput,
) -> Result<Outcome, Failure> {
    let device: DeviceChoice = start.device.parse()?;
    for text in start.resolve()? {
        output.emit(&Event::Warning { text });
    }
    if supervised && uses_gpu(device) {
        let emit = &mut |event: &Event| output.emit(event);
        let code = supervise(start, None, process, commands, say, emit);
        return code.map(Outcome::Code).map_err(|error| {
            let text = format!("cannot start the trainer process: {error}");
            Failure::new(text, "--no-supervise trains in one process")
        });
    }
    train_alone(start, device, commands, output).map(Outcome::Stopped).map_err(Failure::from)
}

/// The end of a run.
pub(crate) enum Outcome {
    /// It trained in this process.
    Stopped(StopReason),
    /// It trained in a worker; the exit code for this process.
    Code(u8),
}

/// Trains a run in this process alone.
pub(super) fn train_alone(
    start: StartRun,
    device: DeviceChoice,
    commands: &Receiver<Command>,
    output: &mut dyn RunOutput,
) -> Result<StopReason, TrainError> {
    let (device_name, quiet) = (start.device_name.clone(), start.quiet);
    let (request, warnings) = start.into_request()?;
    for text in warnings {
        output.emit(&Event::Warning { text });
    }
    let here = Here { place: None, group: Group::alone(), device, device_name, quiet };
    train(request, here, commands, output)
}

/// Trains a run in this process.
pub(crate) fn train(
    request: Request,
    here: Here<'_>,
    commands: &Receiver<Command>,
    output: &mut dyn RunOutput,
) -> Result<StopReason, TrainError> {
    let Here { place, group, device, device_name, quiet } = here;
    let setting_up = output.set_up();
    let selected = match place {
        Some(place) => gpu::select_for_rank(device, place.local_rank()),
        None => gpu::select(device),
    }?;
    check_name(&selected, device_name.as_deref())?;
    let (setup, device) = set_up(&request, selected, group, output)?;
    let watched = match place {
        Some(place) => Watched::Rank { label: place.label(), limit: setup.plan_limit() },
        None => Watched::Run,
    };
    watch(&device, watched, output.on_failure());
    if !quiet {
        let OpenDevice { info, reason, .. } = &device;
        output.say(&format!("device: {} ({}), {reason}", info.name, info.id));
        let precision = request.mode.abilities(info).explain(request.config.dtype);
        output.say(&format!("precision: {precision}"));
    }
    let mut emit = |event: &Event| output.emit(event);
    let mut session = Session::open(setup, device, &mut emit)?;
    drop(setting_up);
    let reason = pollster::block_on(session.run(&mut { commands }))?;
    session.finish()?;
    Ok(reason)
}

/// Sets the run up, then opens its device: a run that does not fit is refused before that.
fn set_up(
    request: &Request,
    mut found: SelectedDevice,
    group: Group,
    output: &mut dyn RunOutput,
) -> Result<(Setup, OpenDevice), TrainError> {
    // Ranks have no other device to try, and agree once.
    let mut group = Some(group);
    loop {
        if let Some(text) = request.mode.confirm(request.config.dtype, &mut found) {
            output.emit(&Event::Warning { text });
        }
        let group = group.take().unwrap_or_else(Group::alone);
        let setup = Setup::new(request.clone(), &found.info, group)?;
        match found.open(setup.precision()) {
            Ok(device) => return Ok((setup, device)),
            Err(error) => found = found.fallback(error)?,
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

/// Returns true if the device can fail in ways that only the end of its process clears.
fn uses_gpu(choice: DeviceChoice) -> bool {
    match choice {
        DeviceChoice::Named(id) => id.backend != Backend::Cpu,
        DeviceChoice::Auto => {
            gpu::select(choice).is_ok_and(|found| found.info.id.backend != Backend::Cpu)
        }
    }
}

/// Returns the end of a run as a message.
pub(super) fn end_of(result: Result<StopReason, Failure>) -> RunEnd {
    match result {
        Ok(reason) => RunEnd::Stopped { reason },
        Err(failure) => RunEnd::Failed(failure),
    }
}

/// Returns the file of commands to a run.
pub(crate) fn commands_file(start: &StartRun) -> PathBuf {
    start.run.join(crate::runs::COMMANDS_FILE)
}
