//! Trains a run in this process.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::commands::Control;
use super::place::Place;
use super::supervise::supervise;
use super::watch::{Watched, watch};
use crate::gpu::{self, Backend, DeviceChoice, DeviceError, OpenDevice, SelectedDevice};
use crate::protocol::{Event, Failure, StartRun, StopReason, Task, Working};
use crate::ranks::Group;
use crate::train::{Request, Session, Setup, TrainError};

/// The time that the setup of a run must have lasted before it is reported as an event.
const MOMENT: Duration = Duration::from_millis(250);

/// The receiver of what happens in a run.
pub(crate) trait RunOutput {
    fn emit(&mut self, event: &Event);

    /// Takes a message for people.
    fn say(&self, text: &str);

    /// Reports that the run is being set up, until the returned value is dropped.
    fn set_up(&mut self) -> Option<Sender<()>>;

    /// Returns the function that reports the failure that ends the process.
    fn on_failure(&self) -> fn(&Failure);

    /// Reports that the run has ended in this process without a failure.
    fn ended(&self, _: StopReason) {}
}

/// The event of a run that is being set up.
pub(crate) const SETTING_UP: Event =
    Event::Working(Working { task: Task::Data, done: 0, total: 0 });

/// Prints [`SETTING_UP`] if it lasts a moment: until the returned value is dropped.
pub(crate) fn print_set_up(print: fn(&Event)) -> Sender<()> {
    after(MOMENT, move || print(&SETTING_UP))
}

/// Acts after a time, unless the returned value is dropped before.
pub(super) fn after(time: Duration, act: impl FnOnce() + Send + 'static) -> Sender<()> {
    let (guard, ended) = channel();
    std::thread::spawn(move || {
        // A dropped guard is another error.
        if ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            act();
        }
    });
    guard
}

/// Trains a run that `start` describes, in this process or, if its device can fail and `supervised` is
/// set, in a worker that this process supervises. Returns the exit code for this process.
pub(crate) fn host(
    mut start: StartRun,
    supervised: bool,
    control: &Control,
    say: fn(&str),
    output: &mut dyn RunOutput,
) -> Result<u8, Failure> {
    let device = start.device.parse()?;
    for text in start.resolve()? {
        output.emit(&Event::Warning { text });
    }
    if supervised && uses_gpu(device) {
        let emit = &mut |event: &Event| output.emit(event);
        return supervise(start, None, control, say, emit).map_err(|error| {
            let text = format!("cannot start the trainer process: {error}");
            Failure::new(text, "--no-supervise trains in one process")
        });
    }
    Ok(train(start, None, Group::alone(), control, output)?)
}

/// Trains a run in this process, which may be one of several ranks: then it has its `place` among them.
/// Returns the exit code for this process.
pub(crate) fn train(
    start: StartRun,
    place: Option<&Place>,
    group: Group,
    control: &Control,
    output: &mut dyn RunOutput,
) -> Result<u8, TrainError> {
    let device = start.device.parse()?;
    let (device_name, quiet) = (start.device_name.clone(), start.quiet);
    let (request, warnings) = start.into_request()?;
    for text in warnings {
        output.emit(&Event::Warning { text });
    }
    let setting_up = output.set_up();
    let selected = match place {
        Some(place) => gpu::select_for_rank(device, place.launch.local_rank),
        None => gpu::select(device),
    }?;
    if let Some(name) = device_name.filter(|name| *name != selected.info.name) {
        // Another device in the place of a lost one: with a GPU gone, `vulkan:0` may be a software renderer.
        let reason = format!("{} has taken its place", selected.info.name);
        return Err(DeviceError::Open { id: selected.info.id, name, reason }.into());
    }
    let (setup, device) = set_up(&request, selected, group, output)?;
    let watched = match place {
        Some(place) => {
            Watched::Rank { label: place.launch.label(), limit: setup.steps.limit.clone() }
        }
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
    let reason = pollster::block_on(session.run(&mut &control.commands))?;
    session.finish()?;
    output.ended(reason);
    Ok(if reason == StopReason::Stopped { control.exit_code() } else { 0 })
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
        match found.open(setup.job.mode.precision) {
            Ok(device) => return Ok((setup, device)),
            Err(error) => found = found.fallback(error)?,
        }
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
