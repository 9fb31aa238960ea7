//! The planner's view of a device.

use crate::gpu::{Backend, DeviceInfo, DeviceKind, host_memory, memory_holders, reported_memory};
use crate::ops::{Implementation, OpsMode};
use crate::plan::{BROWSER_BUDGET, DeviceMemory, DeviceProfile, Kernels, Limits, free_for_a_run};

/// We look up the programs that hold a GPU's memory if they hold more than this, in bytes. A desktop holds less.
const MUCH_HELD: u64 = 1 << 30;

/// Returns the profile of a device for runs in `mode`. Queries the free memory of the device and the machine,
/// and reads the known speed in the precision of `mode`.
pub fn device_profile(device: &DeviceInfo, mode: OpsMode) -> DeviceProfile {
    let memory = match reported_memory(device) {
        Some(reported) => DeviceMemory::Reported {
            total: reported.total,
            free: reported.free,
            context: if device.kind.shares_memory() {
                0
            } else {
                device.id.backend.context_bytes()
            },
            source: reported.source.to_string(),
            holders: if reported.total.saturating_sub(reported.free) > MUCH_HELD {
                memory_holders(device)
            } else {
                Vec::new()
            },
        },
        None if device.id.backend == Backend::WebGpu => DeviceMemory::Assumed(BROWSER_BUDGET),
        None => DeviceMemory::Unknown,
    };
    let kernels = match (device.id.backend, mode.implementation) {
        (Backend::Cpu, _) => Kernels::Cpu,
        (Backend::Cuda, _) | (_, Implementation::Cube) => Kernels::Cube,
        _ => Kernels::Wgsl,
    };
    let host_budget = match device.id.backend {
        Backend::WebGpu => Some(0),
        _ => host_memory().map(|memory| free_for_a_run(memory.total, memory.free)),
    };
    DeviceProfile {
        memory,
        abilities: mode.abilities(device),
        speed: super::speeds::known(device, mode),
        limits: Limits {
            largest_tensor: device.max_binding,
            pools: device.kind != DeviceKind::Cpu,
            kernels,
            host_budget,
            unified: device.kind.shares_memory(),
            ..Limits::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_of_host_memory_is_left_to_other_programs() {
        // Others take memory and give it back meanwhile.
        let has_reserve = || {
            let memory = host_memory().unwrap();
            let limits = device_profile(&DeviceInfo::cpu(), OpsMode::AUTO).limits;
            let expected = free_for_a_run(memory.total, memory.free);
            limits.host_budget.unwrap().abs_diff(expected) < 64 << 20
        };
        assert!((0..10).any(|_| has_reserve()));
    }
}
