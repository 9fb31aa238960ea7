//! Trains a run in this process.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::awake::Awake;
use super::commands::Control;
use super::integrated::faster_cpu;
use super::listing::list_devices;
use super::proof::{Proven, Suspect, prove};
use super::supervise::supervise;
use super::watch::{Watched, watch};
use crate::gpu::cublas::Library;
use crate::gpu::{self, Backend, DeviceChoice, DeviceError, OpenDevice, Search, SelectedDevice};
use crate::protocol::{Event, Failure, StartRun, StopReason, Task, Working};
use crate::ranks::{Group, Launch};
use crate::train::{Session, Setup, TrainRequest};

/// The time that the setup of a run must have lasted before it is reported as an event.
const MOMENT: Duration = Duration::from_millis(250);

/// The receiver of what happens in a run.
pub(crate) trait RunOutput {
    fn emit(&mut self, event: &Event);

    fn warn(&mut self, text: String) {
        self.emit(&Event::Warning { text });
    }

    /// Takes a message for people.
    fn say(&self, text: &str);

    /// Reports that the run is being set up, until the returned value is dropped.
    fn set_up(&mut self) -> Option<Sender<()>>;

    /// Reports that the device is selected, and if the run uses its cooperative matrices.
    fn selected(&self, _uses_matrices: bool) {}

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
    let device: DeviceChoice = start.device.parse()?;
    start.resolve()?.into_iter().for_each(|text| output.warn(text));
    let config = start.config().unwrap_or_default();
    let (selected, is_cpu) = match device {
        DeviceChoice::Named(id) => (None, id.backend == Backend::Cpu),
        DeviceChoice::Auto => {
            let listing = list_devices(Search::Auto);
            start.without = listing.without();
            for Failure { text, hint, .. } in listing.warnings() {
                output.warn(format!("{text}; {hint}"));
            }
            let selected = gpu::choose(device, listing.devices, Vec::new)?;
            let is_cpu = selected.info.id.backend == Backend::Cpu;
            (Some(selected), is_cpu)
        }
    };
    // The CPU does not fail in ways that only the end of its process clears.
    if supervised && (!is_cpu || config.may_stand_by()) {
        let emit = &mut |event: &Event| output.emit(event);
        return supervise(start, None, &config, control, say, emit).map_err(|error| {
            let text = format!("cannot start the trainer process: {error}");
            Failure::new(text, "--no-supervise trains in one process")
        });
    }
    let _awake = config.keep_awake.then(Awake::new);
    train(start, selected, None, Group::alone(), control, output)
}

/// Trains a run in this process, which may be the `rank` of several. `selected` is its device, if that is
/// known already. Returns the exit code for this process.
pub(crate) fn train(
    start: StartRun,
    selected: Option<SelectedDevice>,
    rank: Option<&Launch>,
    group: Group,
    control: &Control,
    output: &mut dyn RunOutput,
) -> Result<u8, Failure> {
    let device = start.device.parse()?;
    // A rank may be on another machine than the process that has started it.
    let keeps_awake = || start.config().is_none_or(|config| config.keep_awake);
    let _awake = (rank.is_some() && keeps_awake()).then(Awake::new);
    let (request, warnings) = start.clone().into_request()?;
    warnings.into_iter().for_each(|text| output.warn(text));
    let setting_up = output.set_up();
    let selected = match (selected, rank) {
        (Some(selected), _) => selected,
        (None, Some(rank)) => gpu::select_for_rank(device, rank.local_rank)?,
        (None, None) => gpu::select_without(device, &start.without)?,
    };
    if let Some(name) = start.device_name.clone().filter(|name| *name != selected.info.name) {
        // Another device in the place of a lost one: with a GPU gone, `vulkan:0` may be a software renderer.
        let reason = format!("{} has taken its place", selected.info.name);
        return Err(DeviceError::Open { id: selected.info.id, name, reason }.into());
    }
    let (setup, device, mut suspect) = set_up(&request, selected, group, &start, output)?;
    let watched = match rank {
        Some(rank) => Watched::Rank { label: rank.label(), limit: setup.steps.limit.clone() },
        None => Watched::Run,
    };
    watch(&device, watched, output.on_failure());
    if !start.quiet {
        let OpenDevice { info, reason, .. } = &device;
        output.say(&format!("device: {} ({}), {reason}", info.name, info.id));
        let precision = setup.inputs.mode.abilities(info).explain(request.config.dtype);
        output.say(&format!("precision: {precision}"));
        if info.id.backend == Backend::Cuda {
            output.say(&products_line(setup.inputs.mode.products()));
        }
    }
    let mut emit = |event: &Event| {
        // The run trains without these kernels, so they were the reason for the crash.
        if matches!(event, Event::Step(_))
            && let Some(suspect) = suspect.take()
        {
            suspect.remember_crash();
        }
        output.emit(event);
    };
    let mut session = Session::open(setup, device, &mut emit)?;
    drop(setting_up);
    let reason = pollster::block_on(session.run(&mut &control.commands))?;
    session.finish()?;
    output.ended(reason);
    Ok(if reason == StopReason::Stopped { control.exit_code() } else { 0 })
}

/// Describes what computes matrix products on CUDA: a library, or wgpt's own kernels.
pub(crate) fn products_line(library: Option<&Library>) -> String {
    match library {
        Some(Library { name, from, .. }) => format!("products: {name} from {from}"),
        None => "products: wgpt's own kernels".into(),
    }
}

/// Sets the run up, then opens its device: a run that does not fit is refused before that. Also returns the
/// kernels that have crashed a former worker.
fn set_up(
    request: &TrainRequest,
    mut found: SelectedDevice,
    group: Group,
    start: &StartRun,
    output: &mut dyn RunOutput,
) -> Result<(Setup, OpenDevice, Option<Suspect>), Failure> {
    // Ranks have no other device to try, and agree once.
    let mut group = Some(group);
    loop {
        let say = |text: &str| {
            if !start.quiet {
                output.say(text);
            }
        };
        let proven = prove(found.clone(), request.mode, &request.config, start.self_test, &say);
        let Proven { mut device, mode, warnings, suspect } = match proven {
            Ok(proven) => proven,
            Err(error) => {
                found = found.fallback(error)?;
                continue;
            }
        };
        // A former worker has printed it.
        if !start.is_restart {
            warnings.into_iter().for_each(|text| output.warn(text));
        }
        let planned = mode.for_run(request.config.dtype, &device.info);
        output.selected(planned.is_ok_and(|mode| mode.precision.matrices().is_some()));
        let group = group.take().unwrap_or_else(Group::alone);
        let request = TrainRequest { mode, ..request.clone() };
        let setup = Setup::new(request.clone(), &device.info, group)?;
        if device.may_be_slow()
            && let Some((cpu, text)) = faster_cpu(&mut device, &setup, &request)
        {
            text.into_iter().for_each(|text| output.warn(text));
            found = cpu;
            continue;
        }
        device.driver = setup.inputs.mode.driver;
        match device.open(setup.inputs.mode.precision) {
            Ok(device) => return Ok((setup, device, suspect)),
            Err(error) => found = device.fallback(error)?,
        }
    }
}
