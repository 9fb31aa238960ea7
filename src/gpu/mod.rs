//! Devices: which there are, which one a run takes, and opening it.
//!
//! With `ops`, the only place that names wgpu or cubecl.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;
use serde::Serialize;
use thiserror::Error;

use crate::protocol::DeviceLine;

mod card;
#[cfg(feature = "cuda")]
mod cuda;
mod failure;
#[cfg(feature = "wgpu")]
pub mod kernel;
mod meter;
mod probe;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub mod queue;
#[cfg(feature = "wgpu")]
mod webgpu;

pub use card::{CardMemory, card_memory};
pub use failure::Failure;
pub use meter::{
    Memory, count_launches, dry_run, largest_tensor, memory, release_unused, size_pages,
};
#[cfg(feature = "wgpu")]
pub use probe::variants as probe_variants;
pub use probe::{Peaks, peaks};

/// Why no device could be used.
#[derive(Clone, Debug, Error)]
pub enum DeviceError {
    /// The name does not have the form that `--device` takes.
    #[error("`{name}` is not a device")]
    Unknown {
        /// What was typed.
        name: String,
    },
    /// The build has no support for the interface.
    #[error("this build of wgpt has no support for `{backend}`")]
    NotBuilt {
        /// The interface that was asked for.
        backend: Backend,
    },
    /// The interface is there, but not that device.
    #[error("no device `{id}`; found: {found}")]
    Missing {
        /// What was asked for.
        id: DeviceId,
        /// The devices there are.
        found: String,
    },
    /// There is no CUDA device at all.
    #[error("no device `{id}`: {why}; found: {found}")]
    NoCuda {
        /// What was asked for.
        id: DeviceId,
        /// What is not there.
        why: String,
        /// The devices there are.
        found: String,
    },
    /// The driver has no more memory.
    #[error("{name} ran out of memory")]
    OutOfMemory {
        /// The adapter's name.
        name: String,
    },
    /// The device did not finish what it was given.
    #[error("the device stopped: {reason}")]
    Stopped {
        /// The driver's words.
        reason: String,
    },
    /// The driver refused.
    #[error("could not open {name} ({id}): {reason}")]
    Open {
        /// What was asked for.
        id: DeviceId,
        /// The adapter's name.
        name: String,
        /// The driver's words.
        reason: String,
    },
}

impl DeviceError {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            DeviceError::Unknown { .. } => {
                "write auto, cpu, or an interface with an optional number: vulkan, vulkan:1, \
                 dx12, gl, cuda:0. `wgpt devices` lists what is there"
            }
            DeviceError::NotBuilt { .. } => "build with `--features wgpu` or `--features cuda`",
            DeviceError::Missing { .. } => {
                "`wgpt devices` lists what is there; a missing card usually means a missing driver \
                 (on Debian and Ubuntu: mesa-vulkan-drivers or NVIDIA's own)"
            }
            DeviceError::NoCuda { .. } => {
                "install NVIDIA's driver (on Debian with libcuda1) and see that `nvidia-smi` lists \
                 the card; the same card also computes by --device=vulkan, and --device=auto takes \
                 what there is"
            }
            DeviceError::OutOfMemory { .. } => {
                "other programs may have taken it: continue with --resume and a smaller \
                 --vram_budget or --micro_batch"
            }
            DeviceError::Stopped { .. } => {
                "the driver reset it, or it went away: continue with --resume, and see the system's \
                 log if it happens again"
            }
            DeviceError::Open { .. } => {
                "try another interface of the same card (`wgpt devices`), update its driver, or \
                 use --device=cpu"
            }
        }
    }
}

/// An interface to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// burn's flex backend on the processor.
    Cpu,
    /// Vulkan through wgpu.
    Vulkan,
    /// DirectX 12 through wgpu.
    Dx12,
    /// Metal through wgpu.
    Metal,
    /// OpenGL through wgpu.
    Gl,
    /// burn's CUDA backend.
    Cuda,
}

impl Backend {
    const NAMES: [(&'static str, Backend); 6] = [
        ("cpu", Backend::Cpu),
        ("vulkan", Backend::Vulkan),
        ("dx12", Backend::Dx12),
        ("metal", Backend::Metal),
        ("gl", Backend::Gl),
        ("cuda", Backend::Cuda),
    ];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, backend)| backend == self);
        f.write_str(name.map_or("unknown", |(name, _)| name))
    }
}

/// What kind of hardware a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A graphics card with its own memory.
    Discrete,
    /// A graphics unit that shares the processor's memory.
    Integrated,
    /// A graphics card seen through a virtual machine.
    Virtual,
    /// A graphics interface computed on the processor.
    Software,
    /// The processor itself.
    Cpu,
    /// The driver does not say.
    Unknown,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Discrete => "discrete",
            Kind::Integrated => "integrated",
            Kind::Virtual => "virtual",
            Kind::Software => "software",
            Kind::Cpu => "cpu",
            Kind::Unknown => "unknown",
        })
    }
}

/// A device's name on the command line: the interface and the number among its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// The interface.
    pub backend: Backend,
    /// Counted from 0 within the interface.
    pub index: usize,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backend {
            Backend::Cpu => f.write_str("cpu"),
            backend => write!(f, "{backend}:{}", self.index),
        }
    }
}

/// What `--device` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best hardware there is, else the processor.
    #[default]
    Auto,
    /// This one.
    Named(DeviceId),
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unknown { name: name.to_string() };
        if name.eq_ignore_ascii_case("auto") {
            return Ok(DeviceChoice::Auto);
        }
        let (backend, index) = match name.split_once(':') {
            Some((backend, index)) => (backend, index.parse().map_err(|_| unknown())?),
            None => (name, 0),
        };
        let backend = Backend::NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(backend))
            .map(|&(_, backend)| backend)
            .ok_or_else(unknown)?;
        if backend == Backend::Cpu && index != 0 {
            return Err(unknown());
        }
        Ok(DeviceChoice::Named(DeviceId { backend, index }))
    }
}

/// A device that could be opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its name on the command line.
    pub id: DeviceId,
    /// The adapter's name.
    pub name: String,
    /// What hardware it is.
    pub kind: Kind,
    /// The driver and its version, where told.
    pub driver: String,
    /// The largest buffer that one kernel argument can be, in bytes; `None` without a limit.
    pub max_binding: Option<u64>,
    /// Where it sits on the bus, such as `0000:01:00.0`, where told.
    pub pci: Option<String>,
}

impl DeviceInfo {
    fn cpu() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            id: DeviceId { backend: Backend::Cpu, index: 0 },
            name: format!("CPU, {cores} threads"),
            kind: Kind::Cpu,
            driver: "burn flex".into(),
            max_binding: None,
            pci: None,
        }
    }

    /// The device as events carry it.
    pub fn line(&self) -> DeviceLine {
        DeviceLine {
            id: self.id.to_string(),
            name: self.name.clone(),
            backend: self.id.backend.to_string(),
            kind: self.kind.to_string(),
        }
    }

    /// How good a pick it is, `None` for what is used only when named: a graphics interface in
    /// software is slower than the processor itself.
    fn rank(&self) -> Option<u32> {
        let kind = match self.kind {
            Kind::Discrete => 0,
            Kind::Virtual => 1,
            Kind::Integrated => 2,
            Kind::Cpu => 3,
            Kind::Software | Kind::Unknown => return None,
        };
        let backend = match self.id.backend {
            Backend::Cuda => 0,
            Backend::Vulkan | Backend::Metal => 1,
            Backend::Dx12 => 2,
            Backend::Gl => 3,
            Backend::Cpu => 4,
        };
        Some(kind * 10 + backend)
    }
}

/// A device that computes.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// What it is.
    pub info: DeviceInfo,
    /// Why it was picked, for people.
    pub reason: String,
    /// burn's handle, without autodiff.
    pub device: Device,
    /// Whether it has failed.
    pub failure: Failure,
}

/// Every device there is, the processor last.
pub fn devices() -> Vec<DeviceInfo> {
    let mut found = Vec::new();
    #[cfg(feature = "cuda")]
    found.extend(cuda::devices());
    #[cfg(feature = "wgpu")]
    found.extend(webgpu::devices());
    found.push(DeviceInfo::cpu());
    found
}

/// A device that was found and is not open: nothing is taken of it yet.
#[derive(Clone, Debug)]
pub struct Found {
    /// What it is.
    pub info: DeviceInfo,
    /// Why it was picked, for people.
    pub reason: String,
    /// Whether nobody asked for this one.
    auto: bool,
}

impl Found {
    /// Opens it.
    ///
    /// # Errors
    /// When its driver refuses.
    pub fn open(&self) -> Result<OpenDevice, DeviceError> {
        open_device(self.info.clone(), self.reason.clone())
    }

    /// What to take in its place when it could not be opened: the processor, if nobody asked for
    /// this one.
    ///
    /// # Errors
    /// `error`, where there is nothing else to take.
    pub fn instead(&self, error: DeviceError) -> Result<Self, DeviceError> {
        if !self.auto || self.info.kind == Kind::Cpu {
            return Err(error);
        }
        let reason = format!("{error}; --device tries again");
        Ok(Self { info: DeviceInfo::cpu(), reason, auto: false })
    }
}

/// Finds the device that was asked for.
///
/// # Errors
/// When it is not there, or not in this build.
pub fn find(choice: DeviceChoice) -> Result<Found, DeviceError> {
    let asked = |info| Found { info, reason: "as asked".into(), auto: false };
    if choice == DeviceChoice::Named(DeviceInfo::cpu().id) {
        return Ok(asked(DeviceInfo::cpu()));
    }
    let found = devices();
    match choice {
        DeviceChoice::Named(id) => {
            let info = found.iter().find(|info| info.id == id);
            Ok(asked(info.ok_or_else(|| missing(id, &found))?.clone()))
        }
        DeviceChoice::Auto => {
            let (info, reason) = best(&found);
            Ok(Found { info, reason, auto: true })
        }
    }
}

/// Opens the device that was asked for.
///
/// # Errors
/// When it is not there, not in this build, or its driver refuses.
pub fn open(choice: DeviceChoice) -> Result<OpenDevice, DeviceError> {
    let found = find(choice)?;
    found.open().or_else(|error| found.instead(error)?.open())
}

fn missing(id: DeviceId, found: &[DeviceInfo]) -> DeviceError {
    let cuda = id.backend == Backend::Cuda;
    let wgpu = !cuda && id.backend != Backend::Cpu;
    if (cuda && !cfg!(feature = "cuda")) || (wgpu && !cfg!(feature = "wgpu")) {
        return DeviceError::NotBuilt { backend: id.backend };
    }
    let names: Vec<String> = found.iter().map(|info| info.id.to_string()).collect();
    let names = names.join(", ");
    match without_cuda(found) {
        Some(why) if cuda => DeviceError::NoCuda { id, why, found: names },
        _ => DeviceError::Missing { id, found: names },
    }
}

/// Why none of `found` is a CUDA device; `None` where one is, or where the build has no CUDA.
pub fn without_cuda(found: &[DeviceInfo]) -> Option<String> {
    #[cfg(feature = "cuda")]
    if !found.iter().any(|info| info.id.backend == Backend::Cuda) {
        return Some(cuda::absence());
    }
    let _ = found;
    None
}

/// The best of what is there, and why.
fn best(found: &[DeviceInfo]) -> (DeviceInfo, String) {
    let ranked = found.iter().filter_map(|info| Some((info.rank()?, info)));
    let Some((_, info)) = ranked.min_by_key(|(rank, _)| *rank) else {
        return (DeviceInfo::cpu(), "the only device".into());
    };
    let reason = if info.kind != Kind::Cpu {
        format!("the best of {} devices", found.len())
    } else if let Some(software) = found.iter().find(|info| info.kind == Kind::Software) {
        format!(
            "no graphics card found; {} is a graphics interface in software, used only with \
             --device={}",
            software.name, software.id
        )
    } else {
        "no graphics card found".into()
    };
    (info.clone(), reason)
}

fn open_device(info: DeviceInfo, reason: String) -> Result<OpenDevice, DeviceError> {
    let failure = Failure::new(matches!(info.kind, Kind::Software | Kind::Cpu));
    let device = match info.id.backend {
        Backend::Cpu => Device::flex(),
        #[cfg(feature = "cuda")]
        Backend::Cuda => Device::cuda(info.id.index),
        #[cfg(feature = "wgpu")]
        _ => webgpu::open(&info, &failure)?,
        #[cfg(not(feature = "wgpu"))]
        backend => return Err(DeviceError::NotBuilt { backend }),
    };
    Ok(OpenDevice { info, reason, device, failure })
}

/// Waits until the device has done all that it was given.
///
/// # Errors
/// When it cannot.
pub fn wait(device: &Device) -> Result<(), DeviceError> {
    device.sync().map_err(|error| DeviceError::Stopped { reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(backend: Backend, kind: Kind) -> DeviceInfo {
        DeviceInfo { id: DeviceId { backend, index: 0 }, kind, ..DeviceInfo::cpu() }
    }

    #[test]
    fn names_read_and_print_alike() {
        for name in ["cpu", "vulkan:0", "dx12:3", "gl:1", "cuda:0"] {
            let DeviceChoice::Named(id) = name.parse().unwrap() else { panic!("{name}") };
            assert_eq!(id.to_string(), name);
        }
        assert_eq!("auto".parse::<DeviceChoice>().unwrap(), DeviceChoice::Auto);
        for bad in ["", "cpu:1", "vulkan:", "vulkan:x", "tpu", "vulkan:-1"] {
            assert!(bad.parse::<DeviceChoice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hardware_goes_before_the_processor_and_that_before_software() {
        let software = info(Backend::Vulkan, Kind::Software);
        let cpu = DeviceInfo::cpu();
        let (picked, reason) = best(&[software.clone(), cpu.clone()]);
        assert_eq!(picked.id, cpu.id);
        assert!(reason.contains("--device=vulkan:0"), "{reason}");
        let card = info(Backend::Dx12, Kind::Integrated);
        assert_eq!(best(&[software, card.clone(), cpu]).0.id, card.id);
        let strong = info(Backend::Vulkan, Kind::Discrete);
        assert_eq!(best(&[card, strong.clone()]).0.id, strong.id);
    }
}
