//! Lists devices in a separate process: a driver that crashes while it lists its devices costs its
//! backend and not the program, and this process loads no drivers.
//!
//! Only trainers list devices themselves, because they open one anyway. Their supervisor tells them which
//! backends to leave out; ranks, on their own machines, leave out none.

use tracing_subscriber::filter::LevelFilter;

use super::pipe::worker;
use super::request::start;
use crate::doctor::Problem;
use crate::gpu::{self, Backend, DeviceChoice, DeviceError, DeviceInfo, Search, SelectedDevice};
use crate::protocol::{Failure, Obstacle, Reply, Request, Topic};
use crate::worker::supervisor::ProcessEnd;

/// The result of a search for devices.
#[derive(Debug, Default)]
pub(crate) struct DeviceListing {
    /// The devices, the CPU last.
    pub devices: Vec<DeviceInfo>,
    /// The backends that are left out because their drivers crashed, and how: `signal 11`.
    crashed: Vec<(Backend, String)>,
}

impl DeviceListing {
    /// Returns the backends to leave out in processes that list devices themselves.
    pub fn without(&self) -> Vec<Backend> {
        self.crashed.iter().map(|(backend, _)| *backend).collect()
    }

    /// Returns a warning about each backend that is left out, with its hint.
    pub fn warnings(&self) -> impl Iterator<Item = Failure> {
        self.crashed.iter().map(|(backend, how)| {
            let name = backend.title();
            let text = format!(
                "the {name} driver crashed while it listed its devices ({how}); continuing without \
                 {name}"
            );
            Failure::new(text, "update the driver, or remove it if its GPU is gone")
        })
    }

    /// Returns the warnings for a bug report.
    pub fn problems(&self) -> Vec<Problem> {
        self.warnings().map(|Failure { text, hint, .. }| Problem { text, hint }).collect()
    }

    /// Returns the warnings for a window.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let warnings: Vec<Failure> = self.warnings().collect();
        let texts: Vec<&str> = warnings.iter().map(|warning| warning.text.as_str()).collect();
        Some(Obstacle::new(Topic::Driver, texts.join("; "), &warnings.first()?.hint))
    }
}

/// Lists the devices of a search.
pub(crate) fn list_devices(search: Search) -> DeviceListing {
    list_with(search, &list_in_child)
}

/// Lists with `list`, which lists in a separate process and returns how it ended if it crashed. Then each
/// backend gets another process, to find the ones that crash.
fn list_with(
    search: Search,
    list: &dyn Fn(Search) -> Result<Vec<DeviceInfo>, String>,
) -> DeviceListing {
    let mut listing = DeviceListing::default();
    if let Ok(devices) = list(search) {
        return DeviceListing { devices, ..listing };
    }
    for backend in search.backends() {
        if search.skips(backend, &listing.devices) {
            continue;
        }
        match list(Search::Only(backend)) {
            Ok(found) => listing.devices.extend(found),
            Err(how) => listing.crashed.push((backend, how)),
        }
    }
    listing
}

/// Lists in a child; the error describes how it crashed. Lists in this process if the child cannot start, or
/// has another version because the program was replaced.
fn list_in_child(search: Search) -> Result<Vec<DeviceInfo>, String> {
    let here = || Ok(gpu::list(search, &[]));
    if search == Search::Only(Backend::Cpu) {
        return here();
    }
    let levels = [LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG];
    let verbose = levels.into_iter().filter(|level| *level <= LevelFilter::current()).count() as u8;
    let request = Request::ListDevices { search, verbose };
    let Ok((mut child, _input, mut replies)) = start(worker(), request) else { return here() };
    if let Some(Reply::Listed { devices }) = replies.next() {
        // Its drivers may take a while to unload. Waiting removes it from the system's table.
        std::thread::spawn(move || child.wait());
        return Ok(devices);
    }
    match child.wait().map(ProcessEnd::from) {
        Ok(ProcessEnd::Crashed(how)) => Err(how),
        // It exits with 0 to 2 by itself.
        Ok(ProcessEnd::Code(code @ 3..)) => Err(format!("exit code {code}")),
        _ => here(),
    }
}

/// Selects the requested device, to be opened by this process. `warn` takes a warning about each driver
/// that is left out.
///
/// # Errors
/// If it does not exist, its driver crashes, or this build has no support for its backend.
pub(crate) fn select(
    choice: DeviceChoice,
    warn: impl FnMut(Failure),
) -> Result<SelectedDevice, DeviceError> {
    let listing = list_devices(Search::of(choice));
    if let (DeviceChoice::Named(id), Some((_, how))) = (choice, listing.crashed.first()) {
        return Err(DeviceError::Crashed { device: id.to_string(), how: how.clone() });
    }
    listing.warnings().for_each(warn);
    gpu::choose(choice, listing.devices, || list_devices(Search::All).devices)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::gpu::{DeviceId, DeviceKind};

    fn gpu_of(backend: Backend) -> DeviceInfo {
        let id = DeviceId { backend, index: 0 };
        DeviceInfo { id, kind: DeviceKind::Discrete, ..DeviceInfo::cpu() }
    }

    /// Lists a GPU of each of these backends; a process that lists one of `crashing` crashes.
    fn listed(search: Search, has: &[Backend], crashing: &[Backend]) -> (DeviceListing, usize) {
        let processes = Cell::new(0);
        let listing = list_with(search, &|search| {
            processes.set(processes.get() + 1);
            let searched = search.backends();
            if searched.iter().any(|backend| crashing.contains(backend)) {
                return Err("signal 11".into());
            }
            let found = has.iter().filter(|backend| searched.contains(backend));
            Ok(found.copied().map(gpu_of).collect())
        });
        (listing, processes.get())
    }

    fn backends(listing: &DeviceListing) -> Vec<Backend> {
        listing.devices.iter().map(|info| info.id.backend).collect()
    }

    #[test]
    fn a_driver_that_crashes_costs_its_backend() {
        use Backend::{Cpu, Dx12, Gl, Vulkan};
        let has = [Vulkan, Dx12, Gl, Cpu];
        let (listing, processes) = listed(Search::All, &has, &[]);
        assert_eq!((backends(&listing), processes), (has.to_vec(), 1));
        assert!(listing.without().is_empty() && listing.obstacle().is_none());

        let (listing, _) = listed(Search::All, &has, &[Vulkan]);
        assert_eq!(backends(&listing), [Dx12, Gl, Cpu]);
        assert_eq!(listing.without(), [Vulkan]);
        let expected = "the Vulkan driver crashed while it listed its devices (signal 11); \
                        continuing without Vulkan";
        let warnings: Vec<String> = listing.warnings().map(|warning| warning.text).collect();
        assert_eq!(warnings, [expected]);

        // `auto` does not try OpenGL then.
        let (listing, _) = listed(Search::Auto, &has, &[Vulkan]);
        assert_eq!(backends(&listing), [Dx12, Cpu]);
        let (listing, _) = listed(Search::Auto, &[Gl, Cpu], &[Vulkan, Dx12]);
        assert_eq!((backends(&listing), listing.without()), (vec![Gl, Cpu], vec![Vulkan, Dx12]));
        let text = listing.obstacle().unwrap().text;
        assert!(text.contains("Vulkan driver") && text.contains("DirectX 12 driver"), "{text}");

        let (listing, _) = listed(Search::Only(Vulkan), &has, &[Vulkan]);
        assert_eq!((backends(&listing), listing.without()), (vec![], vec![Vulkan]));
    }
}
