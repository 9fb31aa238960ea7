//! Devices: which there are, which one a run takes, and opening it.
//!
//! With `ops`, the only place that names wgpu or cubecl.

use burn::tensor::Device;

use crate::config::Dtype;
use crate::protocol::DeviceLine;

mod card;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod failure;
mod id;
#[cfg(feature = "wgpu")]
pub mod kernel;
mod meter;
#[cfg(not(target_arch = "wasm32"))]
mod probe;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub mod queue;
#[cfg(feature = "wgpu")]
mod webgpu;

pub use card::{CardMemory, card_memory};
pub use error::DeviceError;
pub use failure::Failure;
pub use id::{Backend, DeviceChoice, DeviceId, Kind};
pub use meter::{
    Memory, count_launches, dry_run, finish, largest_tensor, memory, release_unused, size_pages,
};
#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
pub use probe::variants as probe_variants;
#[cfg(not(target_arch = "wasm32"))]
pub use probe::{Peaks, peaks};

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

    /// Whether runs in `dtype` may be tried here: WGSL kernels and the processor's know float32 alone.
    ///
    /// # Errors
    /// If not.
    pub fn check_dtype(&self, dtype: Dtype) -> Result<(), DeviceError> {
        match (self.id.backend, dtype) {
            (_, Dtype::Float32) | (Backend::Cuda, Dtype::Tf32 | Dtype::Bfloat16) => Ok(()),
            _ => Err(self.without(dtype, vec![Dtype::Float32])),
        }
    }

    fn without(&self, dtype: Dtype, known: Vec<Dtype>) -> DeviceError {
        DeviceError::Dtype { id: self.id, name: self.name.clone(), dtype, known }
    }

    /// How good a pick it is, `None` for what is used only when named: a graphics interface in
    /// software is slower than the processor itself.
    #[cfg(not(target_arch = "wasm32"))]
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
            Backend::Vulkan | Backend::Metal | Backend::WebGpu => 1,
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

impl OpenDevice {
    /// Whether it computes in `dtype`: older cards lack what newer ones have.
    ///
    /// # Errors
    /// If not.
    pub fn check_dtype(&self, dtype: Dtype) -> Result<(), DeviceError> {
        self.info.check_dtype(dtype)?;
        let mut known = dtypes(&self.device);
        if known.contains(&dtype) {
            return Ok(());
        }
        known.retain(|&dtype| self.info.check_dtype(dtype).is_ok());
        Err(self.info.without(dtype, known))
    }
}

/// Every device there is, the processor last.
#[cfg(not(target_arch = "wasm32"))]
pub fn devices() -> Vec<DeviceInfo> {
    let mut found = Vec::new();
    #[cfg(feature = "cuda")]
    found.extend(cuda::devices());
    found.extend(other_devices());
    found
}

#[cfg(not(target_arch = "wasm32"))]
fn other_devices() -> Vec<DeviceInfo> {
    #[cfg(feature = "wgpu")]
    let cards = pollster::block_on(webgpu::devices());
    #[cfg(not(feature = "wgpu"))]
    let cards = Vec::new();
    cards.into_iter().chain([DeviceInfo::cpu()]).collect()
}

/// The device that the browser gives, if it gives one.
#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
pub async fn in_browser() -> Option<Found> {
    let info = webgpu::devices().await.into_iter().next()?;
    Some(Found { info, reason: "the browser's choice".into(), auto: false })
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
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(&self) -> Result<OpenDevice, DeviceError> {
        pollster::block_on(self.open_async())
    }

    /// Opens it, without blocking this thread.
    ///
    /// # Errors
    /// When its driver refuses.
    pub async fn open_async(&self) -> Result<OpenDevice, DeviceError> {
        open_device(self.info.clone(), self.reason.clone()).await
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
#[cfg(not(target_arch = "wasm32"))]
pub fn find(choice: DeviceChoice) -> Result<Found, DeviceError> {
    let asked = |info| Found { info, reason: "as asked".into(), auto: false };
    if choice == DeviceChoice::Named(DeviceInfo::cpu().id) {
        return Ok(asked(DeviceInfo::cpu()));
    }
    let found = match choice {
        // To list CUDA's devices is to open them all, which takes memory of each for good.
        DeviceChoice::Named(id) if id.backend != Backend::Cuda => other_devices(),
        _ => devices(),
    };
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
#[cfg(not(target_arch = "wasm32"))]
pub fn open(choice: DeviceChoice) -> Result<OpenDevice, DeviceError> {
    let found = find(choice)?;
    found.open().or_else(|error| found.instead(error)?.open())
}

#[cfg(not(target_arch = "wasm32"))]
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
#[cfg(not(target_arch = "wasm32"))]
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

async fn open_device(info: DeviceInfo, reason: String) -> Result<OpenDevice, DeviceError> {
    let failure = Failure::new(matches!(info.kind, Kind::Software | Kind::Cpu));
    let device = match info.id.backend {
        #[cfg(not(target_arch = "wasm32"))]
        Backend::Cpu => Device::flex(),
        #[cfg(feature = "cuda")]
        Backend::Cuda => Device::cuda(info.id.index),
        #[cfg(feature = "wgpu")]
        _ => webgpu::open(&info, &failure).await?,
        #[cfg(not(feature = "wgpu"))]
        backend => return Err(DeviceError::NotBuilt { backend }),
    };
    Ok(OpenDevice { info, reason, device, failure })
}

/// What `device` can keep activations in and multiply, whatever its kernels make of it.
pub fn dtypes(device: &Device) -> Vec<Dtype> {
    let mut known = vec![Dtype::Float32];
    known.extend(meter::other_dtypes(device));
    known
}

/// Waits until the device has done all that it was given.
///
/// # Errors
/// When it cannot.
#[cfg(not(target_arch = "wasm32"))]
pub fn wait(device: &Device) -> Result<(), DeviceError> {
    device.sync().map_err(|error| {
        let reason = error.to_string();
        DeviceError::told("the device", &reason).unwrap_or(DeviceError::Stopped { reason })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(backend: Backend, kind: Kind) -> DeviceInfo {
        DeviceInfo { id: DeviceId { backend, index: 0 }, kind, ..DeviceInfo::cpu() }
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
