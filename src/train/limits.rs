//! A device as the planner sees it.

use crate::config::Config;
use crate::gpu::{Backend, DeviceInfo, Kind, reported_memory};
use crate::ops::{Implementation, OpsMode};
use crate::plan::{BROWSER_BUDGET, DeviceMemory, DeviceProfile, Limits};

/// Returns the profile of a device. Queries how much of its memory is free now.
pub fn device_profile(device: &DeviceInfo, mode: OpsMode) -> DeviceProfile {
    let memory = match reported_memory(device) {
        _ if device.kind == Kind::Cpu => DeviceMemory::Host,
        Some(reported) => DeviceMemory::Reported {
            total: reported.total,
            free: reported.free,
            source: reported.source.to_string(),
        },
        None if device.id.backend == Backend::WebGpu => DeviceMemory::Assumed(BROWSER_BUDGET),
        None => DeviceMemory::Unknown,
    };
    let pools = device.kind != Kind::Cpu;
    let cube = match mode.implementation {
        Implementation::Cube => pools,
        _ => device.id.backend == Backend::Cuda,
    };
    DeviceProfile { memory, largest_tensor: device.max_binding, pools, cube }
}

/// Returns the limits of a run on a device, and the source of its budget as text.
pub fn limits(config: &Config, device: &DeviceInfo, mode: OpsMode) -> (Limits, String) {
    device_profile(device, mode).limits(config.vram_budget)
}
