//! NVIDIA's management library, which comes with its driver.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::plan::{DeviceHealth, Throttle};

/// A GPU of NVIDIA's own driver.
#[derive(Debug)]
pub struct Nvidia {
    library: Nvml,
    pci: String,
}

impl Nvidia {
    /// Loads the library. Returns `None` without it, and if it does not know the GPU.
    pub fn open(pci: &str) -> Option<Self> {
        let own = Self { library: Nvml::init().ok()?, pci: pci.to_string() };
        own.device()?;
        Some(own)
    }

    fn device(&self) -> Option<Device<'_>> {
        self.library.device_by_pci_bus_id(self.pci.as_str()).ok()
    }

    /// Returns the total and the free memory of the GPU in bytes.
    pub fn memory(&self) -> Option<[u64; 2]> {
        let memory = self.device()?.memory_info().ok()?;
        Some([memory.total, memory.free])
    }

    pub fn health(&self) -> Option<DeviceHealth> {
        let gpu = self.device()?;
        Some(DeviceHealth {
            utilization: None,
            celsius: gpu.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            watts: gpu.power_usage().ok().map(|milliwatts| f64::from(milliwatts) * 1e-3),
            clock_mhz: gpu.clock_info(Clock::SM).ok().map(f64::from),
            throttled: gpu.current_throttle_reasons().ok().and_then(throttle),
        })
    }

    /// Returns the processes with memory on the GPU and their bytes. Windows does not report the bytes.
    pub fn holders(&self) -> Vec<(u32, u64)> {
        let Some(gpu) = self.device() else { return Vec::new() };
        let lists = [gpu.running_compute_processes(), gpu.running_graphics_processes()];
        let used = |process: ProcessInfo| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some((process.pid, bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let mut holders: Vec<_> = lists.into_iter().flatten().flatten().filter_map(used).collect();
        // A program that computes and draws is in both lists.
        holders.sort_unstable();
        holders.dedup_by_key(|(pid, _)| *pid);
        holders
    }
}

/// Returns the reason that slows the GPU down most. An idle GPU is not throttled.
fn throttle(reasons: ThrottleReasons) -> Option<Throttle> {
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    // Without one of the others, a slowdown by the hardware is for the same two causes.
    let supply = ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN | ThrottleReasons::HW_SLOWDOWN;
    if reasons.intersects(heat) {
        Some(Throttle::Heat)
    } else if reasons.intersects(supply) {
        Some(Throttle::PowerSupply)
    } else if reasons.contains(ThrottleReasons::SW_POWER_CAP) {
        Some(Throttle::PowerLimit)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_reason_for_a_low_clock_counts() {
        let heat = ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_SLOWDOWN;
        for (reasons, expected) in [
            (ThrottleReasons::NONE, None),
            (ThrottleReasons::GPU_IDLE, None),
            (ThrottleReasons::SW_POWER_CAP, Some(Throttle::PowerLimit)),
            (ThrottleReasons::HW_SLOWDOWN, Some(Throttle::PowerSupply)),
            (heat | ThrottleReasons::SW_POWER_CAP, Some(Throttle::Heat)),
        ] {
            assert_eq!(throttle(reasons), expected, "{reasons:?}");
        }
    }
}
