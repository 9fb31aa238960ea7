//! Devices: listing them, selecting the one that a run uses, opening it.
//!
//! Only this module and `ops` name wgpu or cubecl.

use crate::config::{Abilities, Dtype};
pub use crate::plan::{Backend, DeviceKind};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::protocol::Search;
pub use crate::protocol::{AdapterReport, DeviceId, DeviceInfo};
use burn::tensor::{DType, Device};

#[cfg(feature = "wgpu")]
mod adapter;
#[cfg(not(target_arch = "wasm32"))]
mod cgroup;
#[cfg(not(target_arch = "wasm32"))]
mod choice;
#[cfg(feature = "cuda")]
mod cuda;
mod driver;
mod error;
mod granted;
mod id;
#[cfg(feature = "wgpu")]
mod instance;
#[cfg(feature = "wgpu")]
pub mod kernel;
#[cfg(not(target_arch = "wasm32"))]
mod kernel_files;
#[cfg(feature = "wgpu")]
mod matrices;
#[cfg(all(feature = "wgpu", any(windows, target_os = "linux", target_os = "freebsd")))]
pub mod memory_model;
mod meter;
#[cfg(not(target_arch = "wasm32"))]
mod monitor;
#[cfg(not(target_arch = "wasm32"))]
mod nvidia;
#[cfg(feature = "wgpu")]
mod params;
#[cfg(not(target_arch = "wasm32"))]
mod power;
#[cfg(not(target_arch = "wasm32"))]
mod probe;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub mod queue;
mod reported_memory;
mod select;
#[cfg(not(target_arch = "wasm32"))]
mod sensors;
mod stopwatch;
#[cfg(not(target_arch = "wasm32"))]
mod threads;
mod transfer;
#[cfg(feature = "wgpu")]
mod unroll;
#[cfg(all(feature = "wgpu", any(windows, target_os = "linux", target_os = "freebsd")))]
mod vulkan;
mod watchdog;
#[cfg(feature = "wgpu")]
mod webgpu;

#[cfg(not(target_arch = "wasm32"))]
pub use choice::{best, devices, open, select, select_for_rank, why_no_cuda};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use choice::{choose, list, select_without};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use cuda::without_tensor_cores;
pub use driver::DriverTraits;
pub use error::DeviceError;
pub use id::DeviceChoice;
pub use meter::{Memory, count_launches, dry_run, dtypes, is_dry_run, memory};
pub(crate) use meter::{finish, largest_tensor, release_unused, size_pages};
pub(crate) use monitor::DeviceMonitor;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use power::PowerMeter;
#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
pub use probe::variants as probe_variants;
#[cfg(not(target_arch = "wasm32"))]
pub use probe::{Peaks, peaks};
pub(crate) use reported_memory::{device_health, host_memory, memory_holders, reported_memory};
#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
pub use select::select_in_browser;
pub use select::{OpenDevice, SelectedDevice};
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(crate) use stopwatch::name_launch;
pub use stopwatch::time_launches;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use threads::start_compute_threads;
pub(crate) use transfer::{Reading, begin_read, is_done};
pub use watchdog::{AllowedSilence, Watchdog};
#[cfg(all(feature = "gui", not(target_arch = "wasm32")))]
pub(crate) use webgpu::apis;

impl DeviceInfo {
    pub(crate) fn cpu() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            id: DeviceId { backend: Backend::Cpu, index: 0 },
            name: format!("CPU, {cores} threads"),
            kind: DeviceKind::Cpu,
            driver: "burn flex".into(),
            max_binding: None,
            pci: None,
            abilities: Abilities::default(),
            adapter: None,
        }
    }
}

/// A build without CUDA has none of its devices.
#[cfg(all(not(feature = "cuda"), not(target_arch = "wasm32")))]
mod cuda {
    use super::{DeviceInfo, Dtype};

    pub fn devices() -> Vec<DeviceInfo> {
        Vec::new()
    }

    pub fn absence() -> String {
        String::new()
    }

    pub fn without_tensor_cores(_: &DeviceInfo, _: Dtype) -> Option<String> {
        None
    }
}

/// A browser has no other thread to watch the device on, and tells nothing of it.
#[cfg(target_arch = "wasm32")]
mod monitor {
    use super::OpenDevice;
    use super::reported_memory::ReportedMemory;
    use crate::plan::DeviceHealth;

    #[derive(Default)]
    pub struct Reading {
        pub memory: Option<ReportedMemory>,
        pub health: DeviceHealth,
    }

    pub struct DeviceMonitor;

    impl DeviceMonitor {
        pub fn start(_device: &OpenDevice) -> Self {
            Self
        }

        pub fn latest(&self) -> Reading {
            Reading::default()
        }
    }
}

/// Returns the dtype in which a run in `dtype` stores its activations.
pub(crate) fn stored(dtype: Dtype) -> DType {
    match dtype {
        Dtype::Auto | Dtype::Float32 | Dtype::Tf32 => DType::F32,
        Dtype::Bfloat16 => DType::BF16,
        Dtype::Float16 => DType::F16,
    }
}

/// Waits until the device has finished all queued work.
#[cfg(not(target_arch = "wasm32"))]
pub fn wait(device: &Device) -> Result<(), DeviceError> {
    device.sync().map_err(|error| {
        DeviceError::from_message("the device", &error.to_string())
            .unwrap_or_else(|| DeviceError::stopped(error))
    })
}
