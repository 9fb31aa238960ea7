//! Reads from the system how much memory a device has, which programs hold it, and its health.

use std::path::Path;

use super::granted::{Adapter, Granted, granted};
use super::kernel_files::{self, KernelFiles};
use super::meter::{Card, utilization};
use super::nvidia::Nvidia;
use super::reported_memory::{ReportedMemory, host_memory};
use super::{Backend, DeviceInfo};
use crate::disk;
use crate::plan::{DeviceHealth, MemoryHolder};

/// The number of PCI's register of vendors.
const NVIDIA: &str = "10de:";

/// The most programs that [`Sensors::holders`] names.
const MAX_HOLDERS: usize = 4;

#[derive(Debug)]
pub(super) struct Sensors {
    shares_memory: bool,
    adapter: Option<Adapter>,
    card: Option<Card>,
    pci: Option<String>,
    nvidia: Option<Nvidia>,
    files: Option<KernelFiles>,
}

impl Sensors {
    /// Finds what there is to read of a device. `adapter` and `card` are known of an open device.
    pub fn of(info: &DeviceInfo, adapter: Option<Adapter>, card: Option<Card>) -> Self {
        let pci = info.pci.as_deref().map(str::to_ascii_lowercase);
        let ids = info.adapter.as_ref().and_then(|adapter| adapter.ids.as_deref());
        // The library wakes NVIDIA's GPUs up, so it is loaded for these alone.
        let is_nvidia =
            info.id.backend == Backend::Cuda || ids.is_some_and(|ids| ids.starts_with(NVIDIA));
        let nvidia = pci.as_deref().filter(|_| is_nvidia).and_then(Nvidia::open);
        let files = pci.as_deref().and_then(|pci| KernelFiles::of(Path::new("/sys"), pci));
        Self { shares_memory: info.kind.shares_memory(), adapter, card, pci, nvidia, files }
    }

    /// Returns the memory of the device, or `None` if nothing reports it.
    pub fn memory(&self) -> Option<ReportedMemory> {
        let adapter = self.adapter.as_ref();
        if self.shares_memory {
            let host = host_memory()?;
            // macOS grants a GPU a part of the machine's memory.
            let adapter = adapter.filter(|_| cfg!(target_os = "macos"));
            let granted = adapter.and_then(granted).and_then(of_driver);
            return Some(granted.filter(|granted| granted.free < host.free).unwrap_or(host));
        }
        let granted = adapter.and_then(granted).filter(|granted| granted.total > 0);
        if let Some(memory) = granted.and_then(of_driver) {
            return Some(memory);
        }
        let nvidia = self.nvidia.as_ref().and_then(Nvidia::memory);
        let system = nvidia.or_else(|| self.files.as_ref()?.memory());
        if let Some([total, free]) = system {
            return Some(ReportedMemory { total, free, excess: 0, source: DRIVER });
        }
        let Granted { total, .. } = granted?;
        Some(ReportedMemory { total, free: total, excess: 0, source: "only its size is known" })
    }

    pub fn health(&mut self) -> DeviceHealth {
        let nvidia = self.nvidia.as_ref().and_then(Nvidia::health);
        let health = nvidia.or_else(|| Some(self.files.as_mut()?.health()));
        let utilization = self.card.as_ref().and_then(utilization);
        DeviceHealth { utilization, ..health.unwrap_or_default() }
    }

    /// Returns the programs that hold the most memory of the GPU, without this one, as far as the
    /// system tells them.
    pub fn holders(&self) -> Vec<MemoryHolder> {
        let Some(pci) = self.pci.as_deref().filter(|_| !self.shares_memory) else {
            return Vec::new();
        };
        let proc = Path::new("/proc");
        let mut processes = match &self.nvidia {
            Some(nvidia) => nvidia.holders(),
            None => kernel_files::holders(proc, pci),
        };
        processes.retain(|(pid, bytes)| *pid != std::process::id() && *bytes > 0);
        processes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let named = processes.into_iter().take(MAX_HOLDERS).map(|(pid, bytes)| {
            let name = disk::read_to_string(proc.join(pid.to_string()).join("comm"));
            let name = name.map_or_else(|_| "process".into(), |name| name.trim().to_string());
            MemoryHolder { name: format!("{name} ({pid})"), bytes }
        });
        named.collect()
    }
}

/// Who reports what a driver grants.
const DRIVER: &str = "the graphics driver";

/// Returns the memory that a driver grants; `None` if it tells the size alone.
fn of_driver(granted: Granted) -> Option<ReportedMemory> {
    let Granted { total, budget, used } = granted;
    let budget = budget.filter(|budget| *budget > 0)?.min(total);
    let [free, excess] = [budget.saturating_sub(used), used.saturating_sub(budget)];
    Some(ReportedMemory { total, free, excess, source: DRIVER })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_grant_below_what_is_used_leaves_nothing_free() {
        let of = |budget, used| of_driver(Granted { total: 8 * GIB, budget, used });
        let free =
            |memory: Option<ReportedMemory>| memory.map(|memory| (memory.free, memory.excess));
        assert_eq!(free(of(Some(3 * GIB), GIB)), Some((2 * GIB, 0)));
        assert_eq!(free(of(Some(3 * GIB), 4 * GIB)), Some((0, GIB)));
        // No grant is larger than the memory, and one of 0 is a driver that reports nothing.
        assert_eq!(free(of(Some(9 * GIB), 0)), Some((8 * GIB, 0)));
        assert_eq!(free(of(Some(0), 0)), None);
        assert_eq!(free(of(None, 0)), None);
    }

    #[test]
    fn a_device_without_an_address_has_no_sensors() {
        let mut sensors = Sensors::of(&DeviceInfo::cpu(), None, None);
        assert_eq!(sensors.health().known(), None);
        assert_eq!(sensors.holders(), []);
        assert!(sensors.memory().is_some(), "the CPU's memory is the machine's");
    }
}
