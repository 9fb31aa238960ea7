//! NVIDIA's management library, which comes with its driver.

use std::collections::BTreeMap;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::plan::{DeviceHealth, Throttle};

/// A GPU of NVIDIA's own driver.
#[derive(Debug)]
pub struct Nvidia {
    library: Nvml,
    pci: String,
    /// The time of the last sample of the processes' use, in the library's microseconds.
    sampled: u64,
}

impl Nvidia {
    /// Loads the library. Returns `None` without it, and if it does not know the GPU.
    pub fn open(pci: &str) -> Option<Self> {
        let own = Self { library: Nvml::init().ok()?, pci: pci.to_string(), sampled: 0 };
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

    /// Returns true if a display is connected to the GPU.
    pub fn has_display(&self) -> Option<bool> {
        self.device()?.is_display_connected().ok()
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

    /// Returns the share of the time since the last call in which the GPU worked for each process, as the mean of the
    /// driver's samples. Windows does not report it.
    pub fn shares(&mut self) -> Option<Vec<(u32, f64)>> {
        let samples = match self.device()?.process_utilization_stats(self.sampled) {
            // The GPU did nothing.
            Err(NvmlError::NotFound) => Vec::new(),
            samples => samples.ok()?,
        };
        let times = samples.iter().map(|sample| (sample.pid, sample.timestamp, sample.sm_util));
        let (shares, last) = means(times, self.sampled);
        self.sampled = last;
        Some(shares)
    }
}

/// Returns the mean of each process's percentages after the moment `since`, as a share, and the last moment.
fn means(samples: impl Iterator<Item = (u32, u64, u32)>, since: u64) -> (Vec<(u32, f64)>, u64) {
    let mut last = since;
    let mut processes = BTreeMap::<u32, (f64, f64)>::new();
    for (pid, moment, percent) in samples.filter(|(_, moment, _)| *moment > since) {
        last = last.max(moment);
        let (sum, count) = processes.entry(pid).or_default();
        *sum += f64::from(percent) / 100.0;
        *count += 1.0;
    }
    (processes.into_iter().map(|(pid, (sum, count))| (pid, sum / count)).collect(), last)
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
    fn samples_are_averaged_and_old_ones_left_out() {
        let samples = [(7, 10, 90), (7, 11, 25), (7, 12, 75), (8, 12, 25)];
        let (shares, last) = means(samples.into_iter(), 10);
        assert_eq!((shares, last), (vec![(7, 0.5), (8, 0.25)], 12));
        assert_eq!(means([].into_iter(), 12), (vec![], 12));
    }

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
